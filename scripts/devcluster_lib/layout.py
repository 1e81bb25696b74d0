"""File names in a cluster directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def default_directory() -> Path:
    """Directory used when `--dir` is not given."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / "devcluster"  # noqa: S108 - documented default


@dataclass(frozen=True)
class Layout:
    """Owns every file name below one cluster directory."""

    root: Path

    @property
    def state_file(self) -> Path:
        """What the commands remember; also marks the directory as ours."""
        return self.root / "devcluster.json"

    @property
    def lock(self) -> Path:
        """Held by the command that changes the cluster."""
        return self.root / "lock"

    @property
    def shared(self) -> Path:
        """Where users put run directories (mode 1777)."""
        return self.root / "shared"

    @property
    def conf(self) -> Path:
        """Slurm's configuration directory."""
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        """Value for SLURM_CONF."""
        return self.conf / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """Seen as /etc/hosts on every node."""
        return self.conf / "hosts"

    @property
    def munge_key(self) -> Path:
        """Key of this cluster's munged."""
        return self.conf / "munge.key"

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.root / "run"

    @property
    def munge_socket(self) -> Path:
        """Socket of this cluster's munged."""
        return self.run / "munge" / "munge.sock"

    @property
    def mysql_socket(self) -> Path:
        """Socket of this cluster's MariaDB."""
        return self.run / "mysql" / "mysql.sock"

    @property
    def logs(self) -> Path:
        """Logs of all daemons."""
        return self.root / "log"

    @property
    def controller_state(self) -> Path:
        """StateSaveLocation of slurmctld."""
        return self.root / "state"

    @property
    def spool(self) -> Path:
        """One spool directory per slurmd."""
        return self.root / "spool"

    @property
    def devices(self) -> Path:
        """Fake GPU devices."""
        return self.root / "dev"

    @property
    def database(self) -> Path:
        """MariaDB's data; survives `stop`."""
        return self.root / "mysql"
