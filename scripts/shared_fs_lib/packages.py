"""The Debian packages that the file systems need."""

from __future__ import annotations

import shutil

from devcluster_lib import packages
from devcluster_lib.processes import SYSTEM_PATH

PARTS = {
    "user-mode-linux": "linux.uml",
    "nfs-kernel-server": "rpc.nfsd",
    "nfs-common": "mount.nfs",
    "rpcbind": "rpcbind",
    "glusterfs-server": "glusterd",
    "glusterfs-cli": "gluster",
    "glusterfs-client": "mount.glusterfs",
    "e2fsprogs": "mkfs.ext4",
    "kmod": "insmod",
    "iproute2": "ip",
    "util-linux": "nsenter",
}
"""Package -> a program that shows it is there, whoever installed it."""


def missing() -> list[str]:
    """Packages of which the program is not on this machine."""
    return [name for name, program in PARTS.items() if shutil.which(program, path=SYSTEM_PATH) is None]


def install() -> list[str]:
    """Install what is missing; the packaged services are not started.

    Returns:
        The packages that were installed.

    Raises:
        DevClusterError: apt is not here or failed.
    """
    wanted = missing()
    if wanted:
        packages.fetch(wanted, missing)
    return wanted
