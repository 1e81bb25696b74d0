"""Which file system holds a path, who else sees it, and how long a lease it allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.store.mount import (
    UNKNOWN,
    Mount,
    Sharing,
    listing_staleness,
    mount_at,
    mount_of,
    parse_mountinfo,
    safe_lease,
    sharing,
)

INFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw
41 22 0:45 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2,nocto,acdirmax=120,local_lock=none
42 22 0:46 / /mnt/my\040disk rw - lustre a@tcp:/fs rw
43 22 0:47 / /tmp/shared rw - fuse.glusterfs a:/v rw
44 22 0:48 / /mnt/keys rw - fuse.sshfs me@login:/my\040dir rw,user_id=0
45 22 0:49 / /auto rw - autofs /etc/auto.net rw
46 45 0:50 / /auto rw - nfs server:/auto rw,vers=3
"""


@pytest.mark.parametrize(
    ("path", "kind", "judged"),
    [
        ("/home/me/run", "nfs4", Sharing.SHARED),
        ("/homework/run", "ext4", Sharing.UNCERTAIN),
        ("/mnt/my disk/run", "lustre", Sharing.SHARED),
        ("/dev/shm/run", "tmpfs", Sharing.LOCAL),
        ("/tmp/run", "ext4", Sharing.LOCAL),
        ("/tmp/shared/run", "fuse.glusterfs", Sharing.SHARED),
        ("/scratch/run", "ext4", Sharing.UNCERTAIN),
        ("/auto/run", "nfs", Sharing.SHARED),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str, judged: Sharing) -> None:
    """A network file system is shared wherever it is mounted; /tmp on a disk is not."""
    mount = mount_of(path, parse_mountinfo(INFO))
    assert (kind, judged) == (mount.kind, sharing(path, mount))


@pytest.mark.parametrize(
    ("path", "coarse"), [("/auto/run", True), ("/home/me/run", False), ("/scratch/run", False)]
)
def test_nfs_3_tells_changes_by_times_alone(path: str, coarse: bool) -> None:
    """Later versions have a counter, and disks of this machine need neither."""
    assert coarse is mount_of(path, parse_mountinfo(INFO)).has_coarse_times


def test_without_mounts_the_file_system_is_unknown(tmp_path: Path) -> None:
    """An unknown file system is not refused."""
    mount = mount_of("/x", [])
    assert (Mount("/", "unknown"), Sharing.SHARED) == (mount, sharing("/x", mount))
    assert UNKNOWN == mount_at("/x", str(tmp_path / "no-mountinfo"))


def test_source_and_options_are_read() -> None:
    """Those of the mount come first, then those of the file system; blanks in names are blanks."""
    nfs = mount_of("/home", parse_mountinfo(INFO))
    assert ("server:/home", ("rw", "relatime", "rw", "vers=4.2")) == (nfs.source, nfs.options[:4])
    assert ["4.2", "", None] == [nfs.option(name) for name in ("vers", "nocto", "soft")]
    assert "me@login:/my dir" == mount_of("/mnt/keys", parse_mountinfo(INFO)).source


@pytest.mark.parametrize("line", ["", "garbage", "1 2 3 - ", "22 1 8:1 / /x - ext4", "22 1 8:1 / - a b c"])
def test_lines_that_cannot_be_read_are_passed_over(line: str) -> None:
    """Whatever stands there, nothing is raised."""
    assert all(mount.kind == "ext4" for mount in parse_mountinfo(line))


def test_the_mount_of_a_real_path_is_found(tmp_path: Path) -> None:
    """Also of one that does not exist yet, and through a symbolic link."""
    (tmp_path / "link").symlink_to("/proc")
    assert "proc" == mount_at(str(tmp_path / "link")).kind
    found = mount_at(str(tmp_path / "not" / "there"))
    assert os.path.realpath(tmp_path).startswith(found.point)
    assert found.source


def nfs(*options: str) -> Mount:
    """Return an NFS mount."""
    return Mount("/home", "nfs4", "server:/home", options)


@pytest.mark.parametrize(
    ("mount", "stale_s"),
    [
        (Mount("/", "ext4"), 0),
        (Mount("/dev/shm", "tmpfs"), 0),
        (nfs(), 0.5),
        (nfs("acdirmin=300", "acdirmax=600"), 0.5),  # opening a directory asks the server all the same
        (nfs("lookupcache=none"), 0.5),
        (nfs("nocto"), 60),
        (nfs("nocto", "acdirmax=600"), 600),
        (nfs("nocto", "actimeo=90"), 90),
        (nfs("nocto", "acdirmax=0"), 0.5),
        (nfs("nocto", "noac"), 0.5),
        (nfs("nocto", "lookupcache=none", "acdirmax=600"), 0.5),
        (nfs("nocto", "lookupcache=pos"), 60),
        (Mount("/w", "lustre"), 0.5),
        (Mount("/w", "fuse.glusterfs"), 0.5),
        (Mount("/w", "fuse.sshfs"), 20),
        (Mount("/w", "fuse.never-heard-of"), 2),
        (Mount("/w", "9p", "", ("cache=loose",)), 3600),
        (Mount("/w", "9p", "", ("cache=none",)), 2),
        (UNKNOWN, 2),
    ],
    ids=str,
)
def test_what_a_file_system_caches_is_known(mount: Mount, stale_s: float) -> None:
    """As measured, or as its documentation says; what is not known is doubted."""
    assert stale_s == listing_staleness(mount)


@pytest.mark.parametrize("kind", ["ext4", "nfs", "nfs4", "lustre", "gpfs", "beegfs", "fuse.glusterfs"])
@pytest.mark.parametrize("heartbeat_s", [1.0, 1.5])
def test_the_default_lease_fits_ordinary_mounts(kind: str, heartbeat_s: float) -> None:
    """Nothing is said and nothing is changed there."""
    assert (4.0, "") == safe_lease(Mount("/w", kind), heartbeat_s, 4.0)


@pytest.mark.parametrize(
    ("mount", "heartbeat_s", "lease_s"),
    [
        (Mount("/keys", "fuse.sshfs"), 1.5, 23.5),
        (nfs("nocto", "acdirmax=600"), 1.0, 602.5),
        (Mount("/w", "fuse.other"), 2.0, 6.5),
        (Mount("/", "ext4"), 2.0, 4.5),
    ],
)
def test_a_lease_that_is_too_short_is_raised(mount: Mount, heartbeat_s: float, lease_s: float) -> None:
    """To two heartbeats, the age of a listing and a margin; the reason names the numbers."""
    used, reason = safe_lease(mount, heartbeat_s, 4.0)
    assert lease_s == used
    assert f"a lease of 4 s is too short for {mount.kind} on {mount.point}" in reason
    assert (used, "") == safe_lease(mount, heartbeat_s, used)
