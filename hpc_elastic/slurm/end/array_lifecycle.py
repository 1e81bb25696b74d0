"""What becomes of one task of an array once its srun has returned. Pure.

Each task of an array is a job of one node, and decides for itself alone; the run is that of all tasks.
As in `lifecycle`, records decide, not exit codes.

    ending in the journal                          -> Exit with its code
    held in the journal                            -> Hold: the task waits for its user
    the task was started anew elsewhere            -> Leave: this script is a left-over
    a newer submission of the run exists           -> Leave
    drained on the user's wish (stop, Ctrl-C)      -> Exit 0, recorded as stopped
    asked to stop, and others still save           -> Leave: the last ones record it
    Slurm does not answer                          -> Leave: nothing is known, so nothing is done
    Slurm has put the task back itself             -> Leave, or as below if a budget of the run is spent
    cancelled, and other tasks run or wait         -> Leave: the run goes on without this task
    cancelled, and there is no other task          -> Exit, recorded as cancelled
    ended by Slurm: limit, preemption, node down   -> Requeue
    running, the node is not needed any more       -> Requeue where a throttle keeps it waiting, else Leave
    running, the node left or the run was drained  -> Requeue
    running, too few tasks are left for the run    -> Exit, recorded as failed
    running, a line of the script failed           -> Requeue while that budget lasts
    a budget of the run is spent                   -> the others save first; then Hold, or Exit as failed
    running, neither of that                       -> Relaunch while that budget lasts, then Requeue

Requeue means this task only. It is bounded by the restart count of the task. Where Slurm may not requeue
it: Resubmit, a task of a further array in its place, if this one was of use to the run; else it is given
up. The run ends as failed with the last of those: each writes that down first, so that of several that
are given up at once the one whose record comes last sees those of the others.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.ids import CANCELLED_CODE, ExitCode
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    Drained,
    NodeLeft,
    RunEnded,
    SetupFailure,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import USERS_WISH, Asker, asked_by, drain_cause, stopped
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, is_let_be, standing, unknown_text
from hpc_elastic.slurm.end import setup_failure
from hpc_elastic.slurm.end.lifecycle import (
    Exit,
    Hold,
    Leave,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
    Spent,
    by_record,
    failed,
    hold,
    spent_budget,
    spent_requeues,
)
from hpc_elastic.slurm.end.saves_text import stops_in_vain_text
from hpc_elastic.slurm.end.setup_failure import Earlier
from hpc_elastic.text import are_text

_NEVER_STARTED = {
    int(ExitCode.USAGE): "its flags are wrong",
    126: "Python cannot be run",
    127: "Python was not found on the node",
}
_ENDED = {
    Standing.TIME_LIMIT: (Cause.TIME_LIMIT, "the time limit of this task"),
    Standing.NODE_DOWN: (Cause.NODE_LOSS, "the node is down"),
    Standing.PREEMPTED: (Cause.PREEMPTION, "the task was preempted"),
    Standing.SCRIPT_DIED: (Cause.LAUNCH_FAILURE, "the batch script was killed"),
}
_LEFT = {
    Cause.PREEMPTION: "Slurm wants the node back",
    Cause.TIME_LIMIT: "the time limit of this task",
    Cause.NODE_LOSS: "a node was lost",
    Cause.JOIN_TIMEOUT: "too few nodes came",
    Cause.AGENT_ERROR: "the agents could not go on",
}


class Others(NamedTuple):
    """How many other tasks of the run Slurm has."""

    running: int
    waiting: int

    @property
    def any(self) -> bool:
        """Whether the run can go on without this task."""
        return self.running + self.waiting > 0


class TaskFacts(NamedTuple):
    """Everything the decision rests on."""

    state: RunState
    start: TaskStart  # of this task
    submission: int  # that this task belongs to
    job: JobFacts | None  # this task; None if Slurm does not answer
    others: Others | None  # None if Slurm does not answer
    srun_exit_code: int
    left: NodeLeft | None = None  # what the agent of this start has recorded on leaving
    launch_failure: SetupFailure | None = None  # the line of the job script that failed before srun
    earlier: Earlier = Earlier.NOTHING  # what became of that line in this submission before
    is_outdated: bool = False  # the task was started anew, as the members' names tell
    in_vain: int = 0  # newest starts of this task in a row that were in no round
    least: int = 1  # nodes that the run needs
    link: int = 0  # how many tasks came before this one in its place
    saved: int = BEGINNING  # newest durable step on disk
    may_resubmit: bool = False  # another one may take its place where Slurm does not requeue it

    @property
    def used(self) -> int:
        """How often the task was started again, or another one in its place."""
        return self.start.restart + self.link

    @property
    def may_requeue(self) -> bool:
        """Whether Slurm takes the task back, as far as is known."""
        return self.job is None or self.job.may_requeue

    @property
    def is_throttled(self) -> bool:
        """Whether Slurm starts no more tasks of this array than the user wants: `scale` has told it so."""
        return self.state.wanted is not None and self.start.array == self.state.job_id


class GiveUp(NamedTuple):
    """Record it and leave; the run goes on without this task, or has failed if it was the last one."""

    reason: str

    @property
    def why(self) -> str:
        """What people are told."""
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
        """What people are told."""
        return f"{self.reason}; the other nodes are asked to save and stop"


TaskChoice = Exit | Leave | Relaunch | Requeue | Resubmit | GiveUp | Hold | SaveFirst


def decide(facts: TaskFacts, budgets: RequeueBudgets) -> TaskChoice:
    """Choose what becomes of the task."""
    state = facts.state
    if state.epoch.submission > facts.submission:
        return Leave(ExitCode.FENCED, "a newer submission of this run exists")
    is_final = state.ending is not None and state.ending.decision is not Decision.HELD
    if (
        state.ending is not None
        and (is_final or not facts.is_outdated)
        and (state.epoch.submission == facts.submission)
    ):
        return by_record(state.ending)
    if facts.is_outdated:
        return Leave(ExitCode.FENCED, "this task was started anew elsewhere")
    if drain_cause(state) in USERS_WISH:
        return _on_wish(facts)
    stands = standing(facts.job, facts.start.restart)
    if stands is Standing.RUNNING:
        return _running(facts, budgets)
    return _ended_by_slurm(facts, stands, budgets)


def _on_wish(facts: TaskFacts) -> TaskChoice:
    """End the run as stopped once all have saved; before that its last task does."""
    state = facts.state
    if state.drained is None and facts.others is not None and facts.others.running:
        return Leave(ExitCode.OK, "the run is being stopped; the other nodes still save")
    ending = stopped(state)
    return Exit(ending.exit_code, f"the run is stopped: {ending.reason}", ending)


def _ended_by_slurm(facts: TaskFacts, stands: Standing, budgets: RequeueBudgets) -> TaskChoice:
    match stands:
        case Standing.UNKNOWN:
            said = f"{facts.launch_failure.text}; " if facts.launch_failure is not None else ""
            known = unknown_text(facts.job)
            why = f"{said}{known}, so the task is left as it is and is not started again from here"
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case Standing.REQUEUED:
            why = "Slurm has requeued the task itself"
            cause = facts.left.cause if facts.left is not None else Cause.REQUEUE
            if facts.left is None and facts.job is not None and facts.job.not_started:
                cause, why = Cause.LAUNCH_FAILURE, f"{why}: its nodes could not start it"
            return _over_budget(facts, cause, why, budgets) or Leave(ExitCode.REQUEUE, why)
        case Standing.CANCELLED:
            return not_requeued(facts.others, "it was cancelled", is_cancelled=True)
        case Standing.ENDING:
            why = f"Slurm ends the task (Reason={facts.job and facts.job.reason}), so it is not requeued"
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case _:
            cause, why = _ENDED.get(stands, (Cause.AGENT_ERROR, stands.value))
            return _requeue(facts, cause, why, budgets)


def _running(facts: TaskFacts, budgets: RequeueBudgets) -> TaskChoice:
    left, drained = facts.left, facts.state.drained
    if facts.launch_failure is not None:
        return _script_failed(facts, facts.launch_failure, budgets)
    if left is not None:
        return _after_leaving(facts, left, budgets)
    if drained is not None:
        return _after_drain(facts, drained, budgets)
    if facts.srun_exit_code in (ExitCode.REQUEUE, ExitCode.WEDGED, ExitCode.UNFIT):
        return _requeue(facts, Cause.AGENT_ERROR, "the agent has left this node", budgets)
    return _without_word(facts, budgets)


def _after_drain(facts: TaskFacts, drained: Drained, budgets: RequeueBudgets) -> TaskChoice:
    too_few = _too_few_text(facts) if drained.cause is Cause.JOIN_TIMEOUT else ""
    if too_few:
        return failed(too_few)
    if drained.budget is not None:  # the script of another task has found that it is spent
        return _end_all(facts, Spent(drained.detail, drained.budget), budgets, drained.cause)
    return _asked(facts, drained, budgets)


def _asked(facts: TaskFacts, left: NodeLeft | Drained, budgets: RequeueBudgets) -> TaskChoice:
    """Choose for a task whose workers have stopped as they were asked to."""
    asker, cause = Asker(), left.cause
    if is_let_be(facts.job, facts.start.restart):
        asker = asked_by(cause, left.detail, left.asked, runs_on=True)
    why = asker.text or _LEFT.get(cause, cause.value)
    return _requeue(facts, cause, why, budgets, asker.as_counted or why)


def _script_failed(facts: TaskFacts, failure: SetupFailure, budgets: RequeueBudgets) -> TaskChoice:
    """Choose for a task whose script failed before srun; what works on other nodes is this one's fault."""
    why = failure.text
    if failure.lasting and facts.earlier in (Earlier.NOTHING, Earlier.FAILED):
        return _give_up(facts, f"{why}; it would fail again, so {setup_failure.FIX}")
    return _requeue(facts, Cause.LAUNCH_FAILURE, why, budgets)


def _too_few_text(facts: TaskFacts) -> str:
    """Tell that the run cannot have its minimum any more, however long its tasks wait; empty if it can."""
    have = facts.least if facts.others is None else 1 + facts.others.running + facts.others.waiting
    if have >= facts.least:
        return ""
    left = f"only {are_text(have, 'task')} left, and the run needs {facts.least} nodes"
    return f"{left}; the others were cancelled or given up"


def _after_leaving(facts: TaskFacts, left: NodeLeft, budgets: RequeueBudgets) -> TaskChoice:
    if left.cause is Cause.MEMBERSHIP:
        return _not_needed(facts, left, budgets)
    unfit = facts.state.unfit.get(left.node, "") if left.cause is Cause.NODE_LOSS else ""
    if unfit:
        return _requeue(facts, left.cause, f"this node is unfit ({unfit})", budgets)
    return _asked(facts, left, budgets)


def _not_needed(facts: TaskFacts, left: NodeLeft, budgets: RequeueBudgets) -> TaskChoice:
    """Put a task back that the throttle keeps waiting until it is needed; else it is over."""
    if facts.is_throttled and facts.may_requeue:
        return _requeue(facts, left.cause, f"not needed ({left.detail}); it waits for another scale", budgets)
    return Leave(ExitCode.OK, f"not needed ({left.detail}), so the task ends")


def _without_word(facts: TaskFacts, budgets: RequeueBudgets) -> TaskChoice:
    """Choose for a running task whose srun returned though the run goes on: srun or the agent died."""
    code, relaunch = facts.srun_exit_code, facts.start.relaunch
    if code in _NEVER_STARTED and facts.state.epoch.submission < facts.submission:
        reason = f"no agent could start, {_NEVER_STARTED[code]} (exit code {code} of srun); see above"
        return failed(reason)
    is_fenced = code == ExitCode.FENCED
    said = "the run began anew meanwhile" if is_fenced else f"srun ended with exit code {code} without a word"
    if relaunch < budgets.max_relaunch:
        return Relaunch(1, f"{said}; start the agent again ({relaunch + 1} of {budgets.max_relaunch})")
    return _requeue(facts, Cause.AGENT_ERROR, said, budgets)


def _requeue(
    facts: TaskFacts, cause: Cause, why: str, budgets: RequeueBudgets, as_counted: str = ""
) -> TaskChoice:
    """Have the task started once more, unless a budget is spent.

    Args:
        facts: all that is known.
        cause: why it goes back.
        why: the same for people.
        budgets: how often it may.
        as_counted: the same with what it counts as.
    """
    most = {
        Cause.AGENT_ERROR: budgets.max_starts_in_vain,
        Cause.LAUNCH_FAILURE: budgets.max_launch_failures + 1,
    }.get(cause)
    if most is not None and facts.in_vain >= most:
        why = f"{facts.in_vain} starts of this task in a row brought no workers up; the last one: {why}"
        return _give_up(facts, why)
    if facts.used >= budgets.max_requeues:
        return _give_up(facts, f"the {budgets.max_requeues} requeues of this task are used; now: {why}")
    if facts.state.drained is not None and facts.state.requeues >= budgets.max_requeues:
        spent = spent_requeues(budgets)
        return _end_all(facts, spent._replace(text=f"{spent.text}; now: {why}"), budgets, cause)
    return _over_budget(facts, cause, as_counted or why, budgets) or _go_on(facts, cause, why, budgets)


def _over_budget(facts: TaskFacts, cause: Cause, why: str, budgets: RequeueBudgets) -> TaskChoice | None:
    """Choose what becomes of the run if the budget of a cause is spent; None if it is not."""
    progress = facts.state.progress
    if in_vain := stops_in_vain_text(progress, facts.saved, budgets.max_starts_without_save):
        return _end_all(facts, Spent(in_vain, Budget.STARTS_WITHOUT_SAVE), budgets, cause)
    bound = budgets.of(cause)
    if bound is None or facts.state.used(cause) <= bound[0]:
        return None
    spent = spent_budget(*bound)
    return _end_all(facts, spent._replace(text=f"{spent.text}; now: {why}"), budgets, cause)


def _go_on(facts: TaskFacts, cause: Cause, why: str, budgets: RequeueBudgets) -> TaskChoice:
    """Have the task started once more, by whatever way is open."""
    count = f"({facts.used + 1} of at most {budgets.max_requeues})"
    if facts.may_requeue:
        return Requeue(cause, why, f"this task is requeued {count}")
    why += "; Slurm may not requeue this task (Requeue=0)"
    if facts.may_resubmit:
        return Resubmit(cause, why, f"another one is queued in its place {count}")
    return _give_up(facts, why)


def _end_all(facts: TaskFacts, spent: Spent, budgets: RequeueBudgets, cause: Cause) -> TaskChoice:
    """End or hold the run for a spent budget; workers that run elsewhere save first."""
    state, holds = facts.state, budgets.holds and facts.may_requeue
    if state.running is not None and not state.leaving and facts.others is not None and facts.others.running:
        return SaveFirst(cause, spent.text, holds, spent.budget)
    return hold(spent) if holds else failed(spent.text)


def _give_up(facts: TaskFacts, why: str) -> TaskChoice:
    return GiveUp(why) if facts.others is None or facts.others.any else failed(why)


def not_requeued(others: Others | None, why: str, *, is_cancelled: bool) -> Exit | Leave | GiveUp:
    """Choose for a task that Slurm has refused to requeue.

    Args:
        others: the other tasks.
        why: Slurm's words.
        is_cancelled: the task was cancelled meanwhile.
    """
    if not is_cancelled:
        reason = f"Slurm did not requeue the task: {why}"
        return GiveUp(reason) if others is None or others.any else failed(reason)
    if others is None or others.any:
        return Leave(CANCELLED_CODE, f"this task is given up ({why}); the run goes on without it")
    ending = RunEnded(Decision.CANCELLED, CANCELLED_CODE, "all tasks of the array were cancelled", None)
    return Exit(CANCELLED_CODE, f"the run is cancelled: {ending.reason}", ending)
