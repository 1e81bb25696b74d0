"""Which file systems other machines see."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.mounts import Mount, Sharing, mount_of, parse_mountinfo, sharing

INFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw
41 22 0:45 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
42 22 0:46 / /mnt/my\040disk rw - lustre a@tcp:/fs rw
43 22 0:47 / /tmp/shared rw - fuse.glusterfs a:/v rw
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
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str, judged: Sharing) -> None:
    """A network file system is shared wherever it is mounted; /tmp on a disk is not."""
    mount = mount_of(path, parse_mountinfo(INFO))
    assert (kind, judged) == (mount.kind, sharing(path, mount))


def test_without_mounts_the_file_system_is_unknown() -> None:
    """An unknown file system is not refused."""
    mount = mount_of("/x", [])
    assert (Mount("/", "unknown"), Sharing.SHARED) == (mount, sharing("/x", mount))
