"""The fate of a job, or of one task of an array, once srun has returned. Pure.

Records decide, not exit codes: an ending in the journal is final, and Slurm is asked only for its own
acts on the job so far. A cancelled job is never brought back. Each task of an array is a job of one
node, and decides for itself alone; the run is that of all tasks.

    the run belongs to another job                 -> Leave: its agents were refused, and so is finish
    a newer start of the run, or of the task       -> Leave: this script is a left-over
    ending in the journal                          -> Exit with its code
    held in the journal                            -> Hold: the job waits for its user
    drained on the user's wish (stop, Ctrl-C)      -> Exit 0, recorded as stopped
      of a task, and others still save             -> Leave: the last ones record it
    a signal has ended the local runner            -> Exit 75, recorded as stopped
    Slurm does not answer                          -> Leave: nothing is known, so nothing is done
    Slurm has put it back itself                   -> Leave, that of a job recorded; or a spent budget
    cancelled by the user                          -> Exit, recorded as cancelled
      of a task, and others run or wait            -> Leave: the run goes on without this task
    ended by Slurm: limit, preemption, node down,
      batch script killed                          -> Requeue
    running, a line of the script failed           -> Requeue while that budget lasts; given up or Hold if
                                                      it never worked and will not next time
    running, the node of a task is not needed      -> Requeue where a throttle keeps it waiting, else Leave
    running, too few tasks are left for the run    -> Exit, recorded as failed
    running and drained, or the task's agent left  -> Requeue
    running in the grace of a preemption           -> Requeue: nothing is started in it
    running, neither of that                       -> Relaunch while that budget lasts, then Requeue

Of a job script of the user's own the exit code decides where Slurm lets the job run:

    in the grace of a preemption                   -> Requeue, with any exit code: a script goes on behind a
                                                      program that SIGTERM has ended
    exit code 0                                    -> Exit 0, recorded as done
    another one, and a node does not answer        -> Requeue
    another one                                    -> Exit with it, recorded as failed

Requeue is bounded, each cause by a budget of its own, for all starts of the run; that of a task by the
restart count of the task as well. A spent budget is Hold, or ends the run as failed; workers of other
tasks save first (SaveFirst). In place of Requeue: Leave if the next job of a chain goes on, Resubmit where
Slurm may not requeue it. A start that brings no workers up again and again ends the run as failed; a task
is given up (GiveUp) while there are others. The run ends as failed with the last of those: each writes
that down first, so that of several that are given up at once the one whose record comes last sees those
of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import CANCELLED_CODE
from hpc_elastic.record.causes import CAUSES
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
from hpc_elastic.record.progress import Progress
from hpc_elastic.record.state import RunState, apply, has_ended
from hpc_elastic.record.why_left import USERS_WISH, Asker, asked_by, drain_cause, stopped, who_asked
from hpc_elastic.slurm.client.job_standing import (
    Standing,
    signal_not_from_slurm,
    standing,
    true_cause,
    unfit_text,
    unknown_text,
)
from hpc_elastic.slurm.end import history
from hpc_elastic.slurm.end.choices import (
    Chain,
    Choice,
    Exit,
    Facts,
    GiveUp,
    Hold,
    Leave,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
    SaveFirst,
    ScriptEnd,
    Spent,
    ended_as,
    failed,
    hold,
)
from hpc_elastic.slurm.end.history import Earlier, in_vain_text
from hpc_elastic.text import are_text, count_text

_LEFT_BY_AGENT = (ExitCode.REQUEUE, ExitCode.WEDGED, ExitCode.UNFIT)
_PLANNED = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE, Cause.NODE_DRAIN)
_DONE = RunEnded(Decision.DONE, ExitCode.OK, "", None)
_OF_STARTS = (EpochStarted, RoundFormed, Requeued)


def decide(facts: Facts, budgets: RequeueBudgets) -> Choice:
    """Choose the fate of the job or task."""
    state = _now(facts)
    asked = drain_cause(state)
    if choice := _settled(facts, state, asked):
        return choice
    if facts.script is not None and state.requeued:
        return Leave(ExitCode.REQUEUE, "the job is requeued already")
    stands = standing(facts.job, facts.epoch.restart)
    if stands is Standing.RUNNING:
        return _running(facts, asked, budgets)
    return _not_running(facts, stands, asked, budgets)


def _settled(facts: Facts, state: RunState, asked: Cause | None) -> Choice | None:
    """Choose where the records, or the user's wish, leave nothing to decide."""
    if facts.other_job and not has_ended(state):
        return Leave(ExitCode.USAGE, f"the run belongs to job {facts.other_job}, so nothing is done to it")
    if _is_late(facts):
        return Leave(ExitCode.FENCED, f"a newer {facts.mode.newer} of this run exists")
    if state.ending is not None:
        return _by_record(state.ending, facts)
    if facts.is_outdated:
        return Leave(ExitCode.FENCED, "this task was started anew elsewhere")
    if asked in USERS_WISH:
        return _stopped(facts, state)
    return ended_as(ended_by(facts.ended_by, state)) if facts.ended_by else None


def _is_late(facts: Facts) -> bool:
    """Tell whether a newer start of the run has begun; tasks of an array share those of a submission."""
    known = facts.state.epoch
    return known.submission > facts.epoch.submission or (not facts.is_task and known > facts.epoch)


def _now(facts: Facts) -> RunState:
    """Return the state as of this start; a task leaves the start of the run to its agents."""
    if not facts.is_task:
        return apply(facts.state, EpochStarted(facts.epoch, facts.job_id, ()))
    ending, is_ours = facts.state.ending, facts.state.epoch.submission == facts.epoch.submission
    is_held = ending is not None and ending.decision is Decision.HELD
    is_over = is_ours and not (is_held and facts.is_outdated)
    return facts.state if is_over else facts.state._replace(ending=None)


def _by_record(ending: RunEnded, facts: Facts) -> Choice:
    if ending.decision is Decision.HELD and not facts.local:
        return Hold(ending.reason)
    is_failed = ending.decision is Decision.FAILED
    code = (ending.exit_code or ExitCode.FAILED) if is_failed else ending.exit_code
    if not facts.is_task and facts.state.epoch < facts.epoch:  # no agent of this start found anything to do
        since = f" since {facts.ended_since}" if facts.ended_since else ""
        return Exit(code, f"the run was {ending.decision.value} already{since}, so nothing was started")
    return Exit(code, f"the run is {ending.decision.value}" + (f": {ending.reason}" if ending.reason else ""))


def _stopped(facts: Facts, state: RunState) -> Choice:
    """End the run as stopped; of several tasks the last one does, once all have saved."""
    if state.drained is None and facts.others is not None and facts.others.running:
        return Leave(ExitCode.OK, "the run is being stopped; the other nodes still save")
    return ended_as(stopped(state))


def ended_by(name: str, state: RunState) -> RunEnded:
    """Return the ending of a local run whose runner a signal has ended.

    Args:
        name: the signal.
        state: the run; the step of the last save is shown if it is known.
    """
    step = state.drained.step if state.drained is not None else None
    reason = f"ended by {name}" + ("" if step is None else f"; checkpoint of step {step}")
    return RunEnded(Decision.STOPPED, ExitCode.REQUEUE, reason, None)


def _running(facts: Facts, asked: Cause | None, budgets: RequeueBudgets) -> Choice:
    if facts.launch_failure is not None:
        return _script_failed(facts, facts.launch_failure, budgets)
    if facts.script is not None:
        return _own_script(facts, facts.script, budgets)
    if facts.is_task:
        if choice := _with_others(facts, budgets):
            return choice
        word = facts.left or facts.state.drained
        asked = None if word is None else word.cause
        is_warned = facts.job is not None and facts.job.warned
        if asked is None and facts.srun_exit_code in _LEFT_BY_AGENT and not is_warned:
            return _requeue(facts, Cause.AGENT_ERROR, budgets, "the agent has left this node")
    if asked is None:
        return _without_word(facts, budgets)
    return _requeue(facts, _cause(facts, Standing.RUNNING, asked), budgets)


def _own_script(facts: Facts, script: ScriptEnd, budgets: RequeueBudgets) -> Choice:
    """Choose for a running job whose own script has ended, or has got a signal."""
    code = facts.srun_exit_code
    if script.runs:
        return Leave(ExitCode.OK, "Slurm lets the job run, so the signal was for the job script alone")
    how = f"the job script ended with exit code {code}"
    if facts.job is not None and facts.job.warned:
        return _requeue(facts, Cause.PREEMPTION, budgets, f"{how} as the job is preempted")
    if code == 0:
        return Exit(0, "the run is done: the job script ended with exit code 0", _DONE)
    if script.lost:
        return _requeue(facts, Cause.NODE_LOSS, budgets, f"{how}, and {_absent(script.lost)}")
    if script.failure is None:
        return ended_as(RunEnded(Decision.FAILED, code, how, None))
    return Exit(code, f"the run is failed: {how}", RunEnded(Decision.FAILED, code, "", dict(script.failure)))


def _absent(nodes: tuple[str, ...]) -> str:
    return f"{', '.join(nodes)} {'does' if len(nodes) == 1 else 'do'} not answer to Slurm"


def refuse_start(facts: Facts) -> Choice | None:
    """Choose the end of a start of a job script of the user's own that must not begin; None: it may.

    Args:
        facts: all that is known; the ends of earlier starts are recorded.
    """
    ending = facts.state.ending
    if ending is not None and ending.decision is Decision.DONE:  # a task of an array that is queued again
        return _by_record(ending, facts)
    return _settled(facts, _now(facts), None)


def _with_others(facts: Facts, budgets: RequeueBudgets) -> Choice | None:
    """Choose for a task by its place in the run; None: as for a job."""
    left, drained = facts.left, facts.state.drained
    if left is not None and left.cause is Cause.MEMBERSHIP:
        if facts.is_throttled and facts.may_requeue:
            said = f"not needed ({left.detail}); it waits for another scale"
            return _requeue(facts, left.cause, budgets, said)
        return Leave(ExitCode.OK, f"not needed ({left.detail}), so the task ends")
    if left is not None or drained is None:
        return None
    if drained.cause is Cause.JOIN_TIMEOUT and (too_few := _too_few_text(facts)):
        return failed(too_few)
    if drained.budget is not None:  # the script of another task has found that it is spent
        return _hold(Spent(drained.detail, drained.budget), facts, budgets, drained.cause)
    return None


def _too_few_text(facts: Facts) -> str:
    """Return that the run cannot have its minimum again, however long its tasks wait; empty if it can."""
    have = facts.least if facts.others is None else 1 + facts.others.running + facts.others.waiting
    if have >= facts.least:
        return ""
    left = f"only {are_text(have, 'task')} left, and the run needs {facts.least} nodes"
    return f"{left}; the others were cancelled or given up"


def _not_running(facts: Facts, stands: Standing, asked: Cause | None, budgets: RequeueBudgets) -> Choice:
    noun = facts.mode.noun
    if facts.is_task:  # the other tasks may be asked for another reason
        asked = None if facts.left is None else facts.left.cause
    match stands:
        case Standing.UNKNOWN:
            said = f"{facts.launch_failure.text}; " if facts.launch_failure is not None else ""
            known = unknown_text(facts.job)
            why = f"{said}{known}, so the {noun} is left as it is and is not started again from here"
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case Standing.REQUEUED:
            cause = _cause(facts, stands, asked)
            why = f"Slurm has requeued the {noun} itself: {_word(facts, cause)}"
            spent = _spent(facts, cause, budgets)
            is_whole = not facts.is_task or (spent is not None and spent.budget is not Budget.REQUEUES)
            if spent is not None and is_whole:  # Slurm has requeued one task of the run, not all
                return _hold(spent._replace(text=f"{spent.text}; now: {why}"), facts, budgets, cause)
            return Leave(ExitCode.REQUEUE, why, None if facts.is_task else cause)
        case Standing.CANCELLED:
            return cancelled(facts, f"the {noun} was cancelled, so it is not requeued")
        case Standing.ENDING:
            reason = facts.job.reason if facts.job else ""
            why = f"Slurm ends the {noun} (Reason={reason}), so it is not requeued"
            return Leave(ExitCode.REQUEUE, why, is_open=True)
        case _:
            return _requeue(facts, _cause(facts, stands, asked), budgets)


def _cause(facts: Facts, stands: Standing, asked: Cause | None) -> Cause:
    """Return why a start ends; the agent of a task has recorded the cause by which the run counts it."""
    job = None if facts.is_task else facts.job
    cause = true_cause(job, stands, asked, told=facts.told)
    if cause is not None:
        return cause
    return Cause.LAUNCH_FAILURE if facts.not_started else Cause.REQUEUE  # a task, which Slurm has requeued


def _asker(facts: Facts, cause: Cause) -> Asker:
    """Return the request behind the end, where Slurm says that it does nothing to the job itself."""
    if not signal_not_from_slurm(facts.job, facts.epoch.restart):
        return Asker()
    if not facts.is_task:
        return who_asked(facts.state, cause, runs_on=True)
    word = facts.left or facts.state.drained
    return Asker() if word is None else asked_by(cause, word.detail, word.asked, runs_on=True)


def _word(facts: Facts, cause: Cause) -> str:
    if facts.not_started:
        return "its nodes could not start it"
    if facts.is_task and cause is Cause.REQUEUE:
        return "it gives no reason"
    is_alone = facts.is_task or cause is Cause.LAUNCH_FAILURE  # for which agents leave that have started
    return _asker(facts, cause).text or (CAUSES[cause].alone if is_alone else CAUSES[cause].clause)


def _script_failed(facts: Facts, failure: SetupFailure, budgets: RequeueBudgets) -> Choice:
    """Choose for a job whose script failed before srun; a line that has worked before may be the node's.

    A line that fails twice alike may still be a node's or a file server's fault: that holds a run and never
    ends it. A task is requeued, as the line may work on other nodes.
    """
    why, cause = failure.text, Cause.LAUNCH_FAILURE
    if failure.lasting and facts.earlier in (Earlier.NOTHING, Earlier.FAILED):
        return _give_up(facts, f"{why}; it would fail again, so {history.FIX}")
    is_again = facts.earlier is Earlier.FAILED and not facts.is_task
    if is_again and _may_hold(facts, budgets) and not _spent(facts, cause, budgets):
        return _hold(Spent(f"{why}; as in an earlier start"), facts, budgets, cause)
    return _requeue(facts, cause, budgets, why)


def _without_word(facts: Facts, budgets: RequeueBudgets) -> Choice:
    """Choose for a running job whose srun returned though the run goes on: srun or all agents died."""
    code, relaunch, mode = facts.srun_exit_code, facts.epoch.relaunch, facts.mode
    never = {
        int(ExitCode.USAGE): mode.flags,
        126: "Python cannot be run",
        127: f"Python was not found on the {mode.nowhere}",
    }
    if code in never and _is_unused(facts):
        return failed(f"no agent could start, {never[code]} (exit code {code} of srun); see the lines above")
    if facts.job is not None and facts.job.warned:  # the signal came before the agents heard any
        return _requeue(facts, Cause.PREEMPTION, budgets)
    said, cause, nodes = _vanished(facts)
    if relaunch < budgets.max_relaunch and nodes > 0:
        on = mode.agents.format(nodes=count_text(nodes, "node"))
        return Relaunch(nodes, f"{said}; {on} ({relaunch + 1} of {budgets.max_relaunch})")
    return _requeue(facts, cause, budgets, said)


def _is_unused(facts: Facts) -> bool:
    """Tell whether no agent has recorded this start; that of a task, this submission."""
    known, mine = facts.state.epoch, facts.epoch
    return known.submission < mine.submission if facts.is_task else known < mine


def _vanished(facts: Facts) -> tuple[str, Cause, int]:
    """Return how the agents vanished, the cause that this counts as, and the nodes for another srun."""
    code = facts.srun_exit_code
    said = facts.mode.said.format(code=code)
    if facts.is_task:
        said = "the run began anew meanwhile" if code == ExitCode.FENCED else said
        return said, Cause.AGENT_ERROR, 1
    none_came = facts.state.epoch.script < facts.epoch.script  # in this start of the job
    cause = Cause.LAUNCH_FAILURE if none_came else Cause.AGENT_ERROR
    in_vain = facts.epoch.relaunch > 0 and _is_unused(facts)
    if in_vain:
        said = f"{said}; no agent could be started{'' if none_came else ' again'}"
    return said, cause, 0 if in_vain or facts.job is None else facts.job.nodes


def _requeue(facts: Facts, cause: Cause, budgets: RequeueBudgets, said: str = "") -> Choice:
    """Have it started once more, unless a budget is spent.

    Args:
        facts: all that is known.
        cause: why it goes back.
        budgets: how often it may.
        said: the same for people; empty: by the cause.
    """
    said = said or (_unfit(facts) if cause is Cause.NODE_LOSS else "")
    asker = _asker(facts, cause)
    why, most = said or _word(facts, cause), _most_in_vain(facts, cause, budgets)
    if most is not None and facts.in_vain >= most:
        rows = f"{facts.in_vain} starts of {facts.mode.starts} in a row brought no workers up"
        return _give_up(facts, f"{rows}; the last one: {why}")
    if facts.is_task and facts.requeues >= budgets.max_requeues:
        return _give_up(facts, f"the {budgets.max_requeues} requeues of this task are used; now: {why}")
    if spent := _spent(facts, cause, budgets):
        now = asker.as_counted or why
        text = f"{spent.text}; now: {now}" if spent.budget is not None else f"{now}; {spent.text}"
        return _hold(spent._replace(text=text), facts, budgets, cause)
    return _go_on(facts, budgets, Requeue(cause, why, "", "" if facts.is_task else asker.signal))


def _unfit(facts: Facts) -> str:
    """Return that nodes were left because they are unfit; empty if they were lost."""
    if not facts.is_task:
        return unfit_text(facts.state, facts.epoch)
    unfit = "" if facts.left is None else facts.state.unfit.get(facts.left.node, "")
    return f"this node is unfit ({unfit})" if unfit else ""


def _most_in_vain(facts: Facts, cause: Cause, budgets: RequeueBudgets) -> int | None:
    """Return after how many starts in vain there is no further one for a cause; None: without a limit."""
    if not facts.is_task:
        return None if cause in _PLANNED else budgets.max_starts_in_vain
    most = {
        Cause.AGENT_ERROR: budgets.max_starts_in_vain,
        Cause.LAUNCH_FAILURE: budgets.max_launch_failures + 1,
    }
    return most.get(cause)


def _go_on(facts: Facts, budgets: RequeueBudgets, choice: Requeue) -> Choice:
    """Have the run started once more, by whichever way is open."""
    cause, why, mode = choice.cause, choice.reason, facts.mode
    if facts.chain is not None:
        return _next_of_chain(facts.chain, cause, why)
    count = f"{facts.requeues + 1} of at most {budgets.max_requeues}"
    if facts.may_requeue:
        return choice._replace(then=mode.requeue.format(count=count))
    if facts.may_resubmit(budgets):
        then = f"{mode.barred}, so {mode.again.format(count=count)}"
        return Resubmit(cause, why, then, choice.signal)
    return _give_up(facts, f"{why}; {mode.barred}")


def _next_of_chain(chain: Chain, cause: Cause, why: str) -> Choice:
    if chain.successor:
        return Leave(ExitCode.REQUEUE, f"{why}: job {chain.successor} goes on with the run", cause)
    reason = f"{why}, and the chain is used up: this was the last of its {chain.size} jobs"
    return ended_as(RunEnded(Decision.STOPPED, ExitCode.REQUEUE, reason, None))


def _spent(facts: Facts, cause: Cause, budgets: RequeueBudgets) -> Spent | None:
    """Return which budget one more requeue for a cause would exceed, None if none."""
    state = facts.counts
    if in_vain := _saves_in_vain(facts, budgets, state.progress):
        return Spent(in_vain, Budget.STARTS_WITHOUT_SAVE)
    if cause is Cause.LAUNCH_FAILURE and facts.local:
        return Spent("a local run is not started again")  # its user looks on and mends it sooner
    bound = budgets.of(cause)
    if bound is not None and _used(facts, cause) > bound[0]:
        return Spent(f"the budget {bound[1].value} = {bound[0]} is spent", bound[1])
    is_again = not facts.is_task and facts.chain is None
    if is_again and (by_rounds := _exceeded_budget(facts, budgets)) is not None:
        return by_rounds[1]  # the next start would begin nothing
    # the start of an array is requeued as a whole once it is drained, and counted with its first task
    as_whole = not facts.is_task or (state.drained is not None and not state.requeued)
    if as_whole and state.requeues >= budgets.max_requeues:
        most = budgets.max_requeues
        return Spent(f"the budget of {most} requeues (max_requeues) is spent", Budget.REQUEUES)
    return None


def _used(facts: Facts, cause: Cause) -> int:
    """Return how often a cause has come up, this time included; the agents of an array record each time."""
    state = facts.counts
    is_counted = state.ended is not None and state.ended.cause is cause  # when its round ended
    is_counted |= cause is Cause.NODE_LOSS and state.only_unfit  # no node was lost
    return state.used(cause) + (not (facts.is_task or is_counted))


def stopped_before(facts: Facts) -> Choice | None:
    """Choose the end of a start whose run has stopped on request; None: it has not, or a record tells so.

    The workers have saved, and then all processes that could record the end were lost at once.

    Args:
        facts: all that is known; the ends of earlier starts are not recorded yet.
    """
    state, mine = facts.state, facts.epoch
    is_next = state.epoch.submission == mine.submission and state.epoch.script < mine.script
    is_next = is_next and not facts.is_task
    if not is_next or facts.other_job or state.ending is not None or state.drained is None:
        return None
    return ended_as(stopped(state)) if state.drained.cause is Cause.STOP else None


def before_start(facts: Facts, budgets: RequeueBudgets) -> Choice | None:
    """Choose the end of a start that has not begun, as a budget is exceeded already; None: it may begin.

    A budget that an end with a record has exceeded was compared by the script of that start, unless it was
    killed before it came to hold the job.

    Args:
        facts: all that is known; the ends of earlier starts are recorded.
        budgets: how often the job may be requeued.
    """
    if has_ended(facts.state) or facts.other_job or facts.is_outdated or _is_late(facts):
        return None  # the agents tell so
    is_mine = facts.state.epoch.submission == facts.epoch.submission
    is_released = is_mine and facts.state.ending is not None  # such a run has a new budget
    in_vain = "" if is_released else _saves_in_vain(facts, budgets, facts.counts.progress.of_last())
    facts = facts._replace(state=_now(facts))
    if is_released and facts.is_task:  # its agents renew the budgets; Slurm counts the requeue of the hold
        return None
    exceeded, vain = _exceeded(facts, budgets), facts.in_vain - 1  # without this start
    if exceeded is None and vain >= budgets.max_starts_in_vain and not (facts.is_task or is_released):
        return _give_up(facts, f"{vain} starts of {facts.mode.starts} in a row brought no workers up")
    if exceeded is None and facts.is_task and facts.requeues > budgets.max_requeues:
        return _give_up(facts, f"the {budgets.max_requeues} requeues of this task are used")
    if exceeded is None and in_vain:
        exceeded = Cause.REQUEUE, Spent(in_vain, Budget.STARTS_WITHOUT_SAVE)
    return None if exceeded is None else _hold(exceeded[1], facts, budgets, exceeded[0])


def _exceeded(facts: Facts, budgets: RequeueBudgets) -> tuple[Cause, Spent] | None:
    """Return the cause of which more ends are recorded than its budget allows, and that budget."""
    if (found := _exceeded_budget(facts, budgets)) is not None:
        cause, spent = found
        return cause, spent._replace(text=f"{spent.text}; before this start: {_word(facts, cause)}")
    if facts.is_task or facts.counts.requeues <= budgets.max_requeues:
        return None
    most = f"the budget of {budgets.max_requeues} requeues (max_requeues)"
    return Cause.REQUEUE, Spent(f"{most} is spent", Budget.REQUEUES)


def _exceeded_budget(facts: Facts, budgets: RequeueBudgets) -> tuple[Cause, Spent] | None:
    """Return a cause with more recorded ends, of rounds too, than its own budget allows, and that budget."""
    for cause in Cause:
        bound = budgets.of(cause)
        if bound is not None and facts.counts.used(cause) > bound[0]:
            return cause, Spent(f"the budget {bound[1].value} = {bound[0]} is spent", bound[1])
    return None


def _saves_in_vain(facts: Facts, budgets: RequeueBudgets, progress: Progress) -> str:
    """Return that starts in a row have saved nothing, so many that there is no further one; else nothing."""
    limit = budgets.max_starts_without_save
    return in_vain_text(progress, facts.saved, limit, of_starts=not facts.is_task)


def _hold(spent: Spent, facts: Facts, budgets: RequeueBudgets, cause: Cause) -> Choice:
    """Hold or end the run for a spent budget; workers that run in other tasks save first."""
    state, holds = facts.state, _may_hold(facts, budgets)
    is_training = state.running is not None and not state.leaving
    if is_training and facts.others is not None and facts.others.running:
        return SaveFirst(cause, spent.text, holds, spent.budget)
    if not holds:
        return failed(spent.text)
    if facts.launch_failure is not None:
        spent = spent._replace(text=f"{spent.text}; {history.FIX_IN_QUEUE}")
    return hold(spent)


def _may_hold(facts: Facts, budgets: RequeueBudgets) -> bool:
    """Tell whether there is a queue to wait in, and its user wants that."""
    may_wait = facts.job is None or facts.job.may_requeue or facts.job.held
    return budgets.holds and not facts.local and facts.chain is None and may_wait


def _give_up(facts: Facts, why: str) -> Choice:
    return GiveUp(why) if facts.any_others else failed(why)


def cancelled(facts: Facts, why: str) -> Choice:
    """Choose for a job that its user has cancelled.

    Args:
        facts: all that is known.
        why: the same for people.
    """
    if facts.any_others:
        return Leave(CANCELLED_CODE, f"{why}; the run goes on without it")
    whole = "all tasks of the array were cancelled" if facts.is_task else "the job was cancelled"
    return Exit(CANCELLED_CODE, why, RunEnded(Decision.CANCELLED, CANCELLED_CODE, whole, None))


def refused(facts: Facts, act: str, words: str) -> Choice:
    """Choose for a job that Slurm does not requeue or hold.

    Args:
        facts: all that is known.
        act: requeue or hold.
        words: Slurm's last words.
    """
    return _give_up(facts, f"Slurm did not {act} the {facts.mode.noun}: {words}")


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
