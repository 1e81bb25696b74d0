"""What a fake Slurm is like: the numbers of slurm.conf that matter here. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.errors import InputError

TRACKERS = ("cgroup", "linuxproc")
PREEMPT_MODES = ("REQUEUE", "CANCEL", "OFF")
VERSIONS = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}
"""The releases that can be played, with what their commands say to --version."""
CLUSTER = "fake"


class Settings(NamedTuple):
    """A cluster.

    Processes live in real time, and so do the waits they take part in: GraceTime, KillWait, time limits,
    warnings. Waits that are Slurm's own (the delay after a requeue, the time until a lost node is noticed)
    take their length divided by `speed`.
    """

    nodes: int = 4  # named node1, node2, ...
    gpus: int = 2  # of each node
    cpus: int = 8  # of each node
    grace: float = 30.0  # GraceTime of the partition low [s]; that of low0 is 0
    kill_wait: float = 30.0  # from SIGTERM to SIGKILL [s]
    tracker: str = "cgroup"  # who gets signals: only the tasks (cgroup), or all below them (linuxproc)
    preempt: str = "REQUEUE"  # PreemptMode: REQUEUE, CANCEL or OFF
    user_signal: bool = False  # preempt_send_user_signal: a preempted job gets its --signal, not SIGTERM
    requeue_exit: tuple[int, ...] = ()  # RequeueExit: exit codes of a script that send the job back
    slurmd_timeout: float = 300.0  # until a silent node is noticed [s], divided by speed
    cred_expire: float = 120.0  # a requeued job waits one second longer than this [s], divided by speed
    speed: float = 60.0
    start_delay: float = 0.1  # from sbatch to the start of a job at the earliest [s]
    version: str = "22.05"  # which release of Slurm it is: docs/slurm-versions.md tells what differs

    @property
    def is_newer(self) -> bool:
        """Whether it is a release of today, and does what Slurm has changed since 22.05."""
        return self.version != "22.05"

    @property
    def full_version(self) -> str:
        """The version as the commands tell it."""
        return VERSIONS[self.version]

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes, in order."""
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    @property
    def detection_s(self) -> float:
        """Time until a silent node is noticed [s of this clock]."""
        return self.slurmd_timeout / self.speed

    @property
    def requeue_delay_s(self) -> float:
        """Time that a requeued job waits [s of this clock]."""
        return (self.cred_expire + 1) / self.speed


def check(settings: Settings) -> Settings:
    """Return the settings if they are possible.

    Raises:
        InputError: one is not; names it.
    """
    _one_of("tracker", settings.tracker, TRACKERS)
    _one_of("preempt", settings.preempt, PREEMPT_MODES)
    _one_of("version", settings.version, tuple(VERSIONS))
    least = {
        "nodes": 1,
        "cpus": 1,
        "gpus": 0,
        "grace": 0,
        "kill_wait": 0,
        "slurmd_timeout": 0,
        "cred_expire": 0,
        "start_delay": 0,
    }
    for name, bound in least.items():
        value = getattr(settings, name)
        if value < bound:
            raise InputError(
                f"{name}={value!r} is too small", where="FakeSlurm", fix=f"give at least {bound}"
            )
    if settings.speed <= 0:
        raise InputError(
            f"speed={settings.speed!r} is not positive", where="FakeSlurm", fix="1 is real time, 60 is usual"
        )
    return settings


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            f"{name}={value!r} is not known", where="FakeSlurm", fix=f"choose from {', '.join(allowed)}"
        )
