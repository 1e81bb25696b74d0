"""Which file system a path is on, and whether other machines can see it. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_POINT = 4  # field of the mount point
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "proc", "sysfs", "hugetlbfs"})
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "squashfs", "vfat", "erofs"}
)
_LOCAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/proc", "/sys")  # noqa: S108 - to refuse them


class Mount(NamedTuple):
    """One mounted file system."""

    point: str
    kind: str


class Sharing(Enum):
    """Whether other machines see a directory."""

    SHARED = "shared"
    UNCERTAIN = "uncertain"  # a local disk here; may be the file server's own
    LOCAL = "local"


def parse_mountinfo(text: str) -> list[Mount]:
    """Read ``/proc/self/mountinfo``."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) > _POINT and after:
            found.append(Mount(_unescape(fields[_POINT]), after.split(" ")[0]))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount that holds a resolved path; of mounts on the same point the last one counts."""
    best = Mount("/", "unknown")
    for mount in mounts:
        if is_below(path, mount.point) and len(mount.point) >= len(best.point):
            best = mount
    return best


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def sharing(path: str, mount: Mount) -> Sharing:
    """Judge whether other machines see a resolved path."""
    if mount.kind in _MEMORY:
        return Sharing.LOCAL
    if mount.kind not in _LOCAL:
        return Sharing.SHARED
    if any(is_below(path, place) for place in _LOCAL_PLACES):
        return Sharing.LOCAL
    return Sharing.UNCERTAIN
