"""The three ways to start a process that runs a function, all on the package's own process handling.

spawn       a fresh interpreter; the standard library prepares it as its own spawned processes
fork        a copy of this process
forkserver  a copy of a small process that is started once; it can have modules loaded beforehand
            (`multiprocessing.set_forkserver_preload`)
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import multiprocessing
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import (
    context,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    util,
)
from multiprocessing import spawn as spawning
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.isolated.callers_path import has_own_path
from hpc_elastic.multiprocessing.function_worker import (
    Descriptor,
    FunctionCall,
    ReturnMeeting,
    Served,
    own_streams,
    run,
)
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.process import TELLING, ChildProcess, ProcessSpec, open_stdio, spawn

if TYPE_CHECKING:
    from hpc_elastic.processes.preload.preloader import Preloader

_OF_THE_PARENT: Final = ("sys_path", "init_main_from_name", "init_main_from_path")  # no worker wants them
_CODE: Final = (
    "import sys; {isolation}from multiprocessing import resource_tracker as t, spawn as s; "
    "t._resource_tracker._fd = {tracker}; sys.exit(s._main({payload}, {parent}))"
)


class FunctionJob(NamedTuple):
    """One function to be run.

    Args:
        name: of its process.
        function: the function.
        args: its arguments.
        value: descriptor of an empty file for its return value.
        spec: environment, streams and the like; its argv is not used.
        prepare: called first in a forked worker.
        meeting: the two descriptors of a `ReturnMeeting`, where there are several workers.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    value: int
    spec: ProcessSpec
    prepare: Callable[[], None]
    meeting: tuple[int, int] | None = None

    @property
    def function_name(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)


def new_file() -> int:
    """Return the descriptor of a new empty file in memory, or where that is not to be had on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hpc_elastic", os.MFD_CLOEXEC)
    import tempfile  # noqa: PLC0415 - rare

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@contextlib.contextmanager
def _shared_tracker() -> Iterator[None]:
    """Leave a process that is forked here the resource tracker of this one, as `multiprocessing` does.

    Python (seen with 3.14.10) closes it in other copies of a process.
    """
    intent = getattr(resource_tracker, "_fork_intent", None)
    if intent is None:
        yield
        return
    intent.preserve_fd = True
    try:
        yield
    finally:
        intent.preserve_fd = False


def spawning_command() -> tuple[str, ...]:
    """Return the words that start a fresh interpreter for a function, without its code."""
    flags = [flag for flag in util._args_from_interpreter_flags() if flag != "-I"]  # type: ignore[attr-defined]
    return (os.fsdecode(spawning.get_executable()), *flags, "-c")


def start_spawned(job: FunctionJob, preloader: Preloader | None = None) -> ChildProcess:
    """Start a fresh interpreter that calls the function, or a copy of one that has imported modules."""
    tracker = int(resource_tracker.getfd() or 0)  # started by asking for it
    popen = _Popen("spawn", popen_spawn_posix._DupFd)
    payload = new_file()
    reading, writing = os.pipe()  # the child sees its end when this process is gone
    try:
        data = _pickled(job, popen, None)
        with os.fdopen(payload, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(payload, 0, os.SEEK_SET)
        code = _CODE.format(isolation=_isolation(), tracker=tracker, payload=payload, parent=reading)
        spec = job.spec._replace(argv=(*spawning_command(), code, "--multiprocessing-fork"))
        fds = tuple(dict.fromkeys((*popen.fds, tracker, payload, reading)))
        with _shared_tracker():
            forked = None if preloader is None else preloader.fork(spec, fds)
            child = forked or spawn(spec, pass_fds=fds)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(payload)
        os.close(reading)
    child.held.append(writing)
    return child


def start_forked(job: FunctionJob) -> ChildProcess:
    """Start a copy of this process that calls the function."""
    call = FunctionCall(
        job.function_name,
        None,
        (job.function, job.args),
        job.spec.env,
        Descriptor(job.value),
        prepare=job.prepare,
        meeting=_meeting(job),
    )
    process = _process("fork", job.name, call)
    util._flush_std_streams()  # type: ignore[attr-defined]
    reading, writing = os.pipe()

    def be_child() -> int:
        os.close(writing)
        own_streams(out=job.spec.stdout is not None, err=job.spec.stderr is not None)
        atexit._clear()  # the child must not run the functions registered by this process
        atexit.register(util._exit_function)  # type: ignore[attr-defined] # hands over the contents of queues
        try:
            return int(process._bootstrap(parent_sentinel=reading))
        finally:
            atexit._run_exitfuncs()  # since Python 3.13 the caller's

    try:
        with _shared_tracker():
            child = spawn(job.spec._replace(argv=(job.name,)), call=be_child)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    child.held.append(writing)
    return child


def start_served(job: FunctionJob) -> ChildProcess:
    """Have the fork server make a process that calls the function."""
    stdio = open_stdio(job.spec)
    try:
        popen = _Popen("forkserver", popen_forkserver._DupFd)
        served = Served(
            (Descriptor(stdio[0]), Descriptor(stdio[1]), Descriptor(stdio[2])),
            job.spec.cwd or os.getcwd(),
            job.spec.cpus,
            job.spec.ignore_signals,
        )
        data = _pickled(job, popen, served)
        sentinel, writing = _server(os.getpid()).connect_to_new_process(popen.fds)
        held = os.dup(writing)
        with open(writing, "wb", closefd=True) as pipe:
            pipe.write(data)
        child = ServedProcess(job.spec, forkserver.read_signed(sentinel), sentinel)
    finally:
        for fd in stdio:
            os.close(fd)
    child.held.append(held)
    return child


STARTERS: Final = {"spawn": start_spawned, "fork": start_forked, "forkserver": start_served}


class ServedProcess(ChildProcess):
    """A child of the fork server, which tells its exit code by a pipe."""

    def __init__(self, spec: ProcessSpec, pid: int, sentinel: int) -> None:
        super().__init__(spec, pid, -1)
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = sentinel

    def _wait(self, flags: int) -> int | None:
        if self.pidfd is None:
            return self.exit_code
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(0 if flags & os.WNOHANG else None):
            return None
        try:
            return int(forkserver.read_signed(self.pidfd))
        except (OSError, EOFError):  # the server was killed, and the worker with it
            return -signal.SIGKILL


class _Popen:
    """The questions of the standard library while it pickles a process object."""

    def __init__(self, method: str, dup_fd: type) -> None:
        self.method = method
        self.DupFd = dup_fd
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Note a descriptor that the child needs; return its number there."""
        self.fds.append(fd)
        return fd if self.method == "spawn" else len(self.fds) - 1


def _isolation() -> str:
    """Return the code by which a worker imports our modules from where this process does."""
    if not has_own_path():
        return ""
    return f"plain = [place for place in sys.path if place]; sys.path[:] = {sys.path!a}; "


def _preparation(name: str) -> dict[str, Any]:
    """Return the standard library's facts for a child about its parent."""
    data: dict[str, Any] = spawning.get_preparation_data(name)
    if has_own_path():
        return {key: value for key, value in data.items() if key not in _OF_THE_PARENT}
    return data


def _meeting(job: FunctionJob) -> ReturnMeeting | None:
    return None if job.meeting is None else ReturnMeeting(*map(Descriptor, job.meeting))


def _process(method: str, name: str, call: FunctionCall) -> Any:
    return multiprocessing.get_context(method).Process(target=run, args=(call,), name=name)  # type: ignore[attr-defined]


def _pickled(job: FunctionJob, popen: _Popen, served: Served | None) -> bytes:
    """Return the input of the child's interpreter: how to prepare itself, and the process object."""
    inner, outer = io.BytesIO(), io.BytesIO()
    context.set_spawning_popen(popen)  # type: ignore[arg-type]
    try:
        reduction.dump((job.function, job.args), inner)
        call = FunctionCall(
            job.function_name,
            inner.getvalue(),
            None,
            job.spec.env,
            Descriptor(job.value),
            served=served,
            meeting=_meeting(job),
            was_isolated=has_own_path(),
        )
        process = _process(popen.method, job.name, call)
        reduction.dump(_preparation(process.name), outer)
        reduction.dump(process, outer)
    finally:
        context.set_spawning_popen(None)
    return outer.getvalue()


@functools.lru_cache(maxsize=1)
def _server(pid: int) -> forkserver.ForkServer:  # noqa: ARG001 - a forked child needs its own
    """Return this process's fork server, which no signal to this process's group ends."""
    server = forkserver.ForkServer()
    common = getattr(forkserver, "_forkserver", None)
    server.set_forkserver_preload(list(getattr(common, "_preload_modules", ("__main__",))))
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, TELLING)
    try:
        server.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    return server
