"""A disk that goes bad below one directory, for all programs that a test starts: C's calls fail, not ours."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("bad_disk.c")
_NUMBERS = struct.Struct("7q")


class Changes(NamedTuple):
    """What has happened since the disk was told how to be."""

    seen: int  # changes below the directory
    hit: int  # of them


class BadDisk:
    """Lets changes below a directory fail, be slow or be done in part.

    Args:
        place: an empty directory for the library.
        root: the directory whose disk it is.
    """

    def __init__(self, place: Path, root: Path) -> None:
        library, control = place / "bad_disk.so", place / "bad_disk"
        argv = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(argv, check=True, timeout=120)
        control.write_bytes(bytes(_NUMBERS.size))
        self._file = control.open("r+b")
        self._numbers = mmap.mmap(self._file.fileno(), _NUMBERS.size)
        preloaded = {"LD_PRELOAD": str(library), "BAD_DISK": str(root), "BAD_DISK_CONTROL": str(control)}
        self.environ = {**os.environ, **preloaded}

    def be(
        self, *, since: int = 0, until: int = 0, error: int = 0, delay_s: float = 0, most: int = 0
    ) -> None:
        """Behave in some way from now on.

        Args:
            since: the first change that is hit; 0: none is.
            until: the change from which on none is hit; 0: all are.
            error: with which changes fail; 0: they do not.
            delay_s: how long they take [s].
            most: the most bytes of one write; 0: all.
        """
        self._numbers[:] = _NUMBERS.pack(0, since, until, error, int(delay_s * 1e6), most, 0)

    def changes(self) -> Changes:
        """Return what has happened since then."""
        seen, *_, hit = _NUMBERS.unpack(self._numbers[:])
        return Changes(seen, hit)

    def close(self) -> None:
        """Give the numbers back."""
        self._numbers.close()
        self._file.close()


def why_no_bad_disk() -> str:
    """Return why there can be none here; empty if there can."""
    return "" if shutil.which("cc") else "no C compiler here"
