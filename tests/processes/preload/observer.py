"""Prints, as JSON, what a program can see of its own process; run as a worker, cold and warm."""

import atexit
import faulthandler
import gc
import json
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path

HERE = sys.modules["__main__"]


def _module() -> dict[str, str]:
    names = ("__name__", "__file__", "__spec__", "__loader__", "__package__", "__doc__", "__cached__")
    facts = {name: str(getattr(HERE, name, "none")).partition(" object at ")[0] for name in names}
    return {**facts, "names": " ".join(sorted(name for name in vars(HERE) if name.startswith("__")))}


def _stream(stream: object) -> dict[str, str]:
    names = ("encoding", "errors", "line_buffering", "write_through", "mode", "name", "newlines")
    facts = {name: str(getattr(stream, name, "none")) for name in names}
    buffer = getattr(stream, "buffer", None)
    return {**facts, "buffer": type(buffer).__name__, "seekable": str(stream.seekable())}  # type: ignore[attr-defined]


def _signals() -> dict[str, str]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = (line.split() for line in file)
        found = {
            line[0]: line[1] for line in lines if line[0].startswith(("SigIgn", "SigBlk", "SigCgt", "Umask"))
        }
    handlers = {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()}
    return {**handlers, **found}


def _fds() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except OSError:
            continue
    return found


facts = {
    "main": _module(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "executable": sys.executable,
    "environ": dict(os.environ),
    "cwd": os.getcwd(),
    "streams": [_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
    "signals": _signals(),
    "fds": _fds(),
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpid(),
    "parent": os.getppid() == int(os.environ["PARENT"]),
    "limits": {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_") and name != "RLIMIT_LOCKS"
    },
    "threads": [threading.active_count(), threading.current_thread().name],
    "faulthandler": faulthandler.is_enabled(),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "affinity": sorted(os.sched_getaffinity(0)),
    "nice": os.nice(0),
    "umask": os.umask(0o22),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "ours": sorted(name for name in sys.modules if name.startswith("hpc_elastic")),
    "name": Path("/proc/self/comm").read_text(),
    "cmdline": Path("/proc/self/cmdline").read_text().split("\0"),
    "shown": sorted(Path("/proc/self/environ").read_text().split("\0")),
    "dumpable": os.stat("/proc/self").st_uid,
}
atexit.register(print, "atexit")
if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(facts)}\n{random.random()}\n")
    sys.stderr.write("error\n")
