"""One child: start, ways to fail, and its tie to the parent."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from hpc_elastic.ids import Env
from hpc_elastic.processes.linux import die_with_parent
from hpc_elastic.processes.process import UNKNOWN_EXIT_CODE, ProcessSpec, WorkerStartError, spawn
from tests.multiprocessing.waiting import wait_readable


def test_child_leads_its_own_session() -> None:
    """A child is leader of its session and group, so that a signal reaches all of it."""
    process = spawn(ProcessSpec(("sleep", "1000"), os.environ))
    process.confirm_started(20)
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    process.signal_group(signal.SIGKILL)
    process.reap()
    assert process.exit_code == -9


def test_threads_may_start_children_at_the_same_time(tmp_path: Path) -> None:
    """Since Python 3.12 filelock, once in use, has a second fork refused while another one is under way."""
    with filelock.FileLock(tmp_path / "lock"):
        pass

    def start_some(_: int) -> list[int | None]:
        started = [spawn(ProcessSpec(("true",), os.environ)) for _ in range(20)]
        for process in started:
            assert process.pidfd is not None
            wait_readable(process.pidfd)
            process.reap()
        return [process.exit_code for process in started]

    with ThreadPoolExecutor(4) as threads:
        assert [[0] * 20] * 4 == list(threads.map(start_some, range(4)))


def test_ended_process_keeps_its_pid_until_reaped() -> None:
    """poll() tells the exit code again and again; reap() gives the pid back, once."""
    process = spawn(ProcessSpec(("sh", "-c", "exit 3"), os.environ))
    assert process.pidfd is not None
    wait_readable(process.pidfd)
    assert (process.poll(), process.poll()) == (3, 3)
    assert os.path.exists(f"/proc/{process.pid}")
    process.reap()
    process.reap()
    process.signal_group(signal.SIGKILL)
    assert not os.path.exists(f"/proc/{process.pid}")


def test_exit_status_taken_by_somebody_else_is_unknown() -> None:
    """A foreign wait does not hang or crash us."""
    process = spawn(ProcessSpec(("true",), os.environ))
    os.waitpid(process.pid, 0)
    assert process.poll() == UNKNOWN_EXIT_CODE
    process.reap()


@pytest.mark.parametrize(
    ("argv", "words"),
    [(("no-such-binary",), "no-such-binary"), (("/etc/passwd",), "chmod"), (("/",), "chmod")],
)
def test_program_that_cannot_run_is_named(argv: tuple[str, ...], words: str) -> None:
    """The error names the binary and a way out."""
    process = spawn(ProcessSpec(argv, os.environ))
    with pytest.raises(WorkerStartError, match=words):
        process.confirm_started(20)
    process.reap()
    assert process.exit_code == 127


def test_text_file_without_interpreter_is_explained(tmp_path: Path) -> None:
    """An executable text without a first line for the kernel is explained."""
    script = tmp_path / "run"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    process = spawn(ProcessSpec((str(script),), os.environ))
    with pytest.raises(WorkerStartError, match="#!/bin/sh"):
        process.confirm_started(20)
    process.reap()


def test_missing_working_directory_is_named(tmp_path: Path) -> None:
    """A working directory that does not exist is not blamed on the binary."""
    process = spawn(ProcessSpec(("true",), os.environ, cwd=str(tmp_path / "nowhere")))
    with pytest.raises(WorkerStartError, match="nowhere"):
        process.confirm_started(20)
    process.reap()


def test_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """A log file in a missing directory gives an error with its path, before anything starts."""
    with pytest.raises(WorkerStartError, match="nowhere"):
        spawn(ProcessSpec(("true",), os.environ, stdout=str(tmp_path / "nowhere" / "out")))


@pytest.mark.timeout(120)  # nothing here waits
def test_a_pipe_in_the_place_of_a_runs_log_is_refused_at_once(tmp_path: Path) -> None:
    """Whoever has put it there would hold up the agent as long as he does not read from it."""
    path = tmp_path / "stdout.log"
    os.mkfifo(path)
    environ = {**os.environ, Env.RUN_DIR: str(tmp_path)}
    with pytest.raises(WorkerStartError, match="it is a FIFO, not a plain file"):
        spawn(ProcessSpec(("true",), environ, stdout=str(path)))


def test_path_is_searched_in_the_worker_environment(tmp_path: Path) -> None:
    """A program is looked up on the PATH that the worker gets."""
    script = tmp_path / "only-here"
    script.write_text("#!/bin/sh\nexit 5\n")
    script.chmod(0o755)
    process = spawn(ProcessSpec(("only-here",), {"PATH": f"{tmp_path}:/usr/bin:/bin"}))
    process.confirm_started(20)
    process.reap()
    assert process.exit_code == 5


def test_child_of_a_dead_parent_notices(pipe: tuple[int, int]) -> None:
    """A parent that died before the kernel was asked is seen: the signal would never come."""
    reading, writing = pipe
    middle = os.fork()
    if middle == 0:
        try:  # a forked child must never return into pytest
            parent = os.getpid()
            pidfd = os.pidfd_open(parent)
            if os.fork() == 0:
                wait_readable(pidfd)
                os.write(writing, b"alive" if die_with_parent(parent) else b"orphan")
        finally:
            os._exit(0)
    os.waitpid(middle, 0)
    wait_readable(reading)
    assert os.read(reading, 10) == b"orphan"


def test_signal_during_the_start_is_not_lost() -> None:
    """A signal sent right after the fork ends the child, wherever its start has come to."""
    for _ in range(20):
        process = spawn(ProcessSpec(("sleep", "1000"), os.environ))
        process.signal_group(signal.SIGTERM)
        process.reap()
        assert process.exit_code == -signal.SIGTERM
