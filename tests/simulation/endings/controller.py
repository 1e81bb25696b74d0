"""Slurm in the simulation of endings: its controller, its accounting and its words in the batch log.

A job is what Slurm has of it: a state, a restart count, a reason, and the processes of its current start. The
commands of `hpc_elastic.slurm.client.commands.Slurm` ask and change that; each takes some time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.ids import Env
from hpc_elastic.slurm.client.answers import ListedNode, LostNodeState, PastStart, SlurmTask
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import job_state
from tests.simulation.world import WALL_S, World

ASK_S = (0.02, 0.3)  # how long a command of Slurm takes [s]
NOTICE_S = 2.0  # until Slurm gives a node up that does not answer [s]
DELAY_S = 1.0  # between the last process of a start and the next start [s]
NODES = ("n1", "n2", "n3", "n4")  # of the cluster; a job gets the first ones that it may have
_EPOCH = "2026-01-01T"


class Accounting(Enum):
    """What sacct tells."""

    WHOLE = "all starts"
    LATE = "all starts but the last one"
    AWAY = "nothing: it does not answer"
    NONE = "nothing: there is none"


class Site(NamedTuple):
    """How Slurm is set up."""

    kill_wait_s: float = 5.0
    grace_s: float = 10.0
    accounting: Accounting = Accounting.WHOLE
    keeps_log: bool = True  # else the batch log is gone when the next start begins
    keeps_preempt_time: bool = True  # a job that was put back still shows that it was preempted


class Processes(Protocol):
    """The processes of one start of a job."""

    restart: int

    def signal(self) -> None:
        """Send SIGTERM to all of them."""
        ...

    def kill(self) -> None:
        """Kill all of them at once."""
        ...

    def begin(self) -> None:
        """Start them."""
        ...


class Job:
    """A job, as Slurm has it.

    Args:
        ref: its id.
        nodes: how many nodes it has.
        may_requeue: whether Slurm may start it again.
        after: the job of a chain that it waits for; None: it waits for none.
    """

    def __init__(self, ref: str, nodes: int, *, may_requeue: bool, after: Job | None = None) -> None:
        self.ref = ref
        self.size = nodes
        self.after = after
        self.link: int = 0 if after is None else after.link + 1
        self.line: str = ref if after is None else after.line  # the first job of its chain
        self.nodes: tuple[str, ...] = ()  # of its current start, or the last one
        self.excluded: tuple[str, ...] = ()
        self.may_requeue = may_requeue
        self.word = "PENDING"
        self.reason = "None"
        self.restarts = 0
        self.is_held = False
        self.cancelled_at: float | None = None
        self.preempt_time: float | None = None
        self.end_time: float | None = None
        self.rows: list[PastStart] = []
        self.gone: set[str] = set()  # nodes that Slurm has given up in this start
        self.free_at = 0.0  # its nodes are those of its last processes until then
        self.processes: Processes | None = None

    @property
    def number(self) -> str:
        """Its number; a task of an array has one of its own."""
        return self.ref.replace("_", "")

    @property
    def in_grace(self) -> bool:
        """Whether it runs, and its preemption has begun."""
        return self.word == "RUNNING" and self.preempt_time is not None

    @property
    def is_over(self) -> bool:
        """Whether Slurm does nothing more with it."""
        return self.word not in ("PENDING", "RUNNING", "COMPLETING")

    def _place_in_array(self) -> dict[str, str]:
        array, _, index = self.ref.partition("_")
        return {"ArrayJobId": array, "ArrayTaskId": index} if index else {}

    def fields(self) -> dict[str, str]:
        """Return what ``scontrol show job`` has of it."""
        left = [name for name in self.nodes if name not in self.gone]
        number = self.size if self.word == "PENDING" else len(left)
        return {
            "JobId": self.ref,
            **self._place_in_array(),
            "JobState": self.word,
            "Reason": "JobHeldUser" if self.is_held else self.reason,
            "Restarts": str(self.restarts),
            "Requeue": str(int(self.may_requeue)),
            "NumNodes": str(number),
            "NodeList": ",".join(left),
            "Partition": "main",
            "PreemptTime": _date(self.preempt_time),
            "EndTime": _date(self.end_time),
            "Priority": "0" if self.is_held else "100",
        }


def _date(at: float | None) -> str:
    if at is None:
        return "None"
    seconds = int(at)
    return f"{_EPOCH}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class Controller:
    """Starts, ends and requeues jobs.

    Args:
        world: the time and the story.
        site: how Slurm is set up.
        write: adds a line to the log of a job.
        make: makes the processes of the next start of a job.
    """

    def __init__(
        self,
        world: World,
        site: Site,
        write: Callable[[Job, str], None],
        make: Callable[[Job], Processes],
    ) -> None:
        self.world = world
        self.site = site
        self.jobs: dict[str, Job] = {}
        self.away_until = -1.0
        self.back_at: dict[str, float] = {}  # when nodes that were lost have started anew
        self.nodes: tuple[str, ...] = NODES
        self.has_own_nodes = False  # no two jobs that run have the same node
        self._write = write
        self._make = make

    def submit(self, job: Job) -> None:
        """Queue a job; it starts at once."""
        self.jobs[job.ref] = job
        self.world.at(self.world.now, lambda: self._start(job))

    def release(self, job: Job) -> None:
        """Have a held job start."""
        if job.is_held:
            job.is_held = False
            self.world.tell(f"the user releases job {job.ref}")
            self._start_later(job)

    def _start_later(self, job: Job) -> None:
        restart = job.restarts
        self.world.at(self.world.now + DELAY_S, lambda: self._start(job, restart))

    def _start(self, job: Job, restart: int = 0) -> None:
        if job.word != "PENDING" or job.is_held or job.restarts != restart:
            return
        if job.after is not None and not job.after.is_over:
            self.world.at(self.world.now + DELAY_S, lambda: self._start(job, restart))
            return
        may_have = [name for name in self.nodes if name not in job.excluded]
        taken = self._taken()
        nodes = tuple(name for name in may_have if name not in taken)[: job.size]
        if len(nodes) < job.size <= len(may_have):
            self.world.at(self.world.now + DELAY_S, lambda: self._start(job, restart))
            return
        if len(nodes) < job.size:
            self.world.tell(f"job {job.ref} waits: only {len(nodes)} nodes are not left out")
            return
        job.word, job.reason, job.nodes = "RUNNING", "None", nodes
        job.preempt_time = job.end_time = None
        job.gone.clear()
        job.processes = self._make(job)
        self.world.tell(f"Slurm starts job {job.ref}, restart {job.restarts}")
        self.world.counts["starts"] += 1
        job.processes.begin()

    def _taken(self) -> set[str]:
        if not self.has_own_nodes:
            return set()
        now, used = self.world.now, ("RUNNING", "COMPLETING")
        having = (job for job in self.jobs.values() if job.word in used or now < job.free_at)
        return {name for job in having for name in job.nodes}

    # the ends of a start

    def warn(self, job: Job) -> None:
        """Begin the grace of a preemption."""
        if job.word != "RUNNING" or job.preempt_time is not None or job.processes is None:
            return
        job.preempt_time, job.end_time = self.world.now, self.world.now + self.site.grace_s
        restart = job.restarts
        job.processes.signal()

        def is_over() -> None:
            if job.restarts == restart and job.word == "RUNNING":
                self.end(job, "PREEMPTED", due_to="PREEMPTION", is_back=True)

        self.world.at(job.end_time, is_over)

    def end(self, job: Job, word: str, *, reason: str = "None", due_to: str = "", is_back: bool) -> None:
        """End the current start of a job as Slurm does: SIGTERM, and SIGKILL after KillWait.

        Args:
            job: it.
            word: the state that accounting has for it.
            reason: the reason that the job shows while it ends.
            due_to: the words in the batch log.
            is_back: whether it goes back into the queue, if it may.
        """
        processes = job.processes
        if job.word != "RUNNING" or processes is None:
            return
        if due_to:
            who = f"*** JOB {job.number} ON {job.nodes[0]} CANCELLED AT {_date(self.world.now)}"
            self._write(job, f"slurmstepd: error: {who} DUE TO {due_to} ***")
        if word == "PREEMPTED":
            job.preempt_time = self.world.now if job.preempt_time is None else job.preempt_time
            job.end_time = self.world.now
        job.rows.append(PastStart(word, job.nodes))
        if is_back and job.may_requeue:
            self._put_back(job, is_held=False)
        else:
            job.word, job.reason = "COMPLETING", reason
        processes.signal()
        self.world.at(self.world.now + self.site.kill_wait_s, lambda: self._kill(job, processes, word))

    def _kill(self, job: Job, processes: Processes, word: str) -> None:
        processes.kill()
        if job.processes is processes and job.word == "COMPLETING":
            job.word = word
            self.world.tell(f"job {job.ref} is {word}")

    def _put_back(self, job: Job, *, is_held: bool) -> None:
        """Put a job into the queue again; its processes may still live for a while."""
        job.word, job.reason, job.is_held = "PENDING", "BeginTime", is_held
        job.restarts += 1
        if not self.site.keeps_preempt_time:
            job.preempt_time = None
        restart, wait_s = job.restarts, self.site.kill_wait_s + DELAY_S
        job.free_at = self.world.now + wait_s
        self.world.at(self.world.now + wait_s, lambda: self._start(job, restart))

    def lose_nodes(self, job: Job) -> None:
        """Have Slurm notice that all nodes of the current start are gone."""
        processes = job.processes
        if processes is None:
            return
        processes.kill()
        restart = processes.restart
        self.back_at |= dict.fromkeys(job.nodes, self.world.now + NOTICE_S)

        def notice() -> None:
            if job.restarts == restart and job.word == "RUNNING":  # else Slurm has given it another end
                job.rows[restart:] = [PastStart("NODE_FAIL", job.nodes)]
                if job.may_requeue and job.cancelled_at is None:
                    self._put_back(job, is_held=False)
                else:
                    job.word = "NODE_FAIL"

        self.world.at(self.world.now + NOTICE_S, notice)

    def lose_node(self, job: Job, name: str) -> None:
        """Have Slurm notice that one node of several is gone; the job runs on."""
        restart = job.restarts
        self.back_at[name] = self.world.now + NOTICE_S

        def notice() -> None:
            if job.restarts == restart:
                job.gone.add(name)

        self.world.at(self.world.now + NOTICE_S, notice)

    def script_exits(self, job: Job, processes: Processes, code: int) -> None:
        """Take note that the batch script of a start has ended: that ends the job, unless it was put back."""
        if job.processes is not processes or job.restarts != processes.restart:
            return
        processes.kill()
        if job.word == "RUNNING":
            job.word = "FAILED" if code else "COMPLETED"
            job.rows.append(PastStart(job.word, job.nodes))
        self.world.tell(f"the script of job {job.ref} ends with {code}")

    # commands

    def requeue(self, job: Job, *, hold: bool) -> None:
        """Obey ``scontrol requeue`` or ``requeuehold``.

        Raises:
            SlurmCommandError: the job may not be requeued.
        """
        if not job.may_requeue:
            raise SlurmCommandError(("scontrol", "requeue"), 1, "Requested operation is presently disabled")
        if job.word == "PENDING":
            return
        if job.cancelled_at is not None and self.world.now < job.cancelled_at + 2 * ASK_S[1]:
            job.cancelled_at = None  # Slurm accepts both at the same moment
        if job.processes is not None and job.word in ("RUNNING", "COMPLETING"):
            if len(job.rows) == job.restarts:
                job.rows.append(PastStart("REQUEUED", job.nodes))
            processes = job.processes
            if job.word == "RUNNING":  # else they have their signal
                processes.signal()
            self.world.at(self.world.now + self.site.kill_wait_s, processes.kill)
        self._put_back(job, is_held=hold)

    def tasks(self, array: str) -> list[Job]:
        """Return the tasks of an array."""
        return [job for job in self.jobs.values() if job.ref.startswith(f"{array}_")]

    def past_starts(self, job: Job) -> list[PastStart]:
        """Return what sacct prints.

        Raises:
            SlurmCommandError: it does not answer.
        """
        if self.site.accounting is Accounting.AWAY:
            raise SlurmCommandError(("sacct",), 1, "Connection refused")
        if self.site.accounting is Accounting.NONE:
            return []
        if self.site.accounting is Accounting.LATE:
            return job.rows[:-1]
        is_running = job.word == "RUNNING"
        return [*job.rows, PastStart("RUNNING", job.nodes)] if is_running else job.rows


class SimulatedSlurm(Slurm):
    """The commands of Slurm, for whichever thread runs them.

    Args:
        controller: of the cluster.
        tell: is told of each command that changes something, with the job.
        ledger: directory in which bad nodes are remembered.
    """

    def __init__(self, controller: Controller, tell: Callable[[str, str], None], ledger: str) -> None:
        super().__init__({Env.LEDGER: ledger})
        self._controller = controller
        self._tell = tell

    def _run(self, *argv: str, **_options: object) -> str:
        raise NotImplementedError(f"not simulated: {' '.join(argv)}")

    def _job(self, job_ref: str) -> Job | None:
        world = self._controller.world
        world.running.wait(world.random.uniform(*ASK_S))
        if world.now < self._controller.away_until:
            raise SlurmCommandError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")
        return self._controller.jobs.get(job_ref)

    def _known(self, what: str, job_ref: str) -> Job:
        job = self._job(job_ref)
        if job is None:
            raise SlurmCommandError(("scontrol",), 1, "Invalid job id specified")
        self._tell(what, job_ref)
        return job

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the fields of a job."""
        job = self._job(job_ref)
        return None if job is None else job.fields()

    def show_tasks(self, array: str) -> list[dict[str, str]]:
        """Return the fields of each task of an array."""
        self._job("")
        return [job.fields() for job in self._controller.tasks(array)]

    def array_tasks(self, token: str, array: str) -> list[SlurmTask]:  # noqa: ARG002 - there is one array
        """Return the tasks of an array that are not over."""
        self._job("")
        return [
            SlurmTask(array, int(job.ref.partition("_")[2]), job_state(job.word), reason=job.reason)
            for job in self._controller.tasks(array)
            if not job.is_over
        ]

    def cancel_waiting(self, job_ref: str) -> None:
        """Take the tasks of an array out of the queue that wait."""
        self._job("")
        self._tell("cancel those that wait of", job_ref)
        for job in self._controller.tasks(job_ref):
            if job.word == "PENDING":
                job.word = "CANCELLED"

    def show_config(self) -> str:
        """Return the settings of the cluster; by these jobs are requeued by who cares for them."""
        return f"KillWait = {self._controller.site.kill_wait_s:.0f} sec\n"

    def show_partition(self, name: str) -> dict[str, str]:
        """Return the grace of the partition."""
        return {"PartitionName": name, "GraceTime": f"{self._controller.site.grace_s:.0f}"}

    def time_left_s(self, job_ref: str) -> float | None:
        """Return that a job has no time limit: the one of the simulation comes without a warning."""
        self._job(job_ref)
        return None

    def past_starts(self, job_ref: str) -> list[PastStart]:
        """Return what accounting has of the starts of a job."""
        job = self._job(job_ref)
        return [] if job is None else self._controller.past_starts(job)

    def has_down_node(self, node_list: str) -> bool:  # noqa: ARG002 - a node is back when it is asked about
        """Return whether a node is down."""
        return False

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Requeue a job."""
        self._controller.requeue(self._known("requeuehold" if hold else "requeue", job_ref), hold=hold)

    def hold(self, job_ref: str) -> None:
        """Hold a job that waits."""
        job = self._known("hold", job_ref)
        if job.word == "PENDING":
            job.is_held = True

    def cancel(self, job_ref: str, *, signal: str | None = None) -> None:
        """Take a job out of the queue, or end it if it has started meanwhile."""
        assert signal is None
        job = self._known("cancel", job_ref)
        if job.word == "PENDING":
            job.word = "CANCELLED"
        else:
            world = self._controller.world  # a program of it cannot end another one itself
            world.at(world.now, lambda: self._controller.end(job, "CANCELLED", is_back=False))

    def update(self, job_ref: str, *fields: str) -> None:
        """Accept a comment, and the nodes that a job in the queue is to do without."""
        (field,) = fields
        name, _, value = field.partition("=")
        job = self._known(name, job_ref)
        if name == "ExcNodeList" and job.word == "PENDING":
            job.excluded = tuple(filter(None, value.split(",")))

    def excluded_by(self, job_ref: str) -> str:
        """Return the nodes that a job does without."""
        job = self._job(job_ref)
        return "" if job is None else ",".join(job.excluded)

    def nodes(self, partitions: str | None) -> list[ListedNode]:  # noqa: ARG002 - there is one
        """Return all nodes of the cluster; those that were lost are back."""
        return [ListedNode(name, "idle") for name in self._controller.nodes]

    def node_states(self, names: Sequence[str], job_ref: str | None) -> dict[str, LostNodeState]:  # noqa: ARG002
        """Return since when nodes are up; those that were lost are back."""
        self._job("")
        back_at = self._controller.back_at
        return {
            name: LostNodeState("idle", "", WALL_S + back_at.get(name, -WALL_S), in_job=True)
            for name in names
        }
