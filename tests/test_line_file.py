"""Files of lines, one per process."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpc_elastic.line_file import LineFile

FORK = """
import os, sys
from hpc_elastic.line_file import LineFile
file = LineFile(sys.argv[1], "lines", ".txt")
file.write_line("parent")
pid = os.fork()
if pid == 0:
    file.write_line("child")
    os._exit(0)
os.waitpid(pid, 0)
file.write_line("parent again")
"""


def _write_many(directory: Path) -> None:
    file = LineFile(directory, "lines", ".txt")
    for number in range(200):
        file.write_line(f"{os.getpid()} {number}")


def test_a_file_is_made_by_its_first_line(tmp_path: Path) -> None:
    """Nothing is there before the first line; then a directory and a file of this user alone."""
    file = LineFile(tmp_path / "new", "lines", ".txt", header="name")
    assert [] == os.listdir(tmp_path)
    file.write_line("one")
    file.write_line("zwölf \udc80")
    assert f"lines-{os.uname().nodename}-{os.getpid()}.txt" == os.path.basename(file.path)
    assert "name\none\nzwölf \\udc80\n" == Path(file.path).read_text(encoding="utf-8")
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (tmp_path / "new", file.path)]
    assert [0o700, 0o600] == modes


def test_a_closed_file_goes_on(tmp_path: Path) -> None:
    """A line after `close` is appended, and the header is there once."""
    file = LineFile(tmp_path, "lines", ".txt", header="name")
    for text in ("one", "two"):
        file.write_line(text)
        file.close()
    assert "name\none\ntwo\n" == Path(file.path).read_text(encoding="utf-8")


def test_every_process_has_its_own(tmp_path: Path) -> None:
    """Processes that write at the same time do not meet in a file."""
    spawning = multiprocessing.get_context("spawn")
    children = [spawning.Process(target=_write_many, args=(tmp_path,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    expected = {f"{child.pid}": [f"{child.pid} {number}" for number in range(200)] for child in children}
    found = {path.stem.rpartition("-")[2]: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert expected == found


def test_a_forked_child_has_its_own(tmp_path: Path) -> None:
    """A child that inherits the open file writes another one."""
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True)
    assert ["child\n", "parent\nparent again\n"] == sorted(path.read_text() for path in tmp_path.iterdir())


def test_lines_of_threads_stay_whole(tmp_path: Path) -> None:
    """Threads share the file line by line."""
    file = LineFile(tmp_path, "lines", ".txt")
    line = "x" * 1000

    def write() -> None:
        for _ in range(100):
            file.write_line(line)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line] * 400 == Path(file.path).read_text().splitlines()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Nobody can have another file written by a link in the way."""
    file = LineFile(tmp_path, "lines", ".txt")
    (tmp_path / "victim").touch()
    os.symlink(tmp_path / "victim", file.path)
    with pytest.raises(OSError, match="symbolic links"):
        file.write_line("text")


def test_no_reader_of_a_pipe_is_waited_for(tmp_path: Path) -> None:
    """Somebody else may have put one in the way, and never read from it."""
    file = LineFile(tmp_path, "lines", ".txt")
    os.mkfifo(file.path)
    with pytest.raises(OSError, match="No such device"):
        file.write_line("text")


def test_a_missing_parent_is_told(tmp_path: Path) -> None:
    """One directory is made, not a whole path that may be a mistake."""
    file = LineFile(tmp_path / "a" / "b", "lines", ".txt")
    with pytest.raises(FileNotFoundError):
        file.write_line("text")
