"""atomic_write: the whole file or the old one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic import worker
from hpc_elastic.worker.progress import AtomicWrite

KILLED_WHILE_WRITING = """
import os, signal, sys
from hpc_elastic.worker.progress import AtomicWrite
with AtomicWrite(sys.argv[1], round_number=1) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_whole_file_appears(tmp_path: Path) -> None:
    """After the block the file has the new content and nothing else is left."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"old")
    with worker.atomic_write(target) as file:
        file.write(b"new")
        assert b"old" == target.read_bytes()
    assert b"new" == target.read_bytes()
    assert ["model.pt"] == os.listdir(tmp_path)


def test_exception_leaves_the_old_file(tmp_path: Path) -> None:
    """An exception while writing changes nothing."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"old")

    def fail_while_writing() -> None:
        with worker.atomic_write(target) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_writing()
    assert b"old" == target.read_bytes()
    assert ["model.pt"] == os.listdir(tmp_path)


def test_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    """A killed writer leaves the old file; the next round removes what it left behind."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, target], check=False)
    assert -signal.SIGKILL == ended.returncode
    assert b"old" == target.read_bytes()
    assert 2 == len(os.listdir(tmp_path))
    with AtomicWrite(target, round_number=2) as file:
        file.write(b"new")
    assert b"new" == target.read_bytes()
    assert ["model.pt"] == os.listdir(tmp_path)


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The last of two live writers wins, whole, and the other's work is not torn."""
    target = tmp_path / "model.pt"
    with AtomicWrite(target, round_number=2) as late:
        late.write(b"late")
        with AtomicWrite(target, round_number=1) as early:
            early.write(b"early")
        assert b"early" == target.read_bytes()
    assert b"late" == target.read_bytes()
