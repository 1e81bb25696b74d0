"""The lock spares work and never holds anybody up for long; nothing is lost when it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import pytest
from filelock import BaseFileLock, FileLock

from hpc_elastic.clock import SystemClock
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Entry, Epoch, EpochStarted
from hpc_elastic.record.run_log import RunLog, open_log, read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.store.lock import STUCK_S, ContentionLock
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until

WRITERS = 4
COMMITS = 25
HOLDER = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1], fallback_to_soft=False)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""
WRITER = """
import sys
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_log import open_log
log = open_log(RunPaths(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    log.commit(lambda state: EpochStarted(Epoch(0, 0, state.epoch.restart + 1, 0), "", ()))
"""

Hold = Callable[[str | Path], "subprocess.Popen[str]"]


def _start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _read(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert f"{line}\n" == process.stdout.readline()


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Return a function that starts a process which holds a lock for as long as it lives."""
    holders: list[subprocess.Popen[str]] = []

    def start(path: str | Path) -> subprocess.Popen[str]:
        holder = _start(HOLDER, str(path))
        holders.append(holder)
        _read(holder, "held")
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_a_free_lock_is_held(tmp_path: Path) -> None:
    """A lock nobody holds is had at once, and again afterwards."""
    lock = ContentionLock(str(tmp_path / "lock"))
    for _ in range(2):
        with lock.held() as is_held:
            assert is_held


def test_a_held_lock_is_waited_for_a_bounded_time(tmp_path: Path, hold: Hold) -> None:
    """A lock that somebody keeps is done without after the wait."""
    hold(tmp_path / "lock")
    clock = SystemClock()
    before = clock.monotonic()
    with ContentionLock(str(tmp_path / "lock"), wait_s=0.2).held() as is_held:
        assert not is_held
    assert 0.2 <= clock.monotonic() - before < 5


def test_a_frozen_holder_is_waited_for_a_bounded_time(tmp_path: Path, hold: Hold) -> None:
    """A holder that is stopped keeps its lock, and nobody waits longer for it."""
    os.kill(hold(tmp_path / "lock").pid, signal.SIGSTOP)
    with ContentionLock(str(tmp_path / "lock"), wait_s=0.1).held() as is_held:
        assert not is_held


def test_a_dead_holder_holds_nothing(tmp_path: Path, hold: Hold) -> None:
    """The lock of a process that was killed is free."""
    holder = hold(tmp_path / "lock")
    holder.kill()
    holder.wait()
    with ContentionLock(str(tmp_path / "lock"), wait_s=5).held() as is_held:
        assert is_held


def test_a_stuck_lock_is_waited_for_once(tmp_path: Path, hold: Hold) -> None:
    """After the first wait it is only tried, until some time has passed."""
    hold(tmp_path / "lock")
    clock = FakeClock()
    lock = ContentionLock(str(tmp_path / "lock"), clock, wait_s=0.1)
    with lock.held() as is_held:
        assert not is_held
    clock.advance(STUCK_S - 1)
    lock._wait_s = 1_000.0  # a wait would outlast this test
    with lock.held() as is_held:
        assert not is_held
    clock.advance(1)
    lock._wait_s = 0.2
    before = SystemClock().monotonic()
    with lock.held() as is_held:
        assert not is_held
    assert 0.2 <= SystemClock().monotonic() - before


def test_a_lock_that_was_stuck_is_held_again(tmp_path: Path, hold: Hold) -> None:
    """As soon as its holder is gone, and then it is waited for again."""
    holder = hold(tmp_path / "lock")
    lock = ContentionLock(str(tmp_path / "lock"), FakeClock(), wait_s=0.1)
    with lock.held() as is_held:
        assert not is_held
    holder.kill()
    holder.wait()
    with lock.held() as is_held:
        assert is_held
    assert lock._stuck_until == float("-inf")


@pytest.mark.parametrize("broken", ["file/lock", "."])
def test_a_broken_lock_is_done_without(tmp_path: Path, broken: str) -> None:
    """Where a lock cannot even be opened, work goes on without it."""
    (tmp_path / "file").touch()
    with ContentionLock(str(tmp_path / broken), wait_s=0.1).held() as is_held:
        assert not is_held


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_done_without(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No soft lock is left behind, no file descriptor, and nothing is waited for."""

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = ContentionLock(str(tmp_path / "lock"), wait_s=50)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with lock.held() as is_held:
            assert not is_held
    assert before == os.listdir("/proc/self/fd")
    assert {"lock"} >= set(os.listdir(tmp_path))


def test_a_lock_that_cannot_be_released_fails_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done under it stands."""
    real = fcntl.flock

    def refuse_unlock(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "no locks available")
        real(fd, operation)

    done = []
    with monkeypatch.context() as broken:
        broken.setattr(fcntl, "flock", refuse_unlock)
        lock = ContentionLock(str(tmp_path / "lock"), FakeClock(), wait_s=1_000.0)  # outlasts this test
        with lock.held() as is_held:
            done.append(is_held)
    assert [True] == done
    with lock.held() as is_held:  # only tried, as after a wait
        assert not is_held


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[BaseFileLock]:
    """Return the file locks that are made, all of which somebody goes on to refer to."""
    made: list[BaseFileLock] = []

    def make(path: str, **options: Any) -> BaseFileLock:
        made.append(FileLock(path, **options))
        return made[-1]

    monkeypatch.setattr(filelock, "FileLock", make)
    return made


def test_a_lock_is_let_go_whoever_still_refers_to_it(tmp_path: Path, tried: list[BaseFileLock]) -> None:
    """A traceback may, or a debugger; also after a step that failed."""
    for _ in range(2):
        with suppress(KeyError), ContentionLock(str(tmp_path / "lock"), wait_s=0.1).held() as is_held:
            assert is_held
            assert tried[-1].is_locked
            raise KeyError
        assert not tried[-1].is_locked


def test_a_stuck_lock_is_tried_without_a_wait(tmp_path: Path, hold: Hold, tried: list[BaseFileLock]) -> None:
    """And waited for again when it has been had."""
    holder = hold(tmp_path / "lock")
    lock = ContentionLock(str(tmp_path / "lock"), FakeClock(), wait_s=0.1)
    for _ in range(3):
        with lock.held() as is_held:
            assert not is_held
    holder.kill()
    holder.wait()
    for _ in range(2):
        with lock.held() as is_held:
            assert is_held
    assert [0.1, 0, 0, 0, 0.1] == [one.timeout for one in tried]


def test_errors_of_the_step_pass_through(tmp_path: Path) -> None:
    """What fails under the lock fails the same way, and the lock is free afterwards."""
    lock = ContentionLock(str(tmp_path / "lock"), wait_s=0.1)
    with pytest.raises(KeyError), lock.held():
        raise KeyError
    with lock.held() as is_held:
        assert is_held


# The journal, when the lock fails


class _Losing(SharedDirStore):
    """A store in which a commit loses its first tries, so that the lock is taken each time."""

    tries = 0

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Lose three times of four."""
        self.tries += 1
        return self.tries % 4 == 0 and super().append(log, number, value)


def _next(state: RunState) -> Entry:
    return EpochStarted(Epoch(0, 0, state.epoch.restart + 1, 0), "", ())


def test_commits_go_on_beside_a_frozen_holder(run_paths: RunPaths, hold: Hold) -> None:
    """The first commit that wants the lock waits for it, the later ones do not."""
    os.kill(hold(run_paths.lock).pid, signal.SIGSTOP)
    lock = ContentionLock(run_paths.lock, FakeClock(), wait_s=1.0)
    log = RunLog(_Losing(run_paths.root), FakeClock(), "n1", lock)
    for _ in range(100):  # as many waits would outlast this test
        log.commit(_next)
    assert Epoch(0, 0, 100, 0) == read_state(run_paths).epoch


def _break(lock: str, how: str) -> None:
    """Put another inode where the lock is, or none."""
    if how == "deleted":
        Path(lock).unlink(missing_ok=True)
        return
    fresh = Path(f"{lock}.fresh")
    fresh.touch(mode=0o600)
    fresh.rename(lock)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_two_holders_at_once_lose_and_double_nothing(run_paths: RunPaths, hold: Hold, how: str) -> None:
    """With the lock file taken away under its holders again and again the records alone decide."""
    names = [f"w{number}" for number in range(WRITERS)]
    writers = [_start(WRITER, run_paths.root, name, str(COMMITS)) for name in names]
    for writer in writers:
        _read(writer, "ready")
    hold(run_paths.lock)
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()

    def done() -> bool:
        _break(run_paths.lock, how)
        return all(writer.poll() is not None for writer in writers)

    wait_until(done, "all writers to end", timeout_s=50, interval_s=0.002)
    for writer in writers:
        writer.communicate()
    assert [0] * WRITERS == [writer.returncode for writer in writers]
    records = read_records(run_paths)
    assert list(range(1, WRITERS * COMMITS + 1)) == [record.number for record in records]
    assert dict.fromkeys(names, COMMITS) == Counter(record.by for record in records)
    restarts = [record.entry.epoch.restart for record in records if isinstance(record.entry, EpochStarted)]
    assert list(range(1, WRITERS * COMMITS + 1)) == restarts


def test_the_lock_can_really_have_two_holders(tmp_path: Path, hold: Hold) -> None:
    """What the test above relies on: on a new inode the lock is free although somebody holds it."""
    path = tmp_path / "lock"
    hold(path)
    _break(str(path), "replaced")
    with ContentionLock(str(path), wait_s=1).held() as is_held:
        assert is_held


def test_a_journal_without_locks_is_whole(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers in turn, each losing its first try, on a file system that has no locks."""

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    logs = [
        RunLog(_Losing(run_paths.root), FakeClock(), name, ContentionLock(run_paths.lock, FakeClock()))
        for name in ("a", "b")
    ]
    for log in logs * 5:
        log.commit(_next)
    assert Epoch(0, 0, 10, 0) == open_log(run_paths, "login").refresh().epoch
