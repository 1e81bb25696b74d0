"""What becomes of a job once srun has returned: budgets, launches that fail, further jobs."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    Drained,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    NodeUnfit,
    Requeued,
    RoundEnded,
    RunEnded,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.end.choices import Chain, Exit, Hold, Leave, Relaunch, Requeue, Resubmit
from hpc_elastic.slurm.end.history import Earlier
from hpc_elastic.slurm.end.lifecycle import before_start, decide, starts_in_vain
from tests.slurm.failed_lines import failed_line
from tests.slurm.test_lifecycle import (
    BUDGETS,
    CANCELLED,
    EPOCH,
    IN_GRACE,
    NODE_DOWN,
    PREEMPTED,
    REQUEUED,
    ROUND,
    RUNNING,
    STARTED,
    TIME_LIMIT,
    drained,
    facts,
    records_of,
    round_of,
    scontrol,
    state_of,
)

# budgets


SPENT = (
    (Cause.PREEMPTION, {"max_preemptions": 1}, IN_GRACE),
    (Cause.TIME_LIMIT, {"max_time_limits": 1}, TIME_LIMIT),
    (Cause.NODE_LOSS, {"max_node_losses": 1}, NODE_DOWN),
)


def test_unfit_nodes_cost_no_budget_of_lost_ones() -> None:
    """The job goes on where a lost node would be one too many; all requeues together are counted."""
    unfit, left = NodeUnfit(EPOCH, "n2", "disk full"), Drained(EPOCH, Cause.NODE_LOSS, None, "")
    budgets = BUDGETS._replace(max_node_losses=0)
    assert isinstance(decide(facts(STARTED, unfit, left, job=RUNNING), budgets), Requeue)
    assert isinstance(decide(facts(STARTED, left, job=RUNNING), budgets), Hold)


def test_a_released_run_has_its_new_budget_before_its_agents_come() -> None:
    """They may be ended before they have written a word; the run is not held again for the same budget."""
    first, next_one = EPOCH._replace(restart=0), EPOCH._replace(restart=2)
    held = RunEnded(Decision.HELD, 75, "spent", None, None, Budget.REQUEUES)
    before = (EpochStarted(first, "7", ()), Requeued(first, Cause.PREEMPTION), STARTED, held)
    budgets = BUDGETS._replace(max_requeues=1)
    released = facts(*before, job=RUNNING._replace(restarts=3), epoch=next_one)
    assert isinstance(decide(released, budgets), Leave)
    held_yet = facts(*before[:2], job=RUNNING._replace(restarts=2), epoch=EPOCH)
    assert isinstance(decide(held_yet, budgets), Hold)


def test_a_round_of_an_earlier_start_does_not_count_for_this_one() -> None:
    """A second start whose nodes are lost before a round is formed is a second loss."""
    first = EPOCH._replace(restart=0)
    before = (EpochStarted(first, "7", ()), round_of(first), RoundEnded(1, Cause.NODE_LOSS, ("n2",), None))
    lost = facts(*before, Requeued(first, Cause.NODE_LOSS), job=NODE_DOWN, epoch=EPOCH)
    assert isinstance(decide(lost, BUDGETS._replace(max_node_losses=1)), Hold)
    assert isinstance(decide(lost, BUDGETS._replace(max_node_losses=2)), Requeue)


@pytest.mark.parametrize(("cause", "budget", "job"), SPENT, ids=lambda value: getattr(value, "value", ""))
def test_each_cause_has_a_budget_of_its_own(cause: Cause, budget: dict[str, Any], job: JobFacts) -> None:
    """A spent one holds the job and says which; those of other causes do not matter."""
    for before in Cause:
        earlier = (EpochStarted(Epoch(0, 0, 0, 0), "7", ()), Requeued(Epoch(0, 0, 0, 0), before))
        choice = decide(facts(*earlier, *drained(cause), job=job), BUDGETS._replace(**budget))
        if before is not cause:
            assert isinstance(choice, Requeue)
            continue
        assert isinstance(choice, Hold)
        assert choice.record is not None
        name = Budget(next(iter(budget)))
        assert (Decision.HELD, name, 75) == (
            choice.record.decision, choice.record.budget, choice.record.exit_code
        )  # fmt: skip
        assert f"{next(iter(budget))} = 1" in choice.record.reason


def begun(*steps: int | None) -> list[Entry]:
    """Return the records of starts whose workers began from these steps, from Slurm's first requeue on."""
    entries: list[Entry] = []
    for number, step in enumerate(steps, EPOCH.restart):
        epoch = Epoch(0, 0, number, 0)
        checkpoint = None if step is None else MarkedCheckpoint(step, "")
        entries.append(EpochStarted(epoch, "7", ("n1", "n2")))
        entries.append(round_of(epoch, number)._replace(checkpoint=checkpoint))
    return entries


@pytest.mark.parametrize(
    ("limit", "starts", "saved", "is_held"),
    [
        (3, (4, 4, 4), 4, True),
        (3, (4, 4, 4), 5, False),
        (3, (4, 4), 4, False),
        (2, (4, 4), 4, True),
        (3, (None, None, None), BEGINNING, False),
        (0, (4, 4, 4), 4, False),
        (None, (4, 4, 4), 4, False),
    ],
)
@pytest.mark.parametrize("job", [TIME_LIMIT, NODE_DOWN, REQUEUED])
def test_starts_that_save_nothing_hold_the_run(
    limit: int | None, starts: tuple[int | None, ...], saved: int, job: JobFacts, *, is_held: bool
) -> None:
    """Three in a row, whatever ended them; not those of a program that may save by itself."""
    epoch = Epoch(0, 0, len(starts), 0)
    job = job._replace(restarts=job.restarts - EPOCH.restart + epoch.restart)
    known = facts(*begun(*starts), job=job, epoch=epoch)._replace(saved=saved)
    budgets = BUDGETS._replace(max_starts_without_save=limit)
    choice = decide(known, budgets)
    assert is_held is isinstance(choice, Hold), choice
    if isinstance(choice, Hold) and choice.record is not None:
        words = f"{limit} starts in a row saved nothing newer than step 4 (max_starts_without_save = {limit})"
        assert choice.record.reason.startswith(words)
        assert Budget.STARTS_WITHOUT_SAVE is choice.record.budget
    failed = decide(known, budgets._replace(holds=False))
    assert is_held is (isinstance(failed, Exit) and failed.code == 76)


@pytest.mark.parametrize("cause", [Cause.JOIN_TIMEOUT, Cause.PREEMPTION], ids=lambda cause: cause.value)
def test_a_hold_for_all_requeues_together_names_no_cause(cause: Cause) -> None:
    """When its user releases the run everything that was spent is there again."""
    choice = decide(facts(*drained(cause)), BUDGETS._replace(max_requeues=0, max_preemptions=3))
    assert isinstance(choice, Hold)
    assert choice.record is not None
    assert (Decision.HELD, Budget.REQUEUES) == (choice.record.decision, choice.record.budget)


def test_a_loss_that_ended_round_and_start_counts_once() -> None:
    """The last node that a budget allows does not spend it twice."""
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n1",), None)
    entries = (STARTED, ROUND, lost, Drained(EPOCH, Cause.NODE_LOSS, None, ""))
    assert isinstance(decide(facts(*entries), BUDGETS._replace(max_node_losses=1)), Requeue)
    state = state_of(*entries, Requeued(EPOCH, Cause.NODE_LOSS))
    assert 1 == state.used(Cause.NODE_LOSS)
    assert isinstance(decide(facts(*entries), BUDGETS._replace(max_node_losses=0)), Hold)


def test_losses_of_nodes_in_which_the_job_ran_on_hold_it_at_its_end() -> None:
    """Else it would wait in the queue for a start that begins nothing; the next job of a chain does begin."""
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n2",), None)
    entries = (STARTED, ROUND, lost, round_of(EPOCH, 2), Drained(EPOCH, Cause.PREEMPTION, 9, ""))
    spent = BUDGETS._replace(max_node_losses=0)
    choice = decide(facts(*entries, job=IN_GRACE), spent)
    assert isinstance(choice, Hold)
    assert choice.record is not None
    assert Budget.NODE_LOSSES is choice.record.budget
    assert isinstance(before_start(facts(*entries, job=RUNNING), spent), Hold)
    assert isinstance(decide(facts(*entries, job=IN_GRACE), BUDGETS._replace(max_node_losses=1)), Requeue)
    assert isinstance(decide(facts(*entries, job=IN_GRACE)._replace(chain=Chain(3, "8")), spent), Leave)


def test_a_held_run_is_held_again_and_goes_on_when_it_is_released() -> None:
    """The record stands until Slurm starts the job once more; then the spent budget is new."""
    held = RunEnded(Decision.HELD, 75, "why", None, None, Budget.PREEMPTIONS)
    entries = (*drained(Cause.PREEMPTION), Requeued(EPOCH, Cause.PREEMPTION), held)
    choice = decide(facts(*entries), BUDGETS)
    assert isinstance(choice, Hold)
    assert choice.record is None
    released = state_of(*entries, EpochStarted(Epoch(0, 0, 2, 0), "7", ()))
    assert (None, 0, 0) == (released.ending, released.used(Cause.PREEMPTION), released.requeues)


def test_a_job_that_slurm_requeued_over_its_budget_is_held() -> None:
    """Slurm asks nobody before it requeues, but the job need not start."""
    job = REQUEUED._replace(warned=True)
    assert isinstance(decide(facts(STARTED, ROUND, job=job), BUDGETS._replace(max_preemptions=0)), Hold)


# starts that fail

X = failed_line("setup failed (exit code 1): x")


def test_a_line_of_the_script_that_fails_is_a_launch_failure() -> None:
    """It may be the node's fault, so that it is tried again some times."""
    known = facts(epoch=Epoch(0, 0, 0, 0), job=scontrol(Restarts="0"))._replace(launch_failure=X)
    choice = decide(known, BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.LAUNCH_FAILURE == choice.cause
    assert X.text in choice.why
    held = decide(known, BUDGETS._replace(max_launch_failures=0))
    assert isinstance(held, Hold)
    assert f"max_launch_failures = 0 is spent; now: {X.text}; mend the cause and rel" in held.why
    assert held.record is not None
    assert Budget.LAUNCH_FAILURES is held.record.budget
    assert isinstance(decide(known._replace(local=True), BUDGETS), Exit)


def test_the_same_failure_again_holds_a_run_and_never_ends_it() -> None:
    """It may still pass; Slurm runs a held job with the script that it was queued with."""
    why = "setup failed (exit code 1): test -e /data"
    first = facts(epoch=Epoch(0, 0, 1, 0), job=scontrol(Restarts="1"))
    known = first._replace(launch_failure=failed_line(why), earlier=Earlier.FAILED)
    choice = decide(known, BUDGETS)
    assert isinstance(choice, Hold)
    assert f"{why}; as in an earlier start; mend the cause and release the job" in choice.why
    assert isinstance(decide(known, BUDGETS._replace(holds=False)), Requeue)
    assert isinstance(decide(known._replace(chain=Chain(3, "8")), BUDGETS), Leave)
    assert isinstance(decide(known._replace(job=scontrol(Restarts="1", Requeue="0")), BUDGETS), Resubmit)
    spent = BUDGETS._replace(holds=False, max_launch_failures=0)
    assert isinstance(decide(known, spent), Exit)


@pytest.mark.parametrize(
    ("earlier", "kind"),
    [
        (Earlier.NOTHING, Exit),
        (Earlier.FAILED, Exit),
        (Earlier.OTHERWISE, Requeue),
        (Earlier.WORKED, Requeue),
    ],
)
def test_a_run_that_has_worked_is_not_ended_for_one_node(earlier: Earlier, kind: type) -> None:
    """A program that is not there is tried once more in a later submission of it."""
    why = "setup failed (exit code 127): nosuch (nosuch: command not found)"
    known = facts(epoch=Epoch(1, 0, 0, 0), job=scontrol(Restarts="0"))
    known = known._replace(launch_failure=failed_line(why, lasting=True), earlier=earlier)
    assert isinstance(decide(known, BUDGETS), kind)


def test_a_failed_line_is_told_though_slurm_does_not_answer() -> None:
    """Its lines may be what has taken Slurm's commands away; the record of this start tells of them."""
    choice = decide(facts(job=None)._replace(launch_failure=X), BUDGETS)
    assert isinstance(choice, Leave)
    assert choice.is_open
    assert choice.why.startswith(f"{X.text}; Slurm does not answer")


def test_a_cancelled_job_whose_setup_failed_stays_cancelled() -> None:
    """The user's scancel may have been what made it fail."""
    known = facts(job=CANCELLED)._replace(launch_failure=X)
    choice = decide(known, BUDGETS)
    assert isinstance(choice, Exit)
    assert 130 == choice.code


def test_agents_that_never_came_are_a_launch_failure() -> None:
    """The relaunches of the same start are used up without a record."""
    epoch = EPOCH._replace(relaunch=3)
    choice = decide(facts(epoch=epoch, srun_exit_code=1), BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.LAUNCH_FAILURE == choice.cause


# further jobs of a submission


def test_the_next_job_of_a_chain_goes_on() -> None:
    """Nothing is requeued; the last one of the chain ends the run as stopped."""
    known = facts(*drained(Cause.TIME_LIMIT), job=scontrol(Requeue="0"))
    choice = decide(known._replace(chain=Chain(3, "8")), BUDGETS)
    assert isinstance(choice, Leave)
    assert (75, Cause.TIME_LIMIT) == (choice.code, choice.requeued)
    assert "job 8 goes on" in choice.why
    last = decide(known._replace(chain=Chain(3, "")), BUDGETS)
    assert isinstance(last, Exit)
    assert last.record is not None
    assert Decision.STOPPED is last.record.decision
    assert "the time limit, and the chain is used up: this was the last of its 3 jobs" == last.record.reason


def test_a_further_job_of_a_run_that_has_ended_says_so() -> None:
    """It is a later start of the same submission, and none of its agents finds anything to do."""
    done = (STARTED, ROUND, RunEnded(Decision.DONE, 0, "all workers succeeded", None))
    known = facts(*done, epoch=Epoch(0, 1, 0, 0), job=scontrol(Restarts="0"))
    choice = decide(known._replace(ended_since="2026-11-21 08:00:00"), BUDGETS)
    assert isinstance(choice, Exit)
    assert 0 == choice.code
    assert "the run was done already since 2026-11-21 08:00:00, so nothing was started" == choice.why


def test_the_restart_count_of_a_further_job_is_slurms() -> None:
    """A second job that Slurm has not restarted is not taken for requeued."""
    epoch = Epoch(0, 1, 0, 0)
    started = EpochStarted(epoch, "7", ())
    assert isinstance(decide(facts(started, epoch=epoch, job=scontrol(Restarts="0")), BUDGETS), Relaunch)
    assert isinstance(decide(facts(started, epoch=epoch, job=scontrol(Restarts="1")), BUDGETS), Leave)


def test_starts_that_were_called_away_do_not_count_as_in_vain() -> None:
    """One failure after some preemptions during the start of the job would end the run for good."""
    entries: list[Entry] = []
    for restart in range(4):
        epoch = Epoch(0, 0, restart, 0)
        entries += [EpochStarted(epoch, "7", ()), Requeued(epoch, Cause.PREEMPTION)]
    assert 1 == starts_in_vain(records_of(*entries), Epoch(0, 0, 4, 0))
    failed = Epoch(0, 0, 4, 0)
    entries += [EpochStarted(failed, "7", ()), Requeued(failed, Cause.LAUNCH_FAILURE)]
    assert 2 == starts_in_vain(records_of(*entries), Epoch(0, 0, 5, 0))


@pytest.mark.parametrize("job", [PREEMPTED, NODE_DOWN, TIME_LIMIT, RUNNING], ids=str)
def test_a_run_without_requeues_is_not_submitted_again_either(job: JobFacts) -> None:
    """Slurm may not requeue its job, and no other job takes its place."""
    barred = job._replace(may_requeue=False)
    choice = decide(
        facts(*drained(Cause.PREEMPTION), job=barred)._replace(has_script=True),
        BUDGETS._replace(max_requeues=0),
    )
    assert isinstance(choice, Exit)
    assert "max_requeues" in choice.why
