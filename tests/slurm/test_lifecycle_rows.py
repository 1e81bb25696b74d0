"""What becomes of a job or a task: the rows in which one fact alone makes the difference."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    AfterDrain,
    Asked,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    EpochStarted,
    NodeUnfit,
    Requeued,
    RoundEnded,
    RunEnded,
    SizeWanted,
)
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.end.choices import (
    Choice,
    Exit,
    Facts,
    Hold,
    Leave,
    Relaunch,
    Requeue,
    RequeueBudgets,
    SaveFirst,
)
from hpc_elastic.slurm.end.history import Earlier
from hpc_elastic.slurm.end.lifecycle import decide, starts_in_vain
from tests.slurm import test_array_lifecycle as array
from tests.slurm.failed_lines import failed_line
from tests.slurm.test_lifecycle import (
    BUDGETS,
    EPOCH,
    NODE_DOWN,
    REQUEUED,
    ROUND,
    RUNNING,
    STARTED,
    TIME_LIMIT,
    drained,
    facts,
    records_of,
    scontrol,
)

TERM = Asked("SIGTERM")
X = failed_line("setup failed (exit code 1): x")
PUT_BACK = scontrol(Restarts="2")


def task(*entries: Entry, **changes: Any) -> Facts:
    """Return what is known of a task whose agent has left its node."""
    known = array.BASE._replace(state=array.state_of(array.STARTED, *entries), srun_exit_code=75)
    return known._replace(**changes)


def record_of(choice: Choice) -> RunEnded:
    """Return the ending that is to be recorded."""
    assert isinstance(choice, (Exit, Hold))
    assert choice.record is not None
    return choice.record


# what is settled


def test_a_released_job_whose_agents_never_came_goes_on() -> None:
    """The record that held it was for its earlier start."""
    held = RunEnded(Decision.HELD, 75, "spent", None, None, Budget.PREEMPTIONS)
    later = EPOCH._replace(restart=2)
    known = facts(STARTED, held, epoch=later, job=scontrol(Restarts="2"), srun_exit_code=137)
    assert isinstance(decide(known, BUDGETS), Relaunch)
    assert isinstance(decide(facts(STARTED, held), BUDGETS), Hold)


def test_the_verdict_on_a_run_is_also_that_of_a_task_that_was_started_anew() -> None:
    """In words of its own: the starts of a task are none of the run."""
    choice = decide(task(RunEnded(Decision.DONE, 0, "why", None), is_outdated=True), BUDGETS)
    assert isinstance(choice, Exit)
    assert (0, "the run is done: why") == (choice.code, choice.why)


def test_a_task_that_is_stopped_records_it_where_slurm_does_not_tell_of_others() -> None:
    """Else nobody may."""
    asked = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "")
    assert Decision.STOPPED is record_of(decide(task(array.ROUND, asked, others=None), BUDGETS)).decision


# a task among others


def test_a_node_that_waits_for_another_scale_says_so() -> None:
    """In the words of its agent."""
    known = task(array.ROUND, SizeWanted(0, 1, "scale", 0), left=array.left(Cause.MEMBERSHIP))
    assert decide(known, BUDGETS).why.startswith("not needed (why); it waits for another scale: this task is")


@pytest.mark.parametrize(
    ("cause", "left", "kind"),
    [
        (Cause.JOIN_TIMEOUT, None, Exit),
        (Cause.JOIN_TIMEOUT, array.left(Cause.PREEMPTION), Requeue),
        (Cause.TIME_LIMIT, None, Requeue),
    ],
)
def test_the_minimum_ends_only_a_run_that_was_left_for_it(cause: Cause, left: Any, kind: type) -> None:
    """Not a task with a reason of its own, nor a run that was drained for another one."""
    known = task(Drained(array.EPOCH, cause, None, ""), left=left, others=array.ALONE, least=2)
    assert isinstance(decide(known, BUDGETS), kind)


@pytest.mark.parametrize(
    ("others", "kind"), [(array.SOME, SaveFirst), (array.WAITING, Hold), (None, Hold)], ids=str
)
def test_only_tasks_that_run_save_first(others: Any, kind: type) -> None:
    """One that waits has nothing to save."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    again = array.ROUND._replace(number=2, members=array.ROUND.members[:1])
    known = task(array.ROUND, asked, ended, again, left=array.left(Cause.PREEMPTION), others=others)
    assert isinstance(decide(known, BUDGETS._replace(max_preemptions=0)), kind)


def test_the_signal_of_a_start_without_a_goodbye_is_that_of_its_drain() -> None:
    """Where Slurm does nothing to the job a user has sent it."""
    drain = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", asked=TERM)
    killed = facts(STARTED, ROUND, drain, job=RUNNING, srun_exit_code=137)
    assert Requeue(Cause.PREEMPTION, "a SIGTERM that a user sent", "requeue 1 of at most 10", "SIGTERM") == (
        decide(killed, BUDGETS)
    )
    saved = Drained(array.EPOCH, Cause.PREEMPTION, 40, "", asked=TERM)
    assert decide(task(array.ROUND, saved), BUDGETS).why.startswith("a SIGTERM that a user sent: this task")


# what Slurm has put back


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        (facts(*drained(Cause.JOIN_TIMEOUT), job=REQUEUED), Cause.JOIN_TIMEOUT),
        (facts(*drained(Cause.TIME_LIMIT), job=REQUEUED), Cause.REQUEUE),
        (task(array.ROUND, job=PUT_BACK), None),
    ],
    ids=["asked", "signalled", "task"],
)
def test_what_slurm_puts_back_goes_back_for_the_reason_of_its_agents(
    known: Facts, cause: Cause | None
) -> None:
    """If they had one that Slurm does not know; the start of a task is none of the run."""
    choice = decide(known, BUDGETS)
    assert isinstance(choice, Leave)
    assert (ExitCode.REQUEUE, cause) == (choice.code, choice.requeued)


def test_a_task_that_slurm_puts_back_without_a_reason_has_none() -> None:
    """If its node could not start it the launches count."""
    assert "Slurm has requeued the task itself: it gives no reason" == (
        decide(task(array.ROUND, job=PUT_BACK), BUDGETS).why
    )
    never = scontrol(JobState="PENDING", Reason="launch_failed_requeued_held", Restarts="2")
    spent = BUDGETS._replace(max_launch_failures=0)
    before = Requeued(array.EPOCH, Cause.LAUNCH_FAILURE)
    assert Budget.LAUNCH_FAILURES is record_of(decide(task(before, job=never), spent)).budget
    assert isinstance(decide(task(before, job=PUT_BACK), spent), Leave)


def test_slurm_may_put_back_one_task_of_a_run_whose_requeues_are_spent() -> None:
    """But not its only job."""
    spent = BUDGETS._replace(max_requeues=0)
    assert Budget.REQUEUES is record_of(decide(facts(STARTED, ROUND, job=REQUEUED), spent)).budget
    whole = Drained(array.EPOCH, Cause.TIME_LIMIT, 40, "")
    assert isinstance(decide(task(array.ROUND, whole, job=PUT_BACK), spent), Leave)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"JobState": "PENDING", "Reason": "JobHeldUser", "Requeue": "0"}, Hold),
        ({"JobState": "PENDING", "Requeue": "0"}, Exit),
        ({"JobState": "PENDING"}, Hold),
    ],
)
def test_a_job_that_waits_held_may_be_held(fields: dict[str, str], kind: type) -> None:
    """Though Slurm may not requeue it."""
    job = scontrol(Restarts="2", **fields)
    assert isinstance(decide(facts(STARTED, ROUND, job=job), BUDGETS._replace(max_requeues=0)), kind)


# budgets


@pytest.mark.parametrize(
    ("job", "why"),
    [(RUNNING, "too few nodes are fit (n2: disk full): "), (TIME_LIMIT, "the time limit: requeue")],
)
def test_unfit_nodes_explain_only_a_start_that_was_left_for_them(job: JobFacts, why: str) -> None:
    """The job may have met its limit meanwhile."""
    known = facts(
        STARTED, NodeUnfit(EPOCH, "n2", "disk full"), Drained(EPOCH, Cause.NODE_LOSS, None, ""), job=job
    )
    assert decide(known, BUDGETS).why.startswith(why)


def test_the_same_line_again_is_told_with_the_budget_that_it_has_spent() -> None:
    """The user is to know which one, as releasing the job renews it."""
    known = facts(job=RUNNING)._replace(launch_failure=X, earlier=Earlier.FAILED)
    held = record_of(decide(known, BUDGETS._replace(max_launch_failures=0)))
    assert Budget.LAUNCH_FAILURES is held.budget
    assert record_of(decide(known, BUDGETS)).budget is None


def test_only_a_failed_launch_ends_a_local_run() -> None:
    """It is started again for anything else."""
    late = EPOCH._replace(relaunch=3)
    known = facts(STARTED, ROUND, epoch=late, srun_exit_code=137)._replace(local=True)
    choice = decide(known, BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.AGENT_ERROR is choice.cause


def test_all_requeues_bound_a_job_whose_agents_died_too() -> None:
    """Of a task only those of the whole run do, once it is drained."""
    spent = BUDGETS._replace(max_requeues=2, max_relaunch=0)
    again = [EpochStarted(EPOCH._replace(restart=number), "7", ()) for number in (1, 2, 3)]
    back = [Requeued(one.epoch, Cause.TIME_LIMIT) for one in again[:2]]
    entries = (again[0], back[0], again[1], back[1], again[2])
    job = facts(*entries, epoch=again[2].epoch, job=scontrol(Restarts="3"), srun_exit_code=137)
    assert Budget.REQUEUES is record_of(decide(job, spent)).budget
    assert isinstance(decide(task(*entries), spent), Requeue)


@pytest.mark.parametrize(
    ("known", "budgets", "kind"),
    [
        (
            facts(STARTED, ROUND, RoundEnded(1, Cause.CRASH, (), None), job=TIME_LIMIT),
            BUDGETS._replace(max_time_limits=0),
            Hold,
        ),
        (
            facts(
                STARTED,
                NodeUnfit(EPOCH, "n2", "disk full"),
                Drained(EPOCH, Cause.NODE_LOSS, None, ""),
                job=TIME_LIMIT,
            ),
            BUDGETS._replace(max_time_limits=0),
            Hold,
        ),
        (
            facts(STARTED, ROUND, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None), job=NODE_DOWN),
            BUDGETS._replace(max_node_losses=0),
            Hold,
        ),
        (task(array.ROUND, left=array.left(Cause.PREEMPTION)), BUDGETS._replace(max_preemptions=0), Requeue),
    ],
    ids=["another end of the round", "unfit nodes", "the same end of the round", "a task"],
)
def test_what_ends_a_start_counts_once(known: Facts, budgets: RequeueBudgets, kind: type) -> None:
    """With its round if that had the same end; the agents of tasks record each time."""
    assert isinstance(decide(known, budgets), kind)


def test_how_srun_ended_is_told() -> None:
    """And what it means that a task was fenced."""
    for code, said in (
        (137, "srun ended with exit code 137 without a word"),
        (77, "the run began anew mean"),
    ):
        assert decide(task(array.ROUND, srun_exit_code=code), BUDGETS).why.startswith(said)


def test_records_that_belong_to_no_start_do_not_matter_for_starts_in_vain() -> None:
    """Nor do those of agents."""
    entries = (
        STARTED,
        DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, ""),
        NodeUnfit(EPOCH._replace(restart=9), "n", ""),
    )
    assert 1 == starts_in_vain(records_of(*entries), EPOCH)


@pytest.mark.parametrize(
    ("entries", "relaunch", "kind", "words"),
    [
        ((), 1, Requeue, "; no agent could be started: requeue"),
        ((STARTED,), 1, Requeue, "; no agent could be started again: requeue"),
        ((STARTED,), 0, Relaunch, "nor drained; start the agents again"),
        ((), 0, Relaunch, "nor drained; start the agents again"),
    ],
)
def test_agents_that_could_not_be_started_again_are_told(
    entries: tuple[Entry, ...], relaunch: int, kind: type, words: str
) -> None:
    """Then the nodes of the job are of no use."""
    known = facts(*entries, epoch=EPOCH._replace(relaunch=relaunch), srun_exit_code=137)
    choice = decide(known, BUDGETS)
    assert isinstance(choice, kind)
    assert words in choice.why
