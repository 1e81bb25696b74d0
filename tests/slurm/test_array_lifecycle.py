"""What becomes of a task of an array once its srun has returned: every row of the table."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import CANCELLED_CODE
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    NodeUnfit,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
    StopKind,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.slurm.client.job_standing import JobFacts, job_facts
from hpc_elastic.slurm.end.choices import (
    Choice,
    Exit,
    Facts,
    GiveUp,
    Hold,
    Leave,
    Others,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
    SaveFirst,
)
from hpc_elastic.slurm.end.history import Earlier, given_up, goodbye_of, stopped, task_starts_in_vain
from hpc_elastic.slurm.end.lifecycle import cancelled, decide, refused
from tests.slurm.failed_lines import failed_line

EPOCH = Epoch(0, 0, 0, 0)
START = TaskStart("12_1", 1, 0)
ME = f"n2.7{START.tag}"
STARTED = EpochStarted(EPOCH, "12", ())
ROUND = RoundFormed(1, EPOCH, (Member("n1.7@12_0-0-0", "n1", 2), Member(ME, "n2", 2)), "n1", 1, None)
BUDGETS = RequeueBudgets(max_relaunch=3, max_requeues=10, max_starts_in_vain=5)
ALONE, SOME, WAITING = Others(0, 0), Others(2, 0), Others(0, 1)


X = failed_line("setup failed (exit code 1): x")


def records_of(*entries: Entry) -> list[Record]:
    """Return numbered records."""
    return [Record(number, 0.0, "test", entry) for number, entry in enumerate(entries, 1)]


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), records_of(*entries))


def scontrol(**fields: str) -> JobFacts:
    """Return facts from what scontrol prints for a task in its second start."""
    usual = {"JobState": "RUNNING", "Reason": "None", "Restarts": "1", "Requeue": "1", "NumNodes": "1"}
    return job_facts({**usual, "PreemptTime": "None", "EndTime": "2026-11-21T08:00:00", **fields})


def left(cause: Cause) -> NodeLeft:
    """Return this task's goodbye."""
    return NodeLeft(EPOCH, ME, "n2", cause, "why")


RUNNING = scontrol()
CANCELLED = scontrol(JobState="COMPLETING")
SECOND = EPOCH._replace(restart=1)  # start of the task
BASE = Facts(
    state_of(STARTED, ROUND), SECOND, RUNNING, "12_1", 137, has_script=False, is_task=True, others=SOME
)


def words(choice: Choice) -> str:
    """Return what people are told."""
    return choice.why


@pytest.mark.parametrize(
    ("decision", "code", "expected"),
    [
        (Decision.DONE, 0, 0),
        (Decision.FAILED, 3, 3),
        (Decision.FAILED, 0, ExitCode.FAILED),
        (Decision.STOPPED, 0, 0),
        (Decision.CANCELLED, 130, 130),
    ],
)
def test_a_verdict_is_every_tasks(decision: Decision, code: int, expected: int) -> None:
    """Whatever Slurm says, and whatever the agent ended with."""
    state = state_of(STARTED, RunEnded(decision, code, "why", None))
    choice = decide(BASE._replace(state=state, job=None, others=None), BUDGETS)
    assert isinstance(choice, Exit)
    assert (expected, None) == (choice.code, choice.record)


def test_a_left_over_does_nothing() -> None:
    """Of a task that was started anew, or of a run that was submitted again."""
    newer = state_of(EpochStarted(Epoch(1, 0, 0, 0), "13", ()))
    for facts in (BASE._replace(is_outdated=True), BASE._replace(state=newer)):
        choice = decide(facts, BUDGETS)
        assert isinstance(choice, Leave)
        assert ExitCode.FENCED == choice.code


def test_the_last_task_of_a_stopped_run_records_it() -> None:
    """Before the others have saved nobody ends the run."""
    asked = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    saving = BASE._replace(state=state_of(STARTED, ROUND, asked))
    assert isinstance(decide(saving, BUDGETS), Leave)
    over = saving._replace(state=state_of(STARTED, ROUND, asked, Drained(EPOCH, Cause.STOP, 40, "stop")))
    for facts in (over, saving._replace(others=ALONE)):
        choice = decide(facts, BUDGETS)
        assert isinstance(choice, Exit)
        assert choice.record is not None
        assert (Decision.STOPPED, 0) == choice.record[:2]


@pytest.mark.parametrize("others", [SOME, WAITING, None], ids=["some run", "one waits", "unknown"])
def test_one_cancelled_task_only_shrinks_the_run(others: Others | None) -> None:
    """It is not brought back."""
    choice = decide(BASE._replace(job=CANCELLED, others=others), BUDGETS)
    assert isinstance(choice, Leave)
    assert CANCELLED_CODE == choice.code
    assert "the run goes on without it" in words(choice)


def test_the_last_cancelled_task_cancels_the_run() -> None:
    """The whole array was cancelled: no task runs or waits."""
    choice = decide(BASE._replace(job=CANCELLED, others=ALONE), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert Decision.CANCELLED is choice.record.decision


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (scontrol(JobState="COMPLETING", Reason="TimeLimit"), Cause.TIME_LIMIT),
        (scontrol(JobState="COMPLETING", Reason="NodeDown"), Cause.NODE_LOSS),
        (scontrol(JobState="COMPLETING", PreemptTime="2026-11-21T08:00:00"), Cause.PREEMPTION),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_a_task_that_slurm_ends_is_requeued(job: JobFacts, cause: Cause) -> None:
    """It alone."""
    choice = decide(BASE._replace(job=job), BUDGETS)
    assert isinstance(choice, Requeue)
    assert cause is choice.cause
    assert "this task is requeued (2 of at most 10)" in words(choice)


@pytest.mark.parametrize(
    "job", [None, scontrol(Restarts="2"), scontrol(JobState="PENDING")], ids=["silent", "requeued", "pending"]
)
def test_what_slurm_has_done_or_does_not_tell_is_left_alone(job: JobFacts | None) -> None:
    """The task is in Slurm's hands."""
    assert isinstance(decide(BASE._replace(job=job), BUDGETS), Leave)


def test_a_task_that_slurm_ends_for_a_reason_of_its_own_is_left_to_it() -> None:
    """It is not requeued from here, whatever budgets are left, and the run goes on without a verdict."""
    choice = decide(BASE._replace(job=scontrol(JobState="FAILED", Reason="BadConstraints")), BUDGETS)
    assert isinstance(choice, Leave)
    assert (ExitCode.REQUEUE, True) == (choice.code, choice.is_open)
    assert "Slurm ends the task (Reason=BadConstraints), so it is not requeued" in words(choice)


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.TIME_LIMIT])
def test_a_node_that_left_by_itself_comes_back(cause: Cause) -> None:
    """Slurm would not requeue a task that merely ends in its grace."""
    choice = decide(BASE._replace(left=left(cause), srun_exit_code=75), BUDGETS)
    assert isinstance(choice, Requeue)
    assert cause is choice.cause


def test_a_node_that_is_unfit_was_not_lost() -> None:
    """Its task gets another one, and says what was wrong."""
    state = state_of(STARTED, NodeUnfit(EPOCH, "n2", "disk full"))
    choice = decide(BASE._replace(state=state, left=left(Cause.NODE_LOSS), srun_exit_code=79), BUDGETS)
    assert choice.why.startswith("this node is unfit (disk full): this task is requeued")


@pytest.mark.parametrize(("others", "goes_on"), [(ALONE, False), (WAITING, True), (SOME, True), (None, True)])
def test_too_few_tasks_do_not_wait_for_each_other_for_ever(others: Others | None, goes_on: bool) -> None:
    """A run that cannot get its minimum any more ends; as long as nobody knows, its tasks come back."""
    state = state_of(STARTED, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "1 of 2"))
    choice = decide(BASE._replace(state=state, others=others, least=2), BUDGETS)
    assert goes_on is isinstance(choice, Requeue)
    if not goes_on:
        assert isinstance(choice, Exit)
        assert choice.record is not None
        assert Decision.FAILED is choice.record.decision
        assert "only 1 task is left, and the run needs 2 nodes" in choice.why


def test_a_run_that_was_drained_as_a_whole_comes_back() -> None:
    """Too few nodes came, which is nobody's failure: it does not count as started in vain."""
    state = state_of(STARTED, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "1 of 2"))
    choice = decide(BASE._replace(state=state, in_vain=9, srun_exit_code=75), BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.JOIN_TIMEOUT is choice.cause


def test_a_node_that_is_not_needed_waits_only_where_a_throttle_holds_it() -> None:
    """A task of an array that `scale` has added ends: nothing would keep it in the queue."""
    facts = BASE._replace(
        state=state_of(STARTED, ROUND, SizeWanted(0, 1, "scale", 0)), left=left(Cause.MEMBERSHIP)
    )
    assert isinstance(decide(facts, BUDGETS), Requeue)
    other = decide(facts._replace(epoch=EPOCH, job_id="99_0", job=scontrol(Restarts="0")), BUDGETS)
    assert isinstance(other, Leave)
    assert 0 == other.code


def test_a_killed_agent_is_started_again_in_its_task() -> None:
    """As long as that budget lasts, then the task is requeued."""
    choice = decide(BASE, BUDGETS)
    assert isinstance(choice, Relaunch)
    assert 1 == choice.nodes
    late = decide(BASE._replace(epoch=SECOND._replace(relaunch=3)), BUDGETS)
    assert isinstance(late, Requeue)
    assert Cause.AGENT_ERROR is late.cause


def test_an_agent_of_a_start_that_was_left_is_started_again() -> None:
    """It was fenced because the others had begun the next start of the run."""
    choice = decide(BASE._replace(srun_exit_code=ExitCode.FENCED), BUDGETS)
    assert isinstance(choice, Relaunch)
    assert "the run began anew" in words(choice)


@pytest.mark.parametrize("code", [ExitCode.REQUEUE, ExitCode.WEDGED, ExitCode.UNFIT])
def test_an_agent_that_gave_its_node_up_is_not_started_there_again(code: ExitCode) -> None:
    """Its task may get another node."""
    assert isinstance(decide(BASE._replace(srun_exit_code=code), BUDGETS), Requeue)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": EPOCH._replace(restart=10), "job": scontrol(Restarts="10")},
        {"job": scontrol(Requeue="0")},
        {"job": scontrol(Requeue="0"), "has_script": True, "epoch": SECOND._replace(link=9)},
        {"in_vain": 5},
        {"launch_failure": X, "in_vain": 4},
    ],
    ids=["requeues used", "no-requeue", "places used", "in vain", "setup"],
)
def test_a_task_that_cannot_go_on_is_given_up(changes: dict[str, Any]) -> None:
    """The run goes on without it, and ends as failed with the last one."""
    facts = BASE._replace(srun_exit_code=75, **changes)
    assert isinstance(decide(facts, BUDGETS), GiveUp)
    last = decide(facts._replace(others=ALONE), BUDGETS)
    assert isinstance(last, Exit)
    assert last.record is not None
    assert Decision.FAILED is last.record.decision


def test_another_task_goes_on_where_slurm_may_not_requeue_one() -> None:
    """Unless the user wants no such job, or the node is not needed: then the task just ends."""
    refused = BASE._replace(
        srun_exit_code=75,
        left=left(Cause.PREEMPTION),
        job=scontrol(Requeue="0"),
        epoch=SECOND._replace(link=1),
    )
    facts = refused._replace(has_script=True)
    choice = decide(facts, BUDGETS)
    assert isinstance(choice, Resubmit)
    assert Cause.PREEMPTION is choice.cause
    assert "another one is queued in its place (3 of at most 10)" in choice.why
    assert isinstance(decide(refused, BUDGETS), GiveUp)
    unneeded = state_of(STARTED, ROUND, SizeWanted(0, 1, "scale", 0))
    assert isinstance(decide(facts._replace(state=unneeded, left=left(Cause.MEMBERSHIP)), BUDGETS), Leave)


def test_a_task_that_cannot_wait_held_fails_the_run_whose_budget_is_spent() -> None:
    """Nobody could release it."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    state = state_of(STARTED, ROUND, asked, ended)
    facts = BASE._replace(state=state, left=left(Cause.PREEMPTION), job=scontrol(Requeue="0"))
    choice = decide(facts, BUDGETS._replace(max_preemptions=0))
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert Decision.FAILED is choice.record.decision


def test_a_setup_that_fails_may_work_on_another_node() -> None:
    """The task is requeued, and the reason is the line that failed."""
    choice = decide(
        BASE._replace(launch_failure=failed_line("setup failed (exit code 1): module load x")), BUDGETS
    )
    assert isinstance(choice, Requeue)
    assert Cause.LAUNCH_FAILURE is choice.cause
    assert "module load x: this task is requeued" in words(choice)
    last = BASE._replace(launch_failure=X, in_vain=3)
    assert isinstance(decide(last, BUDGETS), Requeue), "max_launch_failures = 3, as in a run that is one job"
    unknown = decide(BASE._replace(launch_failure=X, job=None), BUDGETS)
    assert isinstance(unknown, Leave)
    assert unknown.why.startswith(f"{X.text}; Slurm does not answer")


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        (Earlier.NOTHING, GiveUp),
        (Earlier.FAILED, GiveUp),
        (Earlier.WORKED, Requeue),
        (Earlier.OTHERWISE, Requeue),
    ],
)
def test_a_line_that_fails_for_good_gives_its_task_up(earlier: Earlier, expected: type) -> None:
    """Unless it has worked before, or another one has: then it is the node that is different."""
    lasting = failed_line("setup failed (exit code 127): modul load x (command not found)", lasting=True)
    assert isinstance(decide(BASE._replace(launch_failure=lasting, earlier=earlier), BUDGETS), expected)
    passing = decide(BASE._replace(launch_failure=X, earlier=earlier), BUDGETS)
    assert isinstance(passing, Requeue)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ExitCode.USAGE, "its flags are wrong"),
        (126, "Python cannot be run"),
        (127, "Python was not found"),
    ],
)
def test_what_never_starts_fails_the_run_at_once(code: int, words: str) -> None:
    """No agent of this submission has ever started; after that it is the node."""
    choice = decide(BASE._replace(state=RunState(), srun_exit_code=code), BUDGETS)
    assert isinstance(choice, Exit)
    assert words in choice.why
    for facts in (BASE._replace(srun_exit_code=code), BASE._replace(state=RunState(), srun_exit_code=128)):
        assert isinstance(decide(facts, BUDGETS), Relaunch)


@pytest.mark.parametrize(("is_cancelled", "decision"), [(True, Decision.CANCELLED), (False, Decision.FAILED)])
def test_a_refused_requeue_ends_the_run_only_with_the_last_task(
    decision: Decision, *, is_cancelled: bool
) -> None:
    """While others run or wait it is this task's end alone."""
    alone = BASE._replace(others=ALONE)
    other = cancelled(BASE, "no") if is_cancelled else refused(BASE, "requeue", "no")
    assert isinstance(other, Leave if is_cancelled else GiveUp)
    choice = cancelled(alone, "no") if is_cancelled else refused(alone, "requeue", "no")
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert decision is choice.record.decision


def test_the_budget_of_a_cause_is_the_runs() -> None:
    """Each round that ended for it counts, whichever node left."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    facts = BASE._replace(state=state_of(STARTED, ROUND, asked, ended), left=left(Cause.PREEMPTION))
    assert isinstance(decide(facts, BUDGETS._replace(max_preemptions=1)), Requeue)
    choice = decide(facts, BUDGETS._replace(max_preemptions=0, holds=False))
    assert isinstance(choice, Exit)
    assert "the budget max_preemptions = 0 is spent" in words(choice)
    held = decide(facts, BUDGETS._replace(max_preemptions=0))
    assert isinstance(held, Hold)
    assert held.record is not None
    assert (Decision.HELD, Budget.PREEMPTIONS) == (held.record.decision, held.record.budget)


@pytest.mark.parametrize("may_requeue", [True, False])
def test_a_run_whose_requeues_are_spent_goes_no_further_after_a_drain(*, may_requeue: bool) -> None:
    """Its tasks come back together, so that those of the run count, however young this task is."""
    entries: list[Entry] = []
    for restart in (0, 1, 2):
        epoch = Epoch(0, restart, 0, 0)
        entries += [EpochStarted(epoch, "12", ()), Drained(epoch, Cause.TIME_LIMIT, 40, "the time limit")]
        entries += [Requeued(epoch, Cause.TIME_LIMIT)] if restart < 2 else []
    job = scontrol(Requeue=str(int(may_requeue)))
    facts = BASE._replace(state=state_of(*entries), job=job, others=ALONE, has_script=True)
    assert isinstance(decide(facts, BUDGETS._replace(max_requeues=3)), Requeue if may_requeue else Resubmit)
    choice = decide(facts, BUDGETS._replace(max_requeues=2))
    assert isinstance(choice, (Hold, Exit))
    assert may_requeue is isinstance(choice, Hold)
    assert choice.record is not None
    assert "the budget of 2 requeues (max_requeues) is spent; now: the time limit" in words(choice)
    verdict = (Decision.HELD, Budget.REQUEUES) if may_requeue else (Decision.FAILED, None)
    assert verdict == (choice.record.decision, choice.record.budget)


def test_a_task_that_slurm_requeues_itself_costs_its_budget() -> None:
    """Preempted without grace, nobody else would hold it; by hand it may be as often as one likes."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    state = state_of(STARTED, ROUND, asked, ended)
    facts = BASE._replace(state=state, left=left(Cause.PREEMPTION), job=scontrol(Restarts="2"))
    assert isinstance(decide(facts, BUDGETS._replace(max_preemptions=1)), Leave)
    assert isinstance(decide(facts, BUDGETS._replace(max_preemptions=0)), Hold)
    assert isinstance(decide(facts._replace(left=None), BUDGETS._replace(max_preemptions=0)), Leave)


def test_the_others_save_before_a_spent_budget_ends_the_run() -> None:
    """They run already without the node that left; what they have not saved would be lost."""
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    again = RoundFormed(2, EPOCH, ROUND.members[:1], "n1", 1, None)
    facts = BASE._replace(state=state_of(STARTED, ROUND, asked, ended, again), left=left(Cause.PREEMPTION))
    for holds in (True, False):
        choice = decide(facts, BUDGETS._replace(max_preemptions=0, holds=holds))
        assert isinstance(choice, SaveFirst)
        assert holds is choice.is_held


def test_a_held_run_holds_every_task() -> None:
    """But a left-over of a task that was started anew holds nothing."""
    facts = BASE._replace(state=state_of(STARTED, RunEnded(Decision.HELD, 75, "why", None)), job=None)
    assert isinstance(decide(facts, BUDGETS), Hold)
    assert isinstance(decide(facts._replace(is_outdated=True), BUDGETS), Leave)


def test_a_task_finds_its_own_goodbye() -> None:
    """Not that of another start, or of another task."""
    other = NodeLeft(EPOCH, "n2.5@12_1-0-0", "n2", Cause.PREEMPTION, "")
    assert goodbye_of(records_of(STARTED, ROUND, other), START) is None
    assert left(Cause.TIME_LIMIT) == goodbye_of(records_of(ROUND, left(Cause.TIME_LIMIT), other), START)


def test_a_task_is_given_up_until_it_is_in_a_round_again() -> None:
    """Its user may have requeued it; a failed start is no reason to give it up, and no goodbye."""
    failed = stopped(START, EPOCH, StopKind.FAILED, "n2", "setup failed")
    over = stopped(START, EPOCH, StopKind.GIVEN_UP, "n2", "setup failed")
    records = records_of(STARTED, failed)
    assert frozenset() == given_up(records)
    assert goodbye_of(records, START) is None
    assert 2 == task_starts_in_vain(records, START)
    assert {"12_1"} == given_up(records_of(STARTED, over))
    assert frozenset() == given_up(records_of(STARTED, over, ROUND))


def test_starts_without_a_round_or_a_goodbye_are_in_vain() -> None:
    """They are counted from the newest one back."""
    assert 2 == task_starts_in_vain(records_of(STARTED), START)
    assert 0 == task_starts_in_vain(records_of(STARTED, ROUND), START)
    assert 3 == task_starts_in_vain(records_of(STARTED, ROUND), START._replace(restart=4))
    goodbye = NodeLeft(EPOCH, "n2.5@12_1-3-0", "n2", Cause.MEMBERSHIP, "")
    assert 1 == task_starts_in_vain(records_of(STARTED, ROUND, goodbye), START._replace(restart=4))


def test_stops_that_save_nothing_hold_the_run() -> None:
    """Else its tasks would come back and begin anew for ever; the workers that run save first."""
    entries: list[Entry] = [STARTED]
    for number in (1, 2, 3):
        entries += [
            ROUND._replace(number=number),
            DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM"),
            StopAgreed(number, 20 * number),
            RoundEnded(number, Cause.PREEMPTION, ("n2",), None),
        ]
    facts = BASE._replace(left=left(Cause.PREEMPTION))
    two = facts._replace(state=state_of(*entries[:-4], left(Cause.PREEMPTION)))
    assert isinstance(decide(two, BUDGETS), Requeue)
    three = facts._replace(state=state_of(*entries, left(Cause.PREEMPTION)))
    held = decide(three._replace(others=ALONE), BUDGETS)
    assert isinstance(held, Hold)
    assert "3 stops in a row saved nothing (max_starts_without_save = 3)" in held.why
    going_on = state_of(*entries, left(Cause.PREEMPTION), ROUND._replace(number=4, members=ROUND.members[:1]))
    first = decide(three._replace(state=going_on), BUDGETS)
    assert isinstance(first, SaveFirst)
    assert first.is_held
    for let in (three._replace(saved=60), three._replace(state=state_of(*never_telling(entries)))):
        assert isinstance(decide(let, BUDGETS), Requeue)
    assert isinstance(decide(three, BUDGETS._replace(max_starts_without_save=0)), Requeue)


def never_telling(entries: list[Entry]) -> list[Entry]:
    """Return the records of a program that does not ask whether to stop."""
    return [entry._replace(step=-1) if isinstance(entry, StopAgreed) else entry for entry in entries]
