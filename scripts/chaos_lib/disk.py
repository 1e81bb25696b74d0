"""A small disk of its own for the run directories, so that it can stall and run full for everybody."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SIZE = "512M"
_CHUNK = 1 << 20
_BLOCK = 4096


class DiskError(Exception):
    """The disk could not be made or changed; the text is what the program said."""


@dataclass(frozen=True)
class Disk:
    """A mounted file system that lies in one file.

    Attributes:
        image: the file.
        place: where it is mounted.
    """

    image: Path
    place: Path

    @classmethod
    def make(cls, image: Path, place: Path) -> Disk:
        """Make and mount it; everybody may write to it.

        Raises:
            DiskError: it cannot be mounted (for example in a container without loop devices).
        """
        disk = cls(image, place)
        place.mkdir(parents=True)
        _call(["truncate", "-s", SIZE, str(image)])
        lazy = "lazy_itable_init=1,lazy_journal_init=1"
        _call(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", lazy, str(image)])
        # noatime: whoever only reads must not hang in a stall
        _call(["mount", "-o", "loop,noatime", str(image), str(place)])
        place.chmod(0o1777)
        return disk

    def stall(self) -> None:
        """Let every change hang until `go_on`."""
        _call(["fsfreeze", "--freeze", str(self.place)])

    def go_on(self) -> None:
        """End a stall; nothing happens if there is none."""
        with contextlib.suppress(DiskError):
            _call(["fsfreeze", "--unfreeze", str(self.place)])

    @property
    def _filler(self) -> Path:
        return self.place / ".filler"

    def fill(self) -> None:
        """Leave no byte free."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            offset = 0
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file, offset, _CHUNK)
                    offset += _CHUNK
            with contextlib.suppress(OSError):
                while True:
                    offset += os.pwrite(file, b"\0" * _BLOCK, offset)
        finally:
            os.close(file)

    def free(self) -> None:
        """Undo `fill`."""
        self._filler.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount and delete it."""
        self.go_on()
        _call(["umount", "--lazy", str(self.place)])
        self.image.unlink()


def _call(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise DiskError(f"{' '.join(argv)}: {done.stderr.strip()}")
