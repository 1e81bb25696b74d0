"""The end of a start of a job or of an array task: the facts, the budgets, and the possible choices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    Epoch,
    EpochStarted,
    NodeLeft,
    RunEnded,
    SetupFailure,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.state import RunState, apply, is_released, other_job
from hpc_elastic.settings.of_commands import FinishSettings
from hpc_elastic.settings.setting import usual
from hpc_elastic.settings.table import JobSettings, in_force
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.end.history import Earlier

MAX_STARTS_IN_VAIN = 5


class RequeueBudgets(NamedTuple):
    """How often each way to go on may be taken; None: without a limit of its own."""

    max_relaunch: int = usual(FinishSettings.max_relaunch)  # in one start of the job
    max_requeues: int = usual(JobSettings.max_requeues)  # in one submission, as are all that follow
    max_starts_in_vain: int = MAX_STARTS_IN_VAIN  # starts in a row without a round, when not asked to leave
    max_node_losses: int | None = usual(JobSettings.max_node_losses)
    max_preemptions: int | None = None
    max_time_limits: int | None = None
    max_launch_failures: int = usual(JobSettings.max_launch_failures)
    # in a row, of a program that marks saves
    max_starts_without_save: int | None = usual(JobSettings.max_starts_without_save)
    holds: bool = True  # a spent budget holds the run for its user; False: it ends as failed
    resubmits: bool = True  # a job that may not be requeued is submitted again

    def of(self, cause: Cause) -> tuple[int, Budget] | None:
        """Return the budget of a cause and its name; None: the cause has none, or no limit."""
        name = CAUSES[cause].budget
        limit = getattr(self, name, None) if name else None
        return None if limit is None else (limit, Budget(name))


def budgets_of(spec: Mapping[str, Any]) -> RequeueBudgets:
    """Return the budgets of a job spec as it was stored."""
    given = {name: spec[name] for name in RequeueBudgets._fields if spec.get(name) is not None}
    holds = in_force(spec, "on_budget_spent") == "hold"
    return RequeueBudgets(**given)._replace(holds=holds, resubmits=in_force(spec, "resubmit"))


def use_of_causes(state: RunState, spec: Mapping[str, Any]) -> str:
    """Return how much of the budgets of single causes is used, crashes apart; it may be empty.

    A cause is listed if it has come up and has a limit, or if the user has set its limit.

    Args:
        state: the run.
        spec: the job spec as it was stored.
    """
    budgets = budgets_of(spec)
    parts = []
    for cause, row in CAUSES.items():
        bound = budgets.of(cause)
        limit = None if bound is None else bound[0]
        if cause is Cause.HANG:
            limit = in_force(spec, row.budget)
        used = state.used(cause)
        if limit is not None and (used or row.budget in spec):
            parts.append(f"{min(used, limit)} of {limit} {row.plural}")
    return ", ".join(parts) if spec else ""


class Spent(NamedTuple):
    """Why a run goes on no more, or only once its user has released it."""

    text: str  # for people
    budget: Budget | None = None  # that is spent


class Mode(NamedTuple):
    """The words in which the end of a job differs from that of one task of an array."""

    noun: str
    starts: str  # its starts, after their number
    agents: str  # another srun of its agents; {nodes}: on how many nodes
    requeue: str  # {count}: the number of the requeue
    again: str  # the job that takes its place; {count}: as in `requeue`
    barred: str  # Slurm may not requeue it
    newer: str  # makes this start a left-over
    said: str  # srun ended; {code}: its exit code
    flags: str  # wrong flags of the agents
    nowhere: str  # nodes on which Python was not found


class Others(NamedTuple):
    """How many other tasks of the run Slurm has."""

    running: int
    waiting: int

    @property
    def any(self) -> bool:
        """Whether the run can go on without this task."""
        return self.running + self.waiting > 0


class Chain(NamedTuple):
    """The jobs of a submission that wait for this one to end."""

    size: int  # all jobs of the chain
    successor: str  # id of the next one; empty if this is the last


JOB = Mode(
    noun="job",
    starts="the job",
    agents="start the agents again on {nodes}",
    requeue="requeue {count}",
    again="it is submitted again ({count})",
    barred="this job may not be requeued (--no-requeue)",
    newer="start",
    said="srun ended with exit code {code} and the run has neither ended nor drained",
    flags="their flags are wrong",
    nowhere="nodes",
)
TASK = Mode(
    noun="task",
    starts="this task",
    agents="start the agent again",
    requeue="this task is requeued ({count})",
    again="another one is queued in its place ({count})",
    barred="Slurm may not requeue this task (Requeue=0)",
    newer="submission",
    said="srun ended with exit code {code} without a word",
    flags="its flags are wrong",
    nowhere="node",
)


class ScriptEnd(NamedTuple):
    """The end of a job script of the user's own, whose exit code is in the place of that of srun."""

    runs: bool = False  # it has not ended
    failure: Mapping[str, Any] | None = None  # a FailureRecord as JSON, with the end of its output
    lost: tuple[str, ...] = ()  # nodes of the job that do not answer to Slurm


class Facts(NamedTuple):
    """Everything the decision rests on."""

    state: RunState
    epoch: Epoch  # of this start; that of a task counts the task's own starts
    job: JobFacts | None  # None if Slurm does not answer
    job_id: str  # with the index of a task
    srun_exit_code: int
    in_vain: int = 0  # newest starts in a row, this one included, in which no round was formed
    launch_failure: SetupFailure | None = None  # the line of the job script that failed before srun
    earlier: Earlier = Earlier.NOTHING  # the fate of that line in this submission before
    has_script: bool = True  # a script of ours is there to submit again
    saved: int = BEGINNING  # newest durable step on disk
    # of a job
    ended_by: str = ""  # the signal that told the runner of a local run to end
    told: Cause | None = None  # why Slurm has put the job back into the queue
    chain: Chain | None = None  # the jobs that follow this one
    local: bool = False  # on one machine without Slurm
    ended_since: str = ""  # when the run ended, for people
    script: ScriptEnd | None = None  # None: agents of ours were started
    # of a task
    is_task: bool = False
    others: Others | None = None  # None if Slurm does not answer
    left: NodeLeft | None = None  # the record of the agent of this start on leaving
    is_outdated: bool = False  # the task was started anew, by the names of the members
    least: int = 1  # nodes that the run needs

    @property
    def mode(self) -> Mode:
        """The words about it."""
        return TASK if self.is_task else JOB

    @property
    def other_job(self) -> str:
        """The job that the run belongs to, if it is not this one; empty if it is, or for a task."""
        return "" if self.is_task else other_job(self.state, self.epoch, self.job_id)

    @property
    def counts(self) -> RunState:
        """The state with the counts of this submission, without the end of an earlier start.

        Another submission's do not matter. A start that a user has released has its new budget, though no
        agent of it has come.
        """
        state = self.state
        if state.epoch.submission != self.epoch.submission:
            return RunState()
        if self.is_task or state.epoch.script >= self.epoch.script:
            return state
        now = apply(state, EpochStarted(self.epoch, self.job_id, ()))
        return now if is_released(state, self.epoch) else now._replace(progress=state.progress)

    @property
    def requeues(self) -> int:
        """How often the run was requeued as a whole, or this task alone."""
        return self.epoch.restart + self.epoch.link if self.is_task else self.counts.requeues

    @property
    def may_requeue(self) -> bool:
        """Whether Slurm takes it back, as far as is known."""
        return self.job is None or self.job.may_requeue

    @property
    def not_started(self) -> bool:
        """Whether its nodes could not start it."""
        return self.job is not None and self.job.not_started

    @property
    def is_throttled(self) -> bool:
        """Whether Slurm starts no more tasks of this array than the user wants: `scale` sets that."""
        return self.state.wanted is not None and self.job_id.partition("_")[0] == self.state.job_id

    @property
    def any_others(self) -> bool:
        """Whether the run may go on without this start: other tasks run or wait, or may."""
        return self.is_task and (self.others is None or self.others.any)

    def may_resubmit(self, budgets: RequeueBudgets) -> bool:
        """Tell whether a further job may take the place of this one.

        A task takes the place of one that was of use: no count covers starts in vain of one task after
        the other.
        """
        return budgets.resubmits and self.has_script and not (self.is_task and self.in_vain)


class Exit(NamedTuple):
    """End with this code; `record` is to be written unless the run has ended already."""

    code: int
    why: str
    record: RunEnded | None = None


class Requeue(NamedTuple):
    """Record it, hand the job back to Slurm, end with code 75."""

    cause: Cause
    reason: str
    then: str  # the way on, and how often it may be taken, for people
    signal: str = ""  # sent by a user, so that the agents left

    @property
    def why(self) -> str:
        """The reason, for people."""
        return f"{self.reason}: {self.then}"


class Resubmit(NamedTuple):
    """Record it, submit the script once more, end with code 75."""

    cause: Cause
    reason: str
    then: str  # as in `Requeue`
    signal: str = ""  # as in `Requeue`

    @property
    def why(self) -> str:
        """The reason, for people."""
        return f"{self.reason}; {self.then}"


class Hold(NamedTuple):
    """Record it, have the job wait in the queue until its user releases it, end with code 75."""

    reason: str
    record: RunEnded | None = None  # None: it stands in the journal already

    @property
    def why(self) -> str:
        """The reason, for people."""
        return f"the run is held: {self.reason}"


class Relaunch(NamedTuple):
    """Start the step again on the nodes that are left."""

    nodes: int
    why: str


class Leave(NamedTuple):
    """Do nothing to the job and end with this code."""

    code: int
    why: str
    requeued: Cause | None = None  # the run goes on in another start: to be recorded
    is_open: bool = False  # it is not known whether the job goes on: its user has to look
    signal: str = ""  # as in `Requeue`


class GiveUp(NamedTuple):
    """Record it and leave; the run goes on without this task, or has failed if it was the last one."""

    reason: str

    @property
    def why(self) -> str:
        """The reason, for people."""
        return f"{self.reason}; this task is given up"


class SaveFirst(NamedTuple):
    """Have the workers of the other tasks save and stop, whose scripts then end the run.

    This task is held or leaves.
    """

    cause: Cause
    reason: str
    is_held: bool
    budget: Budget | None  # that is spent

    @property
    def why(self) -> str:
        """The reason, for people."""
        return f"{self.reason}; the other nodes are asked to save and stop"


Choice = Exit | Requeue | Resubmit | Hold | Relaunch | Leave | GiveUp | SaveFirst


def failed(reason: str) -> Exit:
    """Return the end of a run that nothing can go on with."""
    record = RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None)
    return Exit(ExitCode.FAILED, f"the run is failed: {reason}", record)


def ended_as(ending: RunEnded) -> Exit:
    """Return the end of a run with an ending that is to be recorded."""
    return Exit(ending.exit_code, f"the run is {ending.decision.value}: {ending.reason}", ending)


def hold(spent: Spent) -> Hold:
    """Return that the run is to wait for its user."""
    return Hold(spent.text, RunEnded(Decision.HELD, ExitCode.REQUEUE, spent.text, None, None, spent.budget))
