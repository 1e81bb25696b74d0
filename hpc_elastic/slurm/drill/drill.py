"""Doing to a running job of one's own a fault that the cluster may do to it some day.

Nothing here needs more rights than the owner of the run has: signals go through Slurm's own commands, or
through a job step beside the agents.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import DamagedError, InputError, SlurmCommandError
from hpc_elastic.isolated.lookup import argv_here
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.journal import OWN_SCRIPT, Cause, Member, RoundFormed
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.grace_times import ask_site, read_site
from hpc_elastic.slurm.client.job_standing import GONE, job_facts
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.drill import on_node
from hpc_elastic.slurm.drill.on_node import Deed
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, is_array, tasks_of
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import parse


class Drill(str, Enum):
    """The fault that is tried."""

    PREEMPT = "preempt"
    TIMEOUT = "timeout"
    NODE_LOSS = "node-loss"
    CRASH = "crash"
    HANG = "hang"
    REQUEUE = "requeue"


_DEEDS = {
    Drill.PREEMPT: Deed.DRAIN,
    Drill.TIMEOUT: Deed.WARN,
    Drill.NODE_LOSS: Deed.LOSE,
    Drill.CRASH: Deed.CRASH,
    Drill.HANG: Deed.HANG,
}
CAUSES = {
    Drill.PREEMPT: (Cause.PREEMPTION,),
    Drill.TIMEOUT: (Cause.TIME_LIMIT,),
    Drill.NODE_LOSS: (Cause.NODE_LOSS,),
    Drill.CRASH: (Cause.CRASH,),
    Drill.HANG: (Cause.HANG,),
    Drill.REQUEUE: (Cause.REQUEUE, Cause.PREEMPTION),  # SIGTERM comes first, and Slurm tells why later
}
"""What a run takes each drill for."""
_BY_SIGNAL = (Drill.PREEMPT, Drill.TIMEOUT)
_BY_A_SIGNAL = 128  # srun's exit code, with the number of the signal added
_ON_NODE = "hpc_elastic.slurm.drill.on_node"
ONE_WORKER = (Drill.CRASH, Drill.HANG)
ON_A_NODE = (Drill.NODE_LOSS, *ONE_WORKER)  # looks like a fault of the node that it is done to


def check_drill(run: RunFiles, drill: Drill) -> None:
    """Refuse a drill on agents and workers of a run that has none of ours.

    Raises:
        InputError: there is none that it could hit.
    """
    if run.is_script and drill not in (Drill.PREEMPT, Drill.REQUEUE):
        raise InputError(
            f"{run.name} is a job script of your own, in which no agent or worker of hpc_elastic runs",
            where=f"--{drill.value}",
            fix="--preempt or --requeue; for the others have hpc-elastic run start its workers",
        )


class Target(NamedTuple):
    """Whom a drill hits."""

    member: Member
    rank: int | None  # of the worker, for a drill on one worker

    @property
    def agent(self) -> int:
        """The agent's process id on its node; in array mode its task follows it."""
        return int(self.member.node_id.rpartition(".")[2].partition("@")[0])

    @property
    def is_script(self) -> bool:
        """Whether a job script of the user's own runs, which a requeue hits as a preemption does."""
        return self.member.role == OWN_SCRIPT

    def text(self, drill: Drill, *, is_one_task: bool = False) -> str:
        """Return the plan, in words; in array mode a signal hits the task of one node."""
        node = self.member.node
        agents, what = (f"the agent on {node}", "its task") if is_one_task else ("every agent", "the job")
        if self.is_script:
            return "the job gets SIGTERM and goes back into the queue, as when it is preempted"
        return {
            Drill.PREEMPT: f"{agents} gets SIGTERM, as when Slurm preempts {what}",
            Drill.TIMEOUT: f"{agents} gets the warning, as ahead of the time limit",
            Drill.NODE_LOSS: f"the agent and the workers on {node} are killed",
            Drill.CRASH: f"rank {self.rank} on {node} is killed",
            Drill.HANG: f"rank {self.rank} on {node} makes no further step",
            Drill.REQUEUE: f"the task on {node} is put back into the queue (scontrol requeue)"
            if is_one_task
            else "the job is put back into the queue (scontrol requeue)",
        }[drill]


class Struck(NamedTuple):
    """A drill that has begun.

    Attributes:
        at: when, by the clock of the node or of this machine [s since the epoch].
        step: the last step that was completed, if workers tell.
        round: the round whose processes were struck, as far as they tell; else the one that ran.
    """

    at: float
    step: int | None
    round: int


class UnsureError(InputError):
    """The fault may have been done: the program that does it has not answered."""


def choose(formed: RoundFormed, drill: Drill, node: str | None, rank: int | None) -> Target:
    """Return whom a drill hits: by default the last node, and of it the last worker. Pure.

    Raises:
        InputError: the round has no such node or rank.
    """
    places = _places(formed)
    here = [place for place in places if node in (None, place.member.node)]
    fits = [place for place in here if rank is None or place.low <= rank < place.high]
    if node is not None and not here:
        raise _no_node(formed, places, node)
    if rank is not None and not fits:
        raise _no_rank(formed, places, node, rank)
    member, _, high = fits[-1]
    worker = (high - 1 if rank is None else rank) if drill in ONE_WORKER else None
    return Target(member, worker)


class _DrillPlace(NamedTuple):
    """A node of a round with its ranks, from `low` to the one before `high`."""

    member: Member
    low: int
    high: int


def _places(formed: RoundFormed) -> list[_DrillPlace]:
    places, first = [], 0
    for member in formed.members:
        places.append(_DrillPlace(member, first, first + member.slots))
        first += member.slots
    return places


def _ranks_text(low: int, high: int) -> str:
    return f"ranks {low} to {high - 1}" if high - low > 1 else f"rank {low}"


def _no_node(formed: RoundFormed, places: list[_DrillPlace], node: str) -> InputError:
    names = ", ".join(place.member.node for place in places)
    return InputError(
        f"node {node!r} is not in round {formed.number}",
        where="--node",
        fix=f"it has {_ranks_text(0, places[-1].high)} on {names}",
    )


def _no_rank(formed: RoundFormed, places: list[_DrillPlace], node: str | None, rank: int) -> InputError:
    """Say which ranks a node has and where that rank is, or which nodes have ranks at all."""
    all_ranks = f"{_ranks_text(0, places[-1].high)} on {', '.join(place.member.node for place in places)}"
    if node is None:
        return InputError(
            f"rank {rank} is not in round {formed.number}", where="--rank", fix=f"it has {all_ranks}"
        )
    mine = ", ".join(_ranks_text(low, high) for member, low, high in places if member.node == node)
    home = next((member.node for member, low, high in places if low <= rank < high), "")
    return InputError(
        f"rank {rank} is not on {node} in round {formed.number}",
        where="--rank",
        fix=f"{node} has {mine}; " + (f"rank {rank} is on {home}" if home else f"the round has {all_ranks}"),
    )


class Striker:
    """Carries a drill out.

    Args:
        run: the files of the run.
        slurm: Slurm's commands.
        clock: of this machine.
    """

    def __init__(self, run: RunFiles, slurm: Slurm, clock: Clock) -> None:
        self._run = run
        self._slurm = slurm
        self._clock = clock

    def strike(self, drill: Drill, target: Target) -> Struck:
        """Do it.

        Raises:
            UnsureError: it may have been done.
            InputError: it is not possible, with another way; nothing was done.
            SlurmTimeoutError: Slurm does not answer; it may have been done.
            SlurmError: Slurm is not there, or refused; nothing was done.
        """
        if self._run.is_local:
            return self._strike_here(drill, target)
        if drill is Drill.REQUEUE or (target.is_script and drill is Drill.PREEMPT):
            at = self._clock.wall()
            self._slurm.requeue(self._job_of(target))
            return Struck(at, None, self._round)
        if drill in _BY_SIGNAL:
            warning = str(in_force(self._run.spec, "warn_signal"))
            at = self._clock.wall()
            name = "TERM" if drill is Drill.PREEMPT else warning
            self._slurm.cancel(self._job_of(target), signal=name)
            return Struck(at, None, self._round)
        return self._on_node(target, _DEEDS[drill])

    def let_go_on(self, target: Target) -> None:
        """Let a worker that hangs for a drill go on, if it is still there.

        Raises:
            InputError: it is not.
            SlurmError: Slurm is not there, or refused.
        """
        if self._run.is_local:
            on_node.do(self._run.paths.root, target.agent, Deed.GO_ON, target.rank)
        else:
            self._on_node(target, Deed.GO_ON)

    def granted(self, target: Target) -> Site | None:
        """Return the times of the job, or of the target's task, in a preemption; None: not known.

        Raises:
            SlurmError: Slurm is not there, or refused.
        """
        if self._run.is_local:
            return None
        fields = self._slurm.show_job(self._job_of(target)) or {}
        asked = ask_site(self._slurm, fields.get("Partition", ""), fields.get("QOS", ""))
        return asked or read_site(self._run.paths)

    @property
    def _round(self) -> int:
        return self._run.state.rounds

    def _job_of(self, target: Target) -> str:
        """Return the job as Slurm's commands name it: in array mode the target's task."""
        return self._place_of(target)[0]

    def _place_of(self, target: Target) -> tuple[str, str]:
        """Return the job of a target and its node, which has another name in a run with two tasks there."""
        if not is_array(self._run):
            return self._run.job_id, target.member.node
        start = start_of(target.member.node_id)
        for task in tasks_of(self._run, self._slurm):
            if task.is_running and start is not None and task.name == start.task:
                return task.name, task.node
        raise InputError(
            f"no running task of array {self._run.job_id} is on {target.member.node}",
            where="--node",
            fix="look with squeue, and name the node of a task that runs",
        )

    def _strike_here(self, drill: Drill, target: Target) -> Struck:
        """Do it to agents that are processes of this machine."""
        if drill is Drill.REQUEUE:
            raise InputError(
                "a run on one machine has no queue",
                where="--requeue",
                fix="--preempt has it start again, too",
            )
        root = self._run.paths.root
        formed = self._run.state.running
        if drill in _BY_SIGNAL and formed is not None:
            others = [Target(member, None) for member in formed.members]
        else:
            others = [target]
        done: list[dict[str, Any]] = []
        gone: InputError | None = None
        for one in others:
            try:
                done.append(on_node.do(root, one.agent, _DEEDS[drill], one.rank))
            except InputError as error:
                gone = error
        if not done and gone is not None:
            raise gone
        step = max((each["step"] for each in done if each["step"] is not None), default=None)
        return Struck(done[0]["at"], step, self._round_in(done[0]))

    def _round_in(self, done: dict[str, Any]) -> int:
        return done["round"] if done.get("round", -1) > 0 else self._round

    def _on_node(self, target: Target, deed: Deed) -> Struck:
        """Do it in a job step beside the agent."""
        rank = () if target.rank is None else (str(target.rank),)
        words = (*argv_here(_ON_NODE), self._run.paths.root, str(target.agent), deed.value, *rank)
        job, node = self._place_of(target)
        if "_" in job:  # srun knows a task of an array by its own id only
            job = (self._slurm.show_job(job) or {}).get("JobId", job)
        done = _answer(self._step(job, node, words), target)
        if "error" in done:
            raise InputError(f"{target.member.node}: {done['error']}", where="drill", fix=done["fix"])
        return Struck(done["at"], done["step"], self._round_in(done))

    def _step(self, job: str, node: str, words: tuple[str, ...]) -> str:
        try:
            return self._slurm.step_beside(job, node, words)
        except SlurmCommandError as error:
            if error.exit_code <= _BY_A_SIGNAL:
                raise self._why_not(job) or error from None
            raise UnsureError(  # the step itself was ended, for example with the agent's job
                f"the job step on {node} was ended before it could report its acts: {error}",
                where="drill",
                fix="look at the run with hpc-elastic timeline",
            ) from None

    def _why_not(self, job: str) -> InputError | None:
        """Return why Slurm runs no step of a job; None if the job runs, or that is not known."""
        try:
            fields = self._slurm.show_job(job)
        except SlurmCommandError:
            return None
        facts = job_facts(fields) if fields else GONE
        if facts.state in (JobState.RUNNING, JobState.SUSPENDED):
            return None
        held = facts.to_be_released
        how = "is held in the queue" if held else f"does not run now: {facts.word or 'it is gone'}"
        root = for_shell(self._run.paths.root)
        return InputError(
            f"job {job} {how}, so nothing could be struck",
            where="drill",
            fix=f"scontrol release {job}, and try again when it runs"
            if held
            else f"wait until hpc-elastic status {root} says that the run has workers",
        )


def _answer(printed: str, target: Target) -> dict[str, Any]:
    """Return the report of the program on a node; sites may have a prolog print lines of its own."""
    for line in reversed(printed.splitlines()):
        try:
            done = parse(line.encode(errors="replace"))
        except DamagedError:
            continue
        if isinstance(done, dict) and ("at" in done or "error" in done):
            return done
    raise UnsureError(
        f"the job step on {target.member.node} has not reported its acts; it printed {printed.strip()!r}",
        where="drill",
        fix="look at the run with hpc-elastic timeline",
    )
