"""What the user may choose about a cluster."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .errors import DevClusterError

MAX_NODES = 64
MAX_GPUS = 16


class Preempt(enum.Enum):
    """What happens to a job in partition `low` when `high` needs its nodes."""

    REQUEUE = "REQUEUE"
    CANCEL = "CANCEL"
    SUSPEND = "SUSPEND"
    OFF = "OFF"


class Tracker(enum.Enum):
    """How slurmd finds the processes of a job step (ProctrackType): cgroup is that of version 1."""

    LINUXPROC = "linuxproc"
    CGROUP = "cgroup"
    CGROUP2 = "cgroup2"

    @property
    def uses_cgroups(self) -> bool:
        """Whether each node has cgroups of its own."""
        return self is not Tracker.LINUXPROC

    @property
    def plugin(self) -> str:
        """Slurm's name for it; which version of cgroups it takes, cgroup.conf says."""
        return "cgroup" if self.uses_cgroups else "linuxproc"


class Auth(enum.Enum):
    """How Slurm's programs prove to each other who they are (AuthType)."""

    MUNGE = "munge"
    SLURM = "slurm"


@dataclass(frozen=True)
class Settings:
    """One cluster as the user asked for it.

    Attributes:
        nodes: number of compute nodes, named node1..nodeN.
        gpus: fake GPUs per node.
        last_gpus: those of the last node, if it has fewer.
        cpus: CPUs that each node reports; they may exceed those of the machine.
        preempt: what preemption does to a job in `low` or `low0`.
        grace_s: GraceTime of partition `low` [s]; `low0` has none.
        tracker: process tracking plugin.
        auth: how Slurm's programs prove who they are.
        accounting: run slurmdbd and MariaDB, so that sacct works.
        kill_wait_s: time between SIGTERM and SIGKILL [s].
        slurmd_timeout_s: silence after which slurmctld gives a node up [s].
        cred_expire_s: life of a job credential [s]; a requeued job waits this long.
        users: unprivileged users, created when missing.
        extra: lines appended to slurm.conf.
    """

    nodes: int = 4
    gpus: int = 2
    last_gpus: int | None = None
    cpus: int = 8
    preempt: Preempt = Preempt.REQUEUE
    grace_s: int = 8
    tracker: Tracker = Tracker.LINUXPROC
    auth: Auth = Auth.MUNGE
    accounting: bool = False
    kill_wait_s: int = 5
    slurmd_timeout_s: int = 10
    cred_expire_s: int = 5
    users: tuple[str, ...] = ("alice", "bob")
    extra: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse values that cannot work.

        Raises:
            DevClusterError: a value is out of its range; the text names the option.
        """
        ranges = {
            "--nodes": (self.nodes, 1, MAX_NODES),
            "--gpus": (self.gpus, 0, MAX_GPUS),
            "--last-gpus": (0 if self.last_gpus is None else self.last_gpus, 0, self.gpus),
            "--cpus": (self.cpus, 1, 1024),
            "--grace": (self.grace_s, 0, 65533),
            "--kill-wait": (self.kill_wait_s, 1, 65533),
            "--slurmd-timeout": (self.slurmd_timeout_s, 1, 65533),
            "--cred-expire": (self.cred_expire_s, 5, 65533),
        }
        for option, (value, low, high) in ranges.items():
            if not low <= value <= high:
                raise DevClusterError(f"{option} must be between {low} and {high}, not {value}.")
        if self.auth is Auth.SLURM and self.accounting:
            raise DevClusterError("--auth slurm works without --accounting only.")
        for user in self.users:
            if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", user):
                raise DevClusterError(f"--users: {user!r} is not a valid user name.")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the compute nodes, in order."""
        return tuple(f"node{i}" for i in range(1, self.nodes + 1))

    def gpus_of(self, name: str) -> int:
        """Return how many fake GPUs a node has."""
        is_other = self.last_gpus is not None and name == self.node_names[-1]
        return self.last_gpus or 0 if is_other else self.gpus

    def to_json(self) -> dict[str, Any]:
        """Encode as plain JSON values."""
        return {
            **asdict(self),
            "preempt": self.preempt.value,
            "tracker": self.tracker.value,
            "auth": self.auth.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Decode what `to_json` made."""
        return cls(
            **{
                **data,
                "preempt": Preempt(data["preempt"]),
                "tracker": Tracker(data["tracker"]),
                "auth": Auth(data.get("auth", "munge")),
                "users": tuple(data["users"]),
                "extra": tuple(data["extra"]),
            }
        )
