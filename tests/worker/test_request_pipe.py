"""An agent reaches the thread that keeps a state, whatever a program does with signals and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.worker.channel import Channel
from hpc_elastic.worker.request_pipe import ask

LIMIT_S = 60.0
KEEPS = """
import asyncio, os, re, signal, subprocess, sys, threading, time
from hpc_elastic.worker.channel import Channel
from hpc_elastic.worker.request_pipe import heed

channel = Channel.open("channel")

def tell(line):
    with open("told", "a") as file:
        file.write(f"{line}\\n")

def keep():
    tell(f"kept by {os.getpid()}")
    channel.keeper = 0

def begin():
    assert heed(channel, keep)

def wait_until_it_reads():
    (thread,) = [one for one in threading.enumerate() if one.name == "hpc_elastic rescue"]
    fd = ""
    while not re.fullmatch("0x..?", fd):  # the first argument of its system call is no address
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            fd = (*file.read().split(), "", "")[1]

def wait_as_in_a_collective():
    channel.keeper = os.getpid()
    threading.Lock().acquire() and time.sleep(600)
"""
PROGRAMS = {
    "asyncio, later": """
begin()
async def wait():
    for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, tell, "a signal")
    wait_as_in_a_collective()
asyncio.run(wait())
""",
    "asyncio, before": """
async def wait():
    asyncio.get_running_loop().add_signal_handler(signal.SIGURG, tell, "a signal")
    begin()
    wait_as_in_a_collective()
asyncio.run(wait())
""",
    "handlers of its own": """
begin()
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, _: tell(f"signal {number}"))
wait_as_in_a_collective()
""",
    "a wakeup descriptor of its own": """
begin()
reading, writing = os.pipe()
os.set_blocking(writing, False)
assert -1 == signal.set_wakeup_fd(writing)
wait_as_in_a_collective()
""",
    "blocked signals": """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
begin()
wait_as_in_a_collective()
""",
    "another thread": """
thread = threading.Thread(target=begin)
thread.start()
thread.join()
wait_as_in_a_collective()
""",
    "forked loaders of data": """
begin()
for _ in range(3):
    if os.fork() == 0:
        signal.pause()
wait_as_in_a_collective()
""",
    "descriptors that are closed and taken again": """
begin()
wait_until_it_reads()
os.closerange(3, 100)
reading, writing = os.pipe()
taken = [os.dup(reading) for _ in range(50)]
wait_as_in_a_collective()
""",
    "a function in place of an earlier one": """
def earlier():
    tell("earlier")
listener = heed(channel, earlier)
assert listener is heed(channel, keep)
assert listener.act is keep
wait_as_in_a_collective()
""",
}


class Worker:
    """A worker in a directory with a channel.

    Args:
        place: the directory.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self.channel = Channel.create(str(place / "channel"))
        self.pid = 0

    def start(self, text: str, stack: ExitStack) -> None:
        """Start it, and wait until it says that it keeps its state."""
        argv = [sys.executable, "-c", KEEPS + text]
        process = subprocess.Popen(argv, cwd=self._place, start_new_session=True)
        stack.callback(process.wait)
        stack.callback(self._kill, process.pid)
        self.pid = process.pid
        wait_until(lambda: bool(self.channel.keeper), "the worker to keep its state", timeout_s=LIMIT_S)

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def told(self) -> list[str]:
        """Return the lines that it has told."""
        path = self._place / "told"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker that is not started yet."""
    return Worker(tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_worker_whose_main_thread_hangs_is_reached(name: str, worker: Worker, stack: ExitStack) -> None:
    """It answers once, and itself, and its program sees no signal."""
    worker.start(PROGRAMS[name], stack)
    path = worker.channel.request_path
    assert ask(worker.channel)
    wait_until(lambda: not worker.channel.keeper, "the answer", timeout_s=LIMIT_S)
    assert [f"kept by {worker.pid}"] == worker.told()
    assert not os.path.exists(path)


def test_a_forked_child_answers_for_itself_alone(worker: Worker, stack: ExitStack) -> None:
    """Where the child trains, and the worker has only prepared something."""
    worker.start(
        "begin()\nif os.fork():\n    signal.pause()\nbegin()\nwait_as_in_a_collective()",
        stack,
    )
    keeper = worker.channel.keeper
    assert worker.pid != keeper
    assert ask(worker.channel)
    wait_until(lambda: not worker.channel.keeper, "the answer", timeout_s=LIMIT_S)
    assert [f"kept by {keeper}"] == worker.told()


def test_a_program_that_a_worker_starts_does_not_get_the_pipe(worker: Worker, stack: ExitStack) -> None:
    """Not even with all descriptors that may be inherited."""
    worker.start(
        "begin()\n"
        "tell(subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, stdout=-1).stdout.decode())\n"
        "wait_as_in_a_collective()",
        stack,
    )
    assert worker.told()
    assert [] == [line for line in worker.told() if ".ask-" in line]


def _no_keeper(worker: Worker, stack: ExitStack) -> None:
    """Nobody keeps a state."""


def _no_pipe(worker: Worker, stack: ExitStack) -> None:
    """A worker that does not know of the pipe."""
    worker.channel.keeper = os.getpid()


def _no_reader(worker: Worker, stack: ExitStack) -> None:
    """A worker that has ended."""
    worker.start("begin()\nchannel.keeper = os.getpid()", stack)
    stack.close()


def _full(worker: Worker, stack: ExitStack) -> None:
    """A pipe that nobody reads any more."""
    worker.channel.keeper = os.getpid()
    os.mkfifo(worker.channel.request_path)
    fd = os.open(worker.channel.request_path, os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, fd)
    with suppress(BlockingIOError):
        while True:
            os.write(fd, b"x" * 512)


def _other_file(worker: Worker, stack: ExitStack) -> None:
    """A file of another kind."""
    worker.channel.keeper = os.getpid()
    Path(worker.channel.request_path).write_text("")


def _link(worker: Worker, stack: ExitStack) -> None:
    """A link to a pipe that is read."""
    worker.channel.keeper = os.getpid()
    os.mkfifo(f"{worker.channel.path}.pipe")
    stack.callback(os.close, os.open(f"{worker.channel.path}.pipe", os.O_RDWR))
    os.symlink(f"{worker.channel.path}.pipe", worker.channel.request_path)


@pytest.mark.parametrize("prepare", [_no_keeper, _no_pipe, _no_reader, _full, _other_file, _link])
def test_an_agent_never_waits_for_a_worker_that_cannot_be_asked(
    prepare: Callable[[Worker, ExitStack], None], worker: Worker, stack: ExitStack
) -> None:
    """It knows so, and writes to nothing else."""
    prepare(worker, stack)
    assert not ask(worker.channel)
    path = Path(worker.channel.request_path)
    assert not path.is_file() or "" == path.read_text()


def test_a_pipe_of_an_ended_process_of_the_same_number_is_replaced(worker: Worker, stack: ExitStack) -> None:
    """And where it cannot be made, the worker keeps nothing."""
    text = (
        "path = channel.request_path_of(os.getpid())\nos.mkdir(path)\n"
        "assert heed(channel, keep) is None\n"
        "os.rmdir(path)\nopen(path, 'w').close()\nbegin()\nwait_as_in_a_collective()"
    )
    worker.start(text, stack)
    assert ask(worker.channel)
    wait_until(lambda: not worker.channel.keeper, "the answer", timeout_s=LIMIT_S)


def test_the_pipe_of_a_worker_that_was_killed_is_removed(worker: Worker, stack: ExitStack) -> None:
    """With its channel."""
    worker.start("begin()\nwait_as_in_a_collective()", stack)
    path = worker.channel.request_path
    stack.close()
    assert os.path.exists(path)
    worker.channel.unlink()
    assert not os.path.exists(path)
