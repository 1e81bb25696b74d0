"""A worker goes on as a copy only if every file of the imported modules is as it was."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.processes.preload import changes

_FILES = 100


def test_the_stamps_of_files_are_the_same_however_many_looks_are_made_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes, and one that goes, are found."""
    paths = [str(tmp_path / str(number)) for number in range(_FILES)]
    for path in paths:
        Path(path).write_text("x")
    alone = changes.look(paths)
    assert _FILES == len(alone)
    monkeypatch.setattr(changes, "_ALONE_S", 0.0)
    assert alone == changes.look(paths)
    assert "" == changes.first_changed(alone, changes.look(paths))
    Path(paths[70]).write_text("xy")
    assert paths[70] == changes.first_changed(alone, changes.look(paths))
    Path(paths[8]).unlink()
    assert paths[8] == changes.first_changed(alone, changes.look(paths))


def test_slow_files_are_looked_at_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look waits until eight have begun; one after another would never end."""
    own, met = os.stat, threading.Barrier(8)

    def slow(path: str) -> os.stat_result:
        if threading.current_thread() is not threading.main_thread():
            met.wait(60.0)
        return own(path)

    monkeypatch.setattr(changes, "_ALONE_S", 0.0)
    monkeypatch.setattr(os, "stat", slow)
    assert 17 == len(changes.look([str(tmp_path / str(number)) for number in range(17)]))


def test_files_are_looked_at_where_no_thread_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of processes costs time alone."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(changes, "_ALONE_S", 0.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert 17 == len(changes.look([str(tmp_path / str(number)) for number in range(17)]))


@pytest.fixture
def watcher() -> Iterator[changes.Watcher]:
    """Return a process that has taken the stamps of the files of this one."""
    link, other = socket.socketpair()
    watcher = changes.Watcher(link)
    assert watcher.finding() is not None
    yield watcher
    os.kill(watcher.pid, signal.SIGKILL)
    os.waitpid(watcher.pid, 0)
    link.close()
    other.close()


def test_a_round_that_begins_during_the_look_of_an_ended_one_has_its_own(watcher: changes.Watcher) -> None:
    """Nobody waits for the first verdict any more; the second one counts."""
    os.kill(watcher.pid, signal.SIGSTOP)
    watcher.begin()
    watcher.begin()
    os.kill(watcher.pid, signal.SIGCONT)
    found = [watcher.finding() for _ in range(2)]
    assert None not in found
    assert changes.is_unchanged(watcher.keep_verdict())


def test_a_process_that_ends_with_a_look_before_it_has_no_finding(watcher: changes.Watcher) -> None:
    """The kernel tells such an end in another way."""
    os.kill(watcher.pid, signal.SIGSTOP)
    watcher.begin()
    os.kill(watcher.pid, signal.SIGKILL)
    assert watcher.finding() is None
    assert not changes.is_unchanged(watcher.keep_verdict())


@pytest.mark.parametrize("told", [b"y", b""], ids=["unchanged", "no verdict"])
def test_a_verdict_is_the_same_for_all_workers_that_share_it(told: bytes) -> None:
    """A pipe that is closed without a word is none in favour."""
    reading, writing = os.pipe()
    os.write(writing, told)
    os.close(writing)
    assert [bool(told)] * 2 == [changes.is_unchanged(reading) for _ in range(2)]
    os.close(reading)
