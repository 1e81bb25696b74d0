"""What is said of a start of a job that a signal has ended; what becomes of it is the same."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    NO_SIGNAL,
    AfterDrain,
    Answer,
    Asked,
    Budget,
    Cause,
    Drained,
    DrainRequested,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.why_left import RUNS_ON
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.end.choices import Exit, Hold, Others, Requeue, SaveFirst
from hpc_elastic.slurm.end.lifecycle import decide
from hpc_elastic.slurm.end.lifecycle import decide as decide_task
from tests.slurm.test_array_lifecycle import BASE as TASK
from tests.slurm.test_array_lifecycle import EPOCH as TASK_EPOCH
from tests.slurm.test_array_lifecycle import ROUND as TASK_ROUND
from tests.slurm.test_array_lifecycle import STARTED as TASK_STARTED
from tests.slurm.test_array_lifecycle import left
from tests.slurm.test_lifecycle import BUDGETS, EPOCH, IN_GRACE, ROUND, RUNNING, STARTED, facts, state_of

TERM = Asked("SIGTERM")
DENIED = Asked("SIGTERM", Answer.DENIES, RUNS_ON)


def test_the_drain_of_a_node_is_no_preemption() -> None:
    """An administrator drains the node: no budget but that of all requeues counts it."""
    asked = DrainRequested(Cause.NODE_DRAIN, "n1", AfterDrain.LEAVE, "the drain of n1 (fan)")
    drained = Drained(EPOCH, Cause.NODE_DRAIN, 40, "the drain of n1 (fan)")
    known = facts(STARTED, ROUND, asked, drained, job=RUNNING)
    budgets = BUDGETS._replace(max_preemptions=0)
    why = "the drain of n1 (fan)"
    assert Requeue(Cause.NODE_DRAIN, why, "requeue 1 of at most 10") == decide(known, budgets)


@pytest.mark.parametrize(
    ("detail", "by", "job", "why"),
    [
        ("", TERM, RUNNING, "a SIGTERM that a user sent"),
        ("", DENIED, RUNNING, "a SIGTERM that a user sent"),
        ("", TERM, IN_GRACE, "preemption"),
        ("", DENIED, IN_GRACE, "preemption"),
        ("", Asked("SIGTERM", Answer.CONFIRMS, "preempted"), RUNNING, "preemption"),
        ("the drain of n1 (bad disk)", NO_SIGNAL, RUNNING, "the drain of n1 (bad disk)"),
        ("a max_preemptions: preempted", NO_SIGNAL, RUNNING, "a max_preemptions: preempted"),
    ],
)
def test_no_preemption_is_claimed_that_slurm_denies(detail: str, by: Asked, job: JobFacts, why: str) -> None:
    """Only the words change: what agents took for a preemption is requeued and counted as one."""
    asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, detail, asked=by)
    drained = Drained(EPOCH, Cause.PREEMPTION, 40, detail, asked=by)
    known = facts(STARTED, ROUND, asked, drained, job=job)
    sent = "SIGTERM" if "that a user sent" in why else ""
    assert Requeue(Cause.PREEMPTION, why, "requeue 1 of at most 10", sent) == decide(known, BUDGETS)
    held = decide(known, BUDGETS._replace(max_preemptions=0))
    assert isinstance(held, Hold)
    counts = ", which counts as a preemption" if "that a user sent" in why else ""
    assert f"the run is held: the budget max_preemptions = 0 is spent; now: {why}{counts}" == held.why
    assert held.record is not None
    assert held.record.budget is Budget.PREEMPTIONS


@pytest.mark.parametrize(
    ("by", "job", "why"),
    [
        (TERM, RUNNING, "a SIGTERM that a user sent"),
        (DENIED, RUNNING, "a SIGTERM that a user sent"),
        (TERM, IN_GRACE, "preemption"),
    ],
)
def test_a_task_is_not_called_preempted_either(by: Asked, job: JobFacts, why: str) -> None:
    """Only the words change: what the agent took for a preemption is requeued as one."""
    gone = left(Cause.PREEMPTION)._replace(detail="", asked=by)
    choice = decide_task(TASK._replace(left=gone, job=job, srun_exit_code=75), BUDGETS)
    assert Requeue(Cause.PREEMPTION, why, "this task is requeued (2 of at most 10)") == choice


def test_a_signal_that_spends_a_budget_says_what_it_counts_as() -> None:
    """The scripts of the other tasks, which save first, say the same in their turn."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    again = RoundFormed(2, TASK_EPOCH, TASK_ROUND.members[:1], "n1", 1, None)
    gone = left(Cause.PREEMPTION)._replace(detail="", asked=TERM)
    budgets = BUDGETS._replace(max_preemptions=0)
    first = decide_task(
        TASK._replace(state=state_of(TASK_STARTED, TASK_ROUND, asked, ended, again), left=gone), budgets
    )
    assert isinstance(first, SaveFirst)
    sent = "a SIGTERM that a user sent, which counts as a preemption"
    why = f"the budget max_preemptions = 0 is spent; now: {sent}"
    assert (why, Cause.PREEMPTION, Budget.PREEMPTIONS) == (first.reason, first.cause, first.budget)
    told = DrainRequested(first.cause, "n1", AfterDrain.LEAVE, why, budget=first.budget)
    drained = Drained(TASK_EPOCH, Cause.PREEMPTION, 4, why, budget=first.budget)
    state = state_of(TASK_STARTED, TASK_ROUND, asked, ended, again, told, drained)
    other = decide_task(TASK._replace(state=state, job_id="12_0"), budgets)
    assert f"the run is held: {why}" == other.why


@pytest.mark.parametrize(
    ("records", "words"),
    [(2, "on request (done); checkpoint of step 40"), (1, "on request (asked)")],
    ids=["carried out", "asked for"],
)
def test_what_was_carried_out_is_told_before_what_was_asked(records: int, words: str) -> None:
    """The record of the stop may know more than the request."""
    asked = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "asked")
    entries = (asked, Drained(EPOCH, Cause.STOP, 40, "done"))[:records]
    choice = decide(facts(STARTED, ROUND, *entries), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.why.endswith(words)
    entries = (asked, Drained(TASK_EPOCH, Cause.STOP, 40, "done"))[:records]
    task = TASK._replace(state=state_of(TASK_STARTED, TASK_ROUND, *entries), others=Others(0, 0))
    assert decide_task(task, BUDGETS).why.endswith(words)
