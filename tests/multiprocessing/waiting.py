"""Wait for what real processes do, bounded."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from hpc_elastic.multiprocessing.context import SubprocessContext

MakeContext = Callable[..., SubprocessContext]
"""Makes a context that runs one Python program per rank (the fixture `make_context`)."""


def wait_readable(fd: int, wait_s: float = 20) -> None:
    """Return when a descriptor is readable; fail when it does not become so."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(wait_s * 1000), f"nothing to read from descriptor {fd}"


def wait_line(path: str | Path, wait_s: float = 20) -> str:
    """Return a FIFO's first line once somebody has written it."""
    fd = os.open(path, os.O_RDWR)
    try:
        wait_readable(fd, wait_s)
        return os.read(fd, 4096).decode().split("\n")[0]
    finally:
        os.close(fd)


def wait_gone(pid: int, wait_s: float = 20) -> None:
    """Return when a process has ended; fail when it does not."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = poller.poll(wait_s * 1000)
    os.close(pidfd)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended, f"process {pid} runs on"


FOR_EVER = "import signal; signal.pause()"
READY = "open({fifo!r}, 'w').write('ready\\n'); "
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {READY}\nwhile True: signal.pause()"
ESCAPED = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {before}
        open({fifo!r}, "w").write(f"{{os.getpid()}}\\n")
        while True: signal.pause()
    os._exit(0)
os.wait()
{after}
"""


def drain(fd: int) -> bytes:
    """Return what a pipe holds now."""
    os.set_blocking(fd, False)
    chunks = []
    try:
        while chunk := os.read(fd, 1 << 16):
            chunks.append(chunk)
    except BlockingIOError:
        pass
    return b"".join(chunks)
