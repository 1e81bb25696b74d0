"""What becomes of a job once srun has returned. Pure.

Records decide, not exit codes: an ending in the journal is final, and Slurm is asked only what it has
done with the job already. A cancelled job is never brought back.

    ending in the journal                          -> Exit with its code
    held in the journal                            -> Hold: the job waits for its user
    a newer start of the run exists                -> Leave: this script is a left-over
    drained on the user's wish (stop, Ctrl-C)      -> Exit 0, recorded as stopped
    the local runner itself was told to end        -> Exit 75, recorded as stopped
    Slurm does not answer                          -> Leave: nothing is known, so nothing is done
    Slurm has put the job back itself              -> Leave, recorded; Hold if its budget is spent
    cancelled by the user                          -> Exit, recorded as cancelled
    ended by Slurm: limit, preemption, node down,
      batch script killed                          -> Requeue
    running and drained                            -> Requeue
    running, a line of the script failed           -> Requeue while that budget lasts; Exit or Hold if it
                                                      never worked and will not next time
    running, neither ended nor drained             -> Relaunch while that budget lasts, then Requeue

Instead of Requeue: Leave if the next job of a chain goes on, Resubmit where Slurm may not requeue the
job. Both are bounded, each cause by a budget of its own; a spent one is Hold, or ends the run as failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpc_elastic.ids import CANCELLED_CODE, ExitCode
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    Epoch,
    EpochStarted,
    Record,
    Requeued,
    RoundFormed,
    RunEnded,
    SetupFailure,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.record.why_left import USERS_WISH, Asker, drain_cause, stopped, who_asked
from hpc_elastic.settings.of_finish import FinishSettings
from hpc_elastic.settings.setting import usual
from hpc_elastic.settings.table import JobSettings
from hpc_elastic.slurm.client import job_standing as slurm_facts
from hpc_elastic.slurm.client.job_standing import true_cause
from hpc_elastic.slurm.end import setup_failure
from hpc_elastic.slurm.end.setup_failure import Earlier
from hpc_elastic.text import count_text

JobFacts = slurm_facts.JobFacts
GONE = slurm_facts.GONE
job_facts = slurm_facts.job_facts
standing = slurm_facts.standing
Standing = slurm_facts.Standing

MAX_STARTS_IN_VAIN = 5
_NEVER_STARTED = {
    int(ExitCode.USAGE): "their flags are wrong",
    126: "Python cannot be run",
    127: "Python was not found on the nodes",
}
_PLANNED = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE)
_OF_STARTS = (EpochStarted, RoundFormed, Requeued)
WORDS = {
    Cause.NODE_LOSS: "nodes were lost",
    Cause.PREEMPTION: "the job is preempted",
    Cause.TIME_LIMIT: "the time limit",
    Cause.REQUEUE: "requeued by hand (scontrol requeue)",
    Cause.JOIN_TIMEOUT: "too few nodes came",
    Cause.AGENT_ERROR: "the agents could not go on",
    Cause.LAUNCH_FAILURE: "the batch script was killed",
}


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
        limit, budget = {
            Cause.NODE_LOSS: (self.max_node_losses, Budget.NODE_LOSSES),
            Cause.PREEMPTION: (self.max_preemptions, Budget.PREEMPTIONS),
            Cause.TIME_LIMIT: (self.max_time_limits, Budget.TIME_LIMITS),
            Cause.LAUNCH_FAILURE: (self.max_launch_failures, Budget.LAUNCH_FAILURES),
        }.get(cause, (None, None))
        return None if limit is None or budget is None else (limit, budget)


class Spent(NamedTuple):
    """Why a run goes on no more, or only once its user has released it."""

    text: str  # for people
    budget: Budget | None = None  # that is spent


class Facts(NamedTuple):
    """Everything the decision rests on."""

    state: RunState
    epoch: Epoch  # of this start
    job: JobFacts | None
    job_id: str
    srun_exit_code: int
    in_vain: int  # newest starts in a row, this one included, in which no round was formed
    ended_by: str = ""  # the signal that told the runner of a local run to end
    launch_failure: SetupFailure | None = None  # the line of the job script that failed before srun
    earlier: Earlier = Earlier.NOTHING  # what became of that line in this submission before
    told: Cause | None = None  # why Slurm has put the job back into the queue
    chain: Chain | None = None  # the jobs that follow this one
    local: bool = False  # on one machine without Slurm
    has_script: bool = True  # a script of ours is there to submit again
    ended_since: str = ""  # when the run ended, for people
    saved: int = BEGINNING  # newest durable step on disk

    @property
    def without_save(self) -> int:
        """How many starts in a row, this one included, have saved nothing newer than they began from."""
        is_of_this = self.state.epoch.submission == self.epoch.submission
        return self.state.progress.starts_in_vain(self.saved) if is_of_this else 0


class Chain(NamedTuple):
    """The jobs of a submission that wait for this one to end."""

    size: int  # all jobs of the chain
    successor: str  # id of the next one; empty if this is the last


class Exit(NamedTuple):
    """End with this code; `record` is to be written unless the run has ended already."""

    code: int
    why: str
    record: RunEnded | None = None


class Requeue(NamedTuple):
    """Record it, hand the job back to Slurm, end with code 75."""

    cause: Cause
    reason: str
    then: str  # what is done, and how often it may be, for people
    signal: str = ""  # that somebody has sent, so that the agents left

    @property
    def why(self) -> str:
        """What people are told."""
        return f"{self.reason}: {self.then}"


class Resubmit(NamedTuple):
    """Record it, submit the script once more, end with code 75."""

    cause: Cause
    reason: str
    then: str  # as in `Requeue`
    signal: str = ""  # as in `Requeue`

    @property
    def why(self) -> str:
        """What people are told."""
        return f"{self.reason}; {self.then}"


class Hold(NamedTuple):
    """Record it, have the job wait in the queue until its user releases it, end with code 75."""

    reason: str
    record: RunEnded | None = None  # None: it stands in the journal already

    @property
    def why(self) -> str:
        """What people are told."""
        return f"the run is held: {self.reason}"


class Relaunch(NamedTuple):
    """Start the step again on the nodes that are left."""

    nodes: int
    why: str


class Leave(NamedTuple):
    """Do nothing to the job and end with this code."""

    code: int
    why: str
    requeued: Cause | None = None  # somebody else goes on with the run: to be recorded
    is_open: bool = False  # nobody knows whether the job goes on: its user has to look
    signal: str = ""  # as in `Requeue`


Choice = Exit | Requeue | Resubmit | Hold | Relaunch | Leave


def decide(facts: Facts, budgets: RequeueBudgets) -> Choice:
    """Choose what becomes of the job."""
    if facts.state.epoch > facts.epoch:
        return Leave(ExitCode.FENCED, "a newer start of this run exists")
    state = apply(facts.state, EpochStarted(facts.epoch, facts.job_id, ()))
    if state.ending is not None:
        return _by_record(state.ending, facts)
    cause = drain_cause(state)
    if cause in USERS_WISH or facts.ended_by:
        return _stopped(state) if cause in USERS_WISH else _ended_by(facts.ended_by, state)
    stands = standing(facts.job, facts.epoch.restart)
    if stands is Standing.RUNNING and facts.launch_failure is not None:
        return _script_failed(facts, facts.launch_failure, budgets)
    if stands is Standing.RUNNING and cause is None:
        return _without_word(facts, budgets)
    return _asked_to_leave(facts, stands, cause, budgets)


def by_record(ending: RunEnded) -> Exit | Hold:
    """Return what an ending in the journal comes to."""
    if ending.decision is Decision.HELD:
        return Hold(ending.reason)
    said = f"the run is {ending.decision.value}" + (f": {ending.reason}" if ending.reason else "")
    return Exit(_code_of(ending), said)


def _code_of(ending: RunEnded) -> int:
    is_failed = ending.decision is Decision.FAILED
    return (ending.exit_code or ExitCode.FAILED) if is_failed else ending.exit_code


def _by_record(ending: RunEnded, facts: Facts) -> Choice:
    if ending.decision is Decision.HELD and not facts.local:
        return Hold(ending.reason)
    if facts.state.epoch < facts.epoch:  # no agent of this start found anything to do
        since = f" since {facts.ended_since}" if facts.ended_since else ""
        said = f"the run was {ending.decision.value} already{since}, so nothing was started"
        return Exit(_code_of(ending), said)
    choice = by_record(ending)
    return Exit(_code_of(ending), choice.why) if isinstance(choice, Hold) else choice


def _stopped(state: RunState) -> Exit:
    ending = stopped(state)
    return Exit(ending.exit_code, f"the run is stopped: {ending.reason}", ending)


def _ended_by(name: str, state: RunState) -> Exit:
    ending = ended_by(name, state)
    return Exit(ending.exit_code, f"the run is stopped: {ending.reason}", ending)


def ended_by(name: str, state: RunState) -> RunEnded:
    """Return the ending of a local run whose runner a signal has told to end.

    Args:
        name: the signal.
        state: the run; the step of what was saved is shown if it is known.
    """
    step = state.drained.step if state.drained is not None else None
    reason = f"ended by {name}" + ("" if step is None else f"; checkpoint of step {step}")
    return RunEnded(Decision.STOPPED, ExitCode.REQUEUE, reason, None)


def _asked_to_leave(facts: Facts, stands: Standing, asked: Cause | None, budgets: RequeueBudgets) -> Choice:
    cause = true_cause(facts.job, stands, asked, told=facts.told) or Cause.AGENT_ERROR
    match stands:
        case Standing.UNKNOWN:
            known = slurm_facts.unknown_text(facts.job)
            why = f"{known}, so the job is left as it is and is not started again from here"
            why = f"{facts.launch_failure.text}; {why}" if facts.launch_failure is not None else why
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case Standing.REQUEUED:
            spent = _spent(facts, cause, budgets)
            why = f"Slurm has requeued the job itself: {_word(facts, cause)}"
            return _hold(spent, facts, budgets) if spent else Leave(ExitCode.REQUEUE, why, cause)
        case Standing.CANCELLED:
            ending = RunEnded(Decision.CANCELLED, CANCELLED_CODE, "the job was cancelled", None)
            return Exit(CANCELLED_CODE, "the job was cancelled, so it is not requeued", ending)
        case Standing.ENDING:
            reason = facts.job.reason if facts.job else ""
            why = f"Slurm ends the job (Reason={reason}), so it is not requeued"
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case _:
            return _requeue(facts, cause, budgets)


def _asker(facts: Facts, cause: Cause) -> Asker:
    """Return what asked for the end, where Slurm says that it does nothing to the job itself."""
    is_let_be = slurm_facts.is_let_be(facts.job, facts.epoch.restart) and not _has_not_started(facts)
    return who_asked(facts.state, cause, runs_on=True) if is_let_be else Asker()


def _sent(facts: Facts, cause: Cause) -> str:
    """Return the signal that somebody has sent, so that the agents left; empty: none, as far as is known."""
    asker = _asker(facts, cause)
    return asker.signal if asker.is_sent else ""


def _word(facts: Facts, cause: Cause) -> str:
    if _has_not_started(facts):
        return "its nodes could not start it"
    return _asker(facts, cause).text or WORDS.get(cause, cause.value)


def _has_not_started(facts: Facts) -> bool:
    return facts.job is not None and facts.job.not_started


def _script_failed(facts: Facts, failure: SetupFailure, budgets: RequeueBudgets) -> Choice:
    """Choose for a job whose script failed before srun; a line that has worked before may be the node's.

    A line that fails twice alike may still be a node's or a file server's fault: that holds a run and never
    ends it.
    """
    why, cause = failure.text, Cause.LAUNCH_FAILURE
    if failure.lasting and facts.earlier in (Earlier.NOTHING, Earlier.FAILED):
        return failed(f"{why}; it would fail again, so {setup_failure.FIX}")
    is_again = facts.earlier is Earlier.FAILED and not _spent(facts, cause, budgets)
    if is_again and _may_hold(facts, budgets):
        return _hold(Spent(f"{why}; as in an earlier start"), facts, budgets)
    return _requeue(facts, cause, budgets, why)


def _without_word(facts: Facts, budgets: RequeueBudgets) -> Choice:
    """Choose for a running job whose srun returned though the run goes on: srun or all agents died."""
    code = facts.srun_exit_code
    if code in _NEVER_STARTED and facts.state.epoch < facts.epoch:
        return failed(
            f"no agent could start, {_NEVER_STARTED[code]} (exit code {code} of srun); see the lines above"
        )
    said = f"srun ended with exit code {code} and the run has neither ended nor drained"
    none_came = facts.state.epoch.script < facts.epoch.script  # in this start of the job
    cause = Cause.LAUNCH_FAILURE if none_came else Cause.AGENT_ERROR
    if facts.epoch.relaunch > 0 and facts.state.epoch < facts.epoch:
        again = "" if none_came else " again"
        return _requeue(facts, cause, budgets, f"{said}; no agent could be started{again}")
    if facts.epoch.relaunch < budgets.max_relaunch and facts.job is not None and facts.job.nodes > 0:
        count = f"{facts.epoch.relaunch + 1} of {budgets.max_relaunch}"
        nodes = facts.job.nodes
        return Relaunch(nodes, f"{said}; start the agents again on {count_text(nodes, 'node')} ({count})")
    return _requeue(facts, cause, budgets, said)


def _requeue(facts: Facts, cause: Cause, budgets: RequeueBudgets, said: str = "") -> Choice:
    unfit = slurm_facts.unfit_text(facts.state, facts.epoch) if cause is Cause.NODE_LOSS else ""
    why = said or unfit or _word(facts, cause)
    asker = Asker() if said or unfit else _asker(facts, cause)
    if cause not in _PLANNED and facts.in_vain >= budgets.max_starts_in_vain:
        why = f"{facts.in_vain} starts of the job in a row brought no workers up; the last one: {why}"
        return failed(why)
    spent = _spent(facts, cause, budgets)
    if spent is not None:
        now = asker.as_counted if asker.is_sent else why
        return _hold(Spent(f"{spent.text}; now: {now}", spent.budget), facts, budgets)
    return _go_on(facts, cause, budgets, why)


def _go_on(facts: Facts, cause: Cause, budgets: RequeueBudgets, why: str) -> Choice:
    """Have the run started once more, by whatever way is open."""
    if facts.chain is not None:
        return _next_of_chain(facts.chain, cause, why)
    count = f"{_state_of(facts).requeues + 1} of at most {budgets.max_requeues}"
    if facts.job is None or facts.job.may_requeue:
        return Requeue(cause, why, f"requeue {count}", _sent(facts, cause))
    if budgets.resubmits and facts.has_script:
        then = f"this job may not be requeued, so it is submitted again ({count})"
        return Resubmit(cause, why, then, _sent(facts, cause))
    return failed(f"{why}, and this job may not be requeued (it was submitted with --no-requeue)")


def _state_of(facts: Facts) -> RunState:
    """Return the state with the counts of this submission; another one's do not matter."""
    return facts.state if facts.state.epoch.submission == facts.epoch.submission else RunState()


def _spent(facts: Facts, cause: Cause, budgets: RequeueBudgets) -> Spent | None:
    """Return which budget one more requeue for a cause would exceed, None if none."""
    state = _state_of(facts)
    if in_vain := _in_vain(facts, budgets):
        return Spent(in_vain, Budget.STARTS_WITHOUT_SAVE)
    if cause is Cause.LAUNCH_FAILURE and facts.local:
        return Spent("a local run is not started again after that")  # whoever looks on mends it sooner
    is_counted = state.ended is not None and state.ended.cause is cause  # when its round ended
    is_counted |= cause is Cause.NODE_LOSS and state.only_unfit  # nobody was lost
    bound = budgets.of(cause)
    if bound is not None and state.used(cause) + (not is_counted) > bound[0]:
        return spent_budget(*bound)
    return spent_requeues(budgets) if state.requeues >= budgets.max_requeues else None


def spent_budget(limit: int, budget: Budget) -> Spent:
    """Return that the budget of a cause is spent."""
    return Spent(f"the budget {budget.value} = {limit} is spent", budget)


def spent_requeues(budgets: RequeueBudgets) -> Spent:
    """Return that the budget of all requeues is spent."""
    return Spent(f"the budget of {budgets.max_requeues} requeues (max_requeues) is spent", Budget.REQUEUES)


def _in_vain(facts: Facts, budgets: RequeueBudgets) -> str:
    """Return that starts lead nowhere; a program that tells nothing of its saves may save by itself."""
    limit, starts = budgets.max_starts_without_save, facts.without_save
    if limit is None or not limit or starts < limit or not facts.state.progress.tells:
        return ""
    newest = max(facts.saved, facts.state.progress.newest)
    what = "nothing" if newest == BEGINNING else f"nothing newer than step {newest}"
    return f"{count_text(starts, 'start')} in a row saved {what} (max_starts_without_save = {limit})"


def _hold(spent: Spent, facts: Facts, budgets: RequeueBudgets) -> Choice:
    """Have the run wait for its user, where it can; else it has failed."""
    if not _may_hold(facts, budgets):
        return failed(spent.text)
    why = spent.text + (f"; {setup_failure.FIX_IN_QUEUE}" if facts.launch_failure is not None else "")
    return hold(Spent(why, spent.budget))


def hold(spent: Spent) -> Hold:
    """Return that the run is to wait for its user."""
    return Hold(spent.text, RunEnded(Decision.HELD, ExitCode.REQUEUE, spent.text, None, None, spent.budget))


def _may_hold(facts: Facts, budgets: RequeueBudgets) -> bool:
    """Tell whether there is a queue to wait in, and its user wants that."""
    may_wait = facts.job is None or facts.job.may_requeue or facts.job.held
    return budgets.holds and not facts.local and facts.chain is None and may_wait


def _next_of_chain(chain: Chain, cause: Cause, why: str) -> Choice:
    if chain.successor:
        return Leave(ExitCode.REQUEUE, f"{why}: job {chain.successor} goes on with the run", cause)
    reason = f"{why}, and the chain is used up: this was the last of its {chain.size} jobs"
    ending = RunEnded(Decision.STOPPED, ExitCode.REQUEUE, reason, None)
    return Exit(ExitCode.REQUEUE, f"the run is stopped: {reason}", ending)


def failed(reason: str) -> Exit:
    """Return the end of a run that nothing can go on with."""
    record = RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None)
    return Exit(ExitCode.FAILED, f"the run is failed: {reason}", record)


def starts_in_vain(records: Iterable[Record], epoch: Epoch) -> int:
    """Return how many of the newest starts of a submission, up to this one, formed no round.

    Relaunches of the agents belong to one start. Starts that were preempted, at their limit or requeued
    by hand are not counted: nothing was wrong with them.
    """
    found = (entry for entry in (record.entry for record in records) if isinstance(entry, _OF_STARTS))
    mine = [entry for entry in found if entry.epoch.submission == epoch.submission]
    formed = [entry.epoch.script for entry in mine if isinstance(entry, RoundFormed)]
    planned = {one.epoch.script for one in mine if isinstance(one, Requeued) and one.cause in _PLANNED}
    starts = {entry.epoch.script for entry in mine} | {epoch.script}
    return sum(not formed or start > max(formed) for start in starts - planned)
