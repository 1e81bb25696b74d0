"""File names, node names and addresses of one shared file system."""

from __future__ import annotations

import enum
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

SERVER = "server"
PORT = 7000
MAX_CLIENTS = 16


class Kind(enum.Enum):
    """A file system and the protocol that its clients speak."""

    GLUSTER = "gluster"
    NFS3 = "nfs3"
    NFS4 = "nfs4"

    @property
    def needs_kernel(self) -> bool:
        """Whether every node is a kernel of its own (else a set of namespaces)."""
        return self is not Kind.GLUSTER


def client_name(number: int) -> str:
    """Host name of client `number` (1, 2, ...)."""
    return f"client{number}"


def number_of(node: str) -> int:
    """Last part of a node's addresses."""
    return 1 if node == SERVER else 10 + int(node.removeprefix("client"))


def data_address(node: str) -> str:
    """Address in the network that file system and programs use."""
    return f"10.0.0.{number_of(node)}"


def control_address(node: str) -> str:
    """Address in the network over which this program reaches a node, cut off or not."""
    return f"10.0.1.{number_of(node)}"


CONTROLLER_ADDRESS = "10.0.1.254"


def default_directory() -> Path:
    """Directory used when `--dir` is not given."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / "shared-fs"  # noqa: S108 - documented default


@dataclass(frozen=True)
class Layout:
    """Owns every file name below one directory, and the name of its network namespace."""

    root: Path

    @property
    def network(self) -> str:
        """Network namespace of the switch; one per directory."""
        return "sf" + hashlib.sha256(str(self.root).encode()).hexdigest()[:10]

    @property
    def state_file(self) -> Path:
        """What the commands remember; also marks the directory as ours."""
        return self.root / "shared-fs.json"

    @property
    def lock(self) -> Path:
        """Held by the command that changes something."""
        return self.root / "lock"

    @property
    def mount_point(self) -> Path:
        """Where every client has the shared file system."""
        return self.root / "mnt"

    @property
    def results(self) -> Path:
        """Seen by the machine and, writable, by every client; no network between."""
        return self.root / "results"

    @property
    def logs(self) -> Path:
        """Consoles of the nodes and logs of the daemons."""
        return self.root / "log"

    @property
    def etc(self) -> Path:
        """What nodes see as /etc/hosts and /etc/resolv.conf."""
        return self.root / "etc"

    @property
    def plans(self) -> Path:
        """One file per node: what it shall look like."""
        return self.root / "plan"

    @property
    def served(self) -> Path:
        """Where the server keeps what it serves: a mount point (NFS) or the brick (Gluster)."""
        return self.root / "served"

    @property
    def image(self) -> Path:
        """Disk of the NFS server."""
        return self.root / "disk.img"

    @property
    def daemon_state(self) -> Path:
        """Working directory of glusterd."""
        return self.root / "glusterd"

    def log(self, node: str) -> Path:
        """Console of a node."""
        return self.logs / f"{node}.log"

    def plan(self, node: str) -> Path:
        """Plan of a node."""
        return self.plans / f"{node}.json"
