"""The state of a fake Slurm: settings, nodes, partitions, jobs, and the places of their processes. Pure.

Times are seconds since the epoch on Slurm's own clock, which `advance` moves forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

TRACKERS = ("cgroup", "linuxproc")
PREEMPT_MODES = ("REQUEUE", "CANCEL", "OFF")
VERSIONS = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}

BATCH = "batch"
EXPEDITING, REQUEUE_HOLD = "EXPEDITING", "REQUEUE_HOLD"
NEVER = float("inf")


class State(str, Enum):
    """The states of a job, in Slurm's words; of REQUEUED and RESIZING only sacct tells."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    REQUEUED = "REQUEUED"
    RESIZING = "RESIZING"

    @property
    def holds_nodes(self) -> bool:
        """Whether a job in this state has nodes."""
        return self in (State.RUNNING, State.COMPLETING)

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to a job in this state by itself."""
        return not self.holds_nodes and self is not State.PENDING


class Warning_(NamedTuple):  # noqa: N801 - Warning is Python's
    """The request of ``--signal``."""

    number: int
    before_s: float  # ahead of the time limit [s]
    to_script: bool  # B: the batch script alone, else the tasks alone


class JobRequest(NamedTuple):
    """The request to sbatch."""

    name: str = "sbatch"
    partition: str = "low"
    min_nodes: int = 1
    max_nodes: int = 1
    ntasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    exclusive: bool = False
    limit_s: float | None = None
    requeue: bool = True
    expedite: bool = False  # --requeue=expedite
    no_kill: bool = False
    hold: bool = False
    warning: Warning_ | None = None
    output: str = ""
    error: str = ""
    stdin: str = "/dev/null"
    append: bool = False
    directory: str = "/"
    submit_directory: str = "/"
    script: str = ""
    words: tuple[str, ...] = ()  # the script's arguments
    script_name: str = "(null)"
    comment: str = ""
    dependency: str = ""
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    begin_s: float = 0.0  # delay [s]
    array: tuple[int, ...] = ()
    throttle: int = 0  # of the array; 0: none
    environ: Mapping[str, str] = {}

    @property
    def cpus_per_node(self) -> int:
        """CPUs that the job needs on each node; all if it is exclusive."""
        tasks = self.tasks_per_node or -(-(self.ntasks or self.min_nodes) // self.min_nodes)
        return tasks * (self.cpus_per_task or 1)


class Place(NamedTuple):
    """Where processes live that are watched together: one start of a job, a step of it, a node."""

    job: int
    start: int  # restart count of this start
    step: str  # BATCH or the number of the step
    node: str


class Share(NamedTuple):
    """The part of a node that a job has."""

    cpus: int
    gpus: tuple[int, ...]


class Task(NamedTuple):
    """A process that srun has asked for."""

    rank: int
    node: str
    local: int
    code: int | None = None  # as a wait status; None while it runs
    lost: bool = False  # with its node


class Step(NamedTuple):
    """A job step with its srun."""

    number: int
    tasks: tuple[Task, ...]
    srun: int  # the connection of the srun that waits for it; 0 when there is none any more
    no_kill: bool = False
    kill_on_bad_exit: bool = False
    wait_s: float = 0.0
    overlap: bool = False
    gpus_per_task: int = 0  # 0: every task sees all GPUs of the job on its node
    kill_s: float = NEVER  # when the tasks that are left get SIGKILL
    term_s: float = NEVER  # when they get SIGTERM, because of --kill-on-bad-exit
    interrupted_s: float = -NEVER  # when srun got its last SIGINT

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the step, in rank order."""
        return tuple(dict.fromkeys(task.node for task in self.tasks))

    @property
    def is_over(self) -> bool:
        """Whether no task runs."""
        return all(task.code is not None or task.lost for task in self.tasks)


class Ending(NamedTuple):
    """How a job that is COMPLETING ends."""

    state: State
    requeue: bool = False
    hold: bool = False
    waits_as: str = ""  # see Job
    by: int | None = None  # the user who cancelled it


class SacctRow(NamedTuple):
    """One line of ``sacct -D``: one start of a job, or its time with one set of nodes."""

    number: int
    state: str
    exit_code: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    nodes: tuple[str, ...]
    reason: str
    steps: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()  # name, state, exit code, nodes


class Job(NamedTuple):
    """A job; an array has one for each task."""

    id: int
    request: JobRequest
    submit_s: float
    eligible_s: float
    row: int  # number of its row in sacct
    state: State = State.PENDING
    reason: str = "None"
    restarts: int = 0
    start: int = 0  # restarts when it was started
    start_s: float | None = None
    end_s: float | None = None  # the end that Slurm expects, or the real one
    preempt_s: float | None = None
    nodes: tuple[str, ...] = ()
    shares: Mapping[str, Share] = {}
    live: frozenset[Place] = frozenset()
    steps: tuple[Step, ...] = ()
    next_step: int = 0
    exit_code: int = 0  # a wait status
    ending: Ending | None = None
    kill_s: float = NEVER
    warned: bool = False
    held: bool = False
    waits_as: str = ""  # in the place of PENDING: EXPEDITING or REQUEUE_HOLD
    launch_s: float = 0.0  # first submission
    rows: tuple[SacctRow, ...] = ()
    array: int = 0  # id of the array; 0 outside of one
    task: int | None = None

    @property
    def ref(self) -> str:
        """The name of the job: ``12``, or ``12_3`` in an array."""
        return str(self.id) if self.task is None else f"{self.array}_{self.task}"

    @property
    def word(self) -> str:
        """Its state as Slurm shows it."""
        return self.waits_as if self.waits_as and self.state is State.PENDING else self.state.value

    @property
    def is_expediting(self) -> bool:
        """Whether it has lost a node and waits for another one; its owner can change nothing."""
        return self.word == EXPEDITING

    @property
    def in_grace(self) -> bool:
        """Whether it is preempted and has not been ended yet."""
        return self.state is State.RUNNING and self.preempt_s is not None

    @property
    def script(self) -> Place | None:
        """Where the batch script lives; None once it has ended or is lost."""
        return next((place for place in self.live if place.step == BATCH), None)

    def step(self, number: str) -> Step | None:
        """Return a step by its number."""
        return next((step for step in self.steps if str(step.number) == number), None)

    def with_step(self, step: Step) -> Job:
        """Return the job with one step replaced."""
        steps = tuple(step if step.number == one.number else one for one in self.steps)
        return self._replace(steps=steps)


class Node(NamedTuple):
    """A node."""

    name: str
    is_down: bool = False
    drained: bool = False
    reason: str = ""
    answers: bool = True  # slurmd does
    silent_since: float | None = None


class Partition(NamedTuple):
    """A partition; all have all nodes."""

    name: str
    tier: int
    grace_s: float
    preempt: str
    up: bool = True


class World(NamedTuple):
    """Everything there is."""

    settings: Settings
    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]
    jobs: Mapping[int, Job] = {}
    next_id: int = 1000
    next_row: int = 1

    @classmethod
    def new(cls, settings: Settings) -> World:
        """Return an idle cluster with the partitions low (preempted with grace), low0 (without), high."""
        mode = settings.preempt
        partitions = (
            Partition("low", 1, settings.grace, mode),
            Partition("low0", 1, 0.0, mode),
            Partition("high", 10, 0.0, "OFF"),
        )
        nodes = {name: Node(name) for name in settings.node_names}
        return cls(settings, nodes, {one.name: one for one in partitions})

    def with_job(self, job: Job) -> World:
        """Return the world with a job added or replaced."""
        return self._replace(jobs={**self.jobs, job.id: job})

    def with_node(self, node: Node) -> World:
        """Return the world with a node replaced."""
        return self._replace(nodes={**self.nodes, node.name: node})

    def on_node(self, name: str) -> Iterator[Job]:
        """Yield the jobs that have a node."""
        return (job for job in self.jobs.values() if job.state.holds_nodes and name in job.nodes)

    def tasks_of(self, array: int) -> list[Job]:
        """Return the jobs of an array."""
        return [job for job in self.jobs.values() if job.array == array]


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
    tracker: str = "cgroup"  # receivers of signals: only the tasks (cgroup), or all below them (linuxproc)
    preempt: str = "REQUEUE"  # PreemptMode: REQUEUE, CANCEL or OFF
    user_signal: bool = False  # preempt_send_user_signal: a preempted job gets its --signal, not SIGTERM
    expedited_requeue: bool = False  # enable_expedited_requeue: jobs may ask for --requeue=expedite (26.05)
    requeue_exit: tuple[int, ...] = ()  # RequeueExit: exit codes of a script that send the job back
    slurmd_timeout: float = 300.0  # until a silent node is noticed [s], divided by speed
    cred_expire: float = 120.0  # a requeued job waits one second longer than this [s], divided by speed
    speed: float = 60.0
    start_delay: float = 0.1  # from sbatch to the start of a job at the earliest [s]
    version: str = "22.05"  # the release of Slurm: docs/slurm-versions.md lists the differences

    @property
    def is_newer(self) -> bool:
        """Whether it is a release of today, with Slurm's changes since 22.05."""
        return self.version != "22.05"

    @property
    def knows_expedite(self) -> bool:
        """Whether its sbatch knows --requeue=expedite."""
        return self.version == "26.05"

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


def check_settings(settings: Settings) -> Settings:
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
