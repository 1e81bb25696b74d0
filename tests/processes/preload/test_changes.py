"""A worker goes on as a copy only if every file of the imported modules is as it was."""

from __future__ import annotations

import os
import threading
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


@pytest.mark.parametrize("told", [b"y", b""], ids=["unchanged", "no verdict"])
def test_a_verdict_is_the_same_for_all_workers_that_share_it(told: bytes) -> None:
    """A pipe that is closed without a word is none in favour."""
    reading, writing = os.pipe()
    os.write(writing, told)
    os.close(writing)
    assert [bool(told)] * 2 == [changes.is_unchanged(reading) for _ in range(2)]
    os.close(reading)
