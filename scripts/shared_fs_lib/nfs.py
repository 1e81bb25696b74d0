"""Serve NFS with the server of a Linux kernel, mount it with the client of another."""

from __future__ import annotations

import subprocess

from . import exec_client
from .layout import SERVER, Kind, Layout, data_address
from .state import State

LEASE_S = 10
"""The kernel's default of 90 s would make every test of a lost client take that long."""

DISK = "2G"

SERVE = f"""
set -e
mount /dev/ubda "$1"
chmod 755 "$1"
mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs
mount -t nfsd none /proc/fs/nfsd
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
rpcbind -w
rpc.statd --no-notify
exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure "*:$1"
echo {LEASE_S} >/proc/fs/nfsd/nfsv4leasetime
echo {LEASE_S} >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd 8
rpc.mountd
echo Y >/proc/fs/nfsd/v4_end_grace
"""
"""There was no server before this one, so nobody has anything to claim back in a grace period."""

MOUNT = """
set -e
if [ "$1" = 3 ]; then
    rpcbind -w
    rpc.statd --no-notify
fi
mount -t nfs -o "vers=$1,proto=tcp" "$2" "$3"
"""


def make_disk(layout: Layout) -> None:
    """Make an empty disk for the server."""
    subprocess.run(["truncate", "-s", DISK, str(layout.image)], check=True)
    made = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(layout.image)]
    subprocess.run(made, check=True)


def serve(layout: Layout, state: State) -> None:
    """Serve the disk."""
    words = ["sh", "-c", SERVE, "serve", str(layout.served)]
    exec_client.run(layout, SERVER, state.nodes[SERVER], words)


def mount(layout: Layout, state: State, client: str) -> None:
    """Mount it on a client, with default options."""
    version, path = ("3", layout.served) if state.kind is Kind.NFS3 else ("4.2", "/")
    source = f"{data_address(SERVER)}:{path}"
    words = ["sh", "-c", MOUNT, "mount", version, source, str(layout.mount_point)]
    exec_client.run(layout, client, state.nodes[client], words)
