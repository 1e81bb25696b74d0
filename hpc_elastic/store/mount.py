"""The mount that holds a path: whether other machines see it, and the age of its listings.

Pure, but for `mount_at`.

Liveness rests on directory listings, so the one number that matters of a file system's caching is
how old a listing can be. The numbers for NFS, Gluster, MooseFS, sshfs and local disks were measured
with several clients; the others are the defaults that their documentation names.
"""

from __future__ import annotations

import os
import re
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple

_POINT, _OPTIONS = 4, 5  # fields of a line before the separator
_FIELDS_AFTER = 3  # type, source, options of the file system
MOUNTINFO = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """One mounted file system."""

    point: str
    kind: str  # as the kernel names it: nfs4, lustre, ext4, fuse.sshfs; "unknown" if it has no entry
    source: str = ""  # server and path, or the device
    options: tuple[str, ...] = ()  # of the mount and of the file system; ``name`` or ``name=value``

    def option(self, name: str) -> str | None:
        """Return the value of an option, empty for one without a value, None if it is not set."""
        for each in reversed(self.options):
            key, _, value = each.partition("=")
            if key == name:
                return value
        return None

    @property
    def is_nfs(self) -> bool:
        """Whether this is an NFS client's mount."""
        return self.kind in ("nfs", "nfs4")

    @property
    def has_coarse_times(self) -> bool:
        """Whether clients tell that a directory has changed by its times alone, which advance in steps.

        So does NFS 3: a name that is added in the step in which a client has just listed the
        directory stays hidden from that client until something else changes (measured: for ever).
        """
        return self.kind == "nfs" and not (self.option("vers") or "3").startswith("4")


UNKNOWN = Mount("/", "unknown")

# Disks and memory of one machine: its processes share one cache.
DISKS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "squashfs", "vfat", "erofs"}
)
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "proc", "sysfs", "hugetlbfs"})
_LOCAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/proc", "/sys")  # noqa: S108 - to refuse them

_FRESH_S = 0.5  # the worst listing measured was 0.24 s old, on NFS v4.2; 19 ms on Gluster
_CAREFUL_S = 2.0  # most FUSE and SMB clients cache for a second by default; twice that
_NFS_DIRECTORY_CACHE_S = 60.0  # acdirmax unless the mount says otherwise
_NEVER_S = 3600.0  # the client need not ask again at all

_STALENESS_S = {
    # Opening a directory asks the server (close-to-open), or the server calls caches back.
    **dict.fromkeys(("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "afs", "panfs", "wekafs"), _FRESH_S),
    **dict.fromkeys(("fuse.glusterfs", "fuse.mfs", "fuse.moosefs", "fuse.ceph", "fuse.ceph-fuse"), _FRESH_S),
    **dict.fromkeys(DISKS | MEMORY, 0.0),
    "fuse.sshfs": 20.0,  # its own directory cache; 17 s were measured
    "fuse.rclone": 300.0,  # --dir-cache-time
    "fuse.s3fs": 900.0,  # stat_cache_expire
}


def parse_mountinfo(text: str) -> list[Mount]:
    """Read ``/proc/self/mountinfo``."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) <= _POINT or not after:
            continue
        kind, source, options = (*after.split(" "), "", "")[:_FIELDS_AFTER]
        own = fields[_OPTIONS] if len(fields) > _OPTIONS else ""
        words = tuple(word for word in f"{own},{options}".split(",") if word)
        found.append(Mount(_unescape(fields[_POINT]), kind, _unescape(source), words))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount that holds a resolved path; of mounts on the same point the last one counts."""
    best = UNKNOWN
    for mount in mounts:
        if is_below(path, mount.point) and len(mount.point) >= len(best.point):
            best = mount
    return best


def mount_at(path: str, mountinfo: str = MOUNTINFO) -> Mount:
    """Return the mount that holds a path, `UNKNOWN` where the system does not tell.

    Args:
        path: need not exist; symbolic links are followed.
        mountinfo: where the kernel lists the mounts.
    """
    resolved = os.path.realpath(path)
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            return mount_of(resolved, parse_mountinfo(file.read()))
    except OSError:
        return UNKNOWN


class Sharing(Enum):
    """Whether other machines see a directory."""

    SHARED = "shared"
    UNCERTAIN = "uncertain"  # a local disk here; may be the file server's own
    LOCAL = "local"


def sharing(path: str, mount: Mount) -> Sharing:
    """Judge whether other machines see a resolved path."""
    if mount.kind in MEMORY:
        return Sharing.LOCAL
    if mount.kind not in DISKS:
        return Sharing.SHARED
    if any(is_below(path, place) for place in _LOCAL_PLACES):
        return Sharing.LOCAL
    return Sharing.UNCERTAIN


def listing_staleness(mount: Mount) -> float:
    """Return how old a directory listing on this mount can be [s]."""
    if mount.is_nfs:
        return _nfs_staleness(mount)
    if mount.kind == "9p" and mount.option("cache") in ("loose", "fscache", "mmap"):
        return _NEVER_S
    return _STALENESS_S.get(mount.kind, _CAREFUL_S)


def _nfs_staleness(mount: Mount) -> float:
    """Return the same for NFS.

    Opening a directory asks the server whether it has changed, with any acdirmin and acdirmax:
    with the default of 30 s and with actimeo=600 names of another client were listed within 12 ms.
    Only ``nocto`` does without asking, for as long as acdirmax allows (with actimeo=20 a name was not
    listed for 20 s), unless no name is cached (lookupcache=none) or no attribute (noac).
    """
    asks = mount.option("noac") is not None or mount.option("lookupcache") == "none"
    if asks or mount.option("nocto") is None:
        return _FRESH_S
    given = mount.option("acdirmax") or mount.option("actimeo") or ""
    return max(_FRESH_S, float(given) if given.isdecimal() else _NFS_DIRECTORY_CACHE_S)


LEASE_MARGIN_S = 0.5  # added to a beat by a busy node and server


def safe_lease(mount: Mount, heartbeat_interval: float, lease: float) -> tuple[float, str]:
    """Return a lease in which a living node is seen to live, in spite of the mount's caching.

    A beat may come an interval late, one may be missed, and the listing that shows it may be as old
    as the mount allows; a shorter lease would declare living nodes lost.

    Args:
        mount: the mount of the run directory.
        heartbeat_interval: between two signs of life [s].
        lease: the wanted lease [s].

    Returns:
        The lease to use [s], and why it is longer than the wanted one; empty if it is not.
    """
    stale = listing_staleness(mount)
    least = 2 * heartbeat_interval + stale + LEASE_MARGIN_S
    if lease >= least:
        return lease, ""
    where = f"{mount.kind} on {mount.point}"
    return least, (
        f"a lease of {lease:g} s is too short for {where}, where a listing can be {stale:g} s old: "
        f"with a heartbeat each {heartbeat_interval:g} s a living node is seen within {least:g} s"
    )
