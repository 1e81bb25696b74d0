"""What becomes of a job once srun has returned: every row of the protocol."""

from __future__ import annotations

import pytest

from hpc_elastic.ids import CANCELLED_CODE
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
    NodeUnfit,
    Record,
    Requeued,
    RoundFormed,
    RunEnded,
    SizeWanted,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, job_facts, standing
from hpc_elastic.slurm.end.choices import (
    Exit,
    Facts,
    Hold,
    Leave,
    Others,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
)
from hpc_elastic.slurm.end.lifecycle import decide, starts_in_vain

EPOCH = Epoch(0, 0, 1, 0)
BUDGETS = RequeueBudgets(max_relaunch=3, max_requeues=10, max_starts_in_vain=5)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))


def round_of(epoch: Epoch, number: int = 1) -> RoundFormed:
    """Return a round of two nodes."""
    return RoundFormed(number, epoch, (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2)), "n1", 1234, None)


ROUND = round_of(EPOCH)


def records_of(*entries: Entry) -> list[Record]:
    """Return numbered records."""
    return [Record(number, 0.0, "test", entry) for number, entry in enumerate(entries, 1)]


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), records_of(*entries))


def drained(cause: Cause, step: int | None = 40) -> tuple[Entry, ...]:
    """Return the records of a start that was drained."""
    return (
        STARTED,
        ROUND,
        DrainRequested(cause, "n1", AfterDrain.LEAVE, "why"),
        Drained(EPOCH, cause, step, "why"),
    )


def scontrol(**fields: str) -> JobFacts:
    """Return facts from what scontrol prints for a job of two nodes in its second start."""
    usual = {"JobState": "RUNNING", "Reason": "None", "Restarts": "1", "Requeue": "1", "NumNodes": "2"}
    return job_facts({**usual, "PreemptTime": "None", "EndTime": "2026-11-21T08:00:00", **fields})


RUNNING = scontrol()
IN_GRACE = scontrol(PreemptTime="2026-11-21T07:59:00")
TIME_LIMIT = scontrol(JobState="COMPLETING", Reason="TimeLimit")
NODE_DOWN = scontrol(JobState="COMPLETING", Reason="NodeDown")
NOT_STARTED = scontrol(JobState="PENDING", Reason="launch_failed_requeued_held", Restarts="2")
REQUEUED = scontrol(JobState="COMPLETING", Restarts="2")
CANCELLED = scontrol(JobState="COMPLETING")
PREEMPTED = scontrol(JobState="COMPLETING", PreemptTime="2026-11-21T08:00:00")
PAST_DEADLINE = scontrol(JobState="COMPLETING", Reason="DeadLine")


def facts(
    *entries: Entry,
    job: JobFacts | None = RUNNING,
    epoch: Epoch = EPOCH,
    srun_exit_code: int = 75,
    in_vain: int = 0,
) -> Facts:
    """Return what `finish` knows."""
    return Facts(state_of(*entries), epoch, job, "7", srun_exit_code, in_vain)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (RunEnded(Decision.DONE, 0, "", None), 0),
        (RunEnded(Decision.FAILED, 137, "a worker failed", None), 137),
        (RunEnded(Decision.FAILED, 0, "no code", None), 76),
        (RunEnded(Decision.STOPPED, 0, "", None), 0),
        (RunEnded(Decision.CANCELLED, 130, "", None), 130),
    ],
    ids=lambda value: value.decision.value if isinstance(value, RunEnded) else str(value),
)
@pytest.mark.parametrize("job", [RUNNING, REQUEUED, CANCELLED, TIME_LIMIT, None], ids=str)
def test_a_recorded_ending_is_final(ending: RunEnded, code: int, job: JobFacts | None) -> None:
    """The script ends with the recorded code, whatever srun or Slurm say."""
    choice = decide(facts(STARTED, ROUND, ending, job=job, srun_exit_code=9), BUDGETS)
    assert isinstance(choice, Exit)
    assert (code, None) == (choice.code, choice.record)


@pytest.mark.parametrize(
    "cause",
    [Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.NODE_LOSS, Cause.JOIN_TIMEOUT, Cause.AGENT_ERROR],
    ids=lambda cause: cause.value,
)
@pytest.mark.parametrize("job", [RUNNING, IN_GRACE], ids=["running", "in grace"])
def test_a_drained_run_whose_job_runs_is_requeued(cause: Cause, job: JobFacts) -> None:
    """Nobody else requeues a script that merely ends, not even in preemption grace."""
    choice = decide(facts(*drained(cause), job=job), BUDGETS)
    assert isinstance(choice, Requeue)
    is_warning = cause is Cause.TIME_LIMIT and job is IN_GRACE  # sent in place of SIGTERM at some sites
    assert (Cause.PREEMPTION if is_warning else cause) == choice.cause


@pytest.mark.parametrize(
    ("job", "cause"),
    [(TIME_LIMIT, Cause.TIME_LIMIT), (NODE_DOWN, Cause.NODE_LOSS), (PREEMPTED, Cause.PREEMPTION)],
    ids=["time limit", "node down", "preempted with PreemptMode=CANCEL"],
)
@pytest.mark.parametrize(
    "entries", [drained(Cause.PREEMPTION), (STARTED, ROUND), ()], ids=["drained", "none", "empty"]
)
def test_a_job_that_slurm_ends_for_good_is_requeued(
    job: JobFacts, cause: Cause, entries: tuple[Entry, ...]
) -> None:
    """Slurm does not requeue these by itself; the true cause is Slurm's, not the signal's."""
    choice = decide(facts(*entries, job=job), BUDGETS)
    assert isinstance(choice, Requeue)
    assert cause == choice.cause


@pytest.mark.parametrize(
    "entries", [drained(Cause.PREEMPTION), (STARTED, ROUND), ()], ids=["drained", "none", "empty"]
)
def test_a_job_that_slurm_requeued_is_left_alone(entries: tuple[Entry, ...]) -> None:
    """A restart count above our own says that the job is queued again; that is recorded."""
    for job, told, cause in (
        (REQUEUED, None, Cause.REQUEUE),
        (REQUEUED, Cause.NODE_LOSS, Cause.NODE_LOSS),
        (REQUEUED, Cause.PREEMPTION, Cause.PREEMPTION),
        (REQUEUED._replace(warned=True), None, Cause.PREEMPTION),
        (NOT_STARTED, None, Cause.LAUNCH_FAILURE),
    ):
        choice = decide(facts(*entries, job=job)._replace(told=told), BUDGETS)
        assert isinstance(choice, Leave)
        assert (75, cause) == (choice.code, choice.requeued)
        assert ("its nodes could not start it" in choice.why) == (job is NOT_STARTED)


@pytest.mark.parametrize(
    "entries", [drained(Cause.PREEMPTION), (STARTED, ROUND), ()], ids=["drained", "none", "empty"]
)
def test_a_cancelled_job_is_never_brought_back(entries: tuple[Entry, ...]) -> None:
    """COMPLETING without a reason and without a new restart count is a cancelled job."""
    choice = decide(facts(*entries, job=CANCELLED), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (CANCELLED_CODE, Decision.CANCELLED) == (choice.code, choice.record.decision)


def test_a_job_cancelled_in_its_grace_is_not_taken_for_preempted() -> None:
    """A PreemptTime before the end was the warning, not the end."""
    job = scontrol(JobState="COMPLETING", PreemptTime="2026-11-21T07:59:00")
    assert Standing.CANCELLED is standing(job, 1)


def test_a_job_that_ends_for_an_unknown_reason_is_left_alone() -> None:
    """Only endings that are known to be Slurm's own doing are undone."""
    choice = decide(facts(*drained(Cause.PREEMPTION), job=PAST_DEADLINE), BUDGETS)
    assert isinstance(choice, Leave)
    assert (75, None) == (choice.code, choice.requeued)
    assert "DeadLine" in choice.why


def test_a_job_that_goes_back_for_unfit_nodes_says_why() -> None:
    """No node was lost; a start whose agents never came knows nothing of the unfit ones of another."""
    unfit = NodeUnfit(EPOCH, "n2", "the health command ended with 127")
    leave = (
        DrainRequested(Cause.NODE_LOSS, "n1", AfterDrain.LEAVE, "x"),
        Drained(EPOCH, Cause.NODE_LOSS, None, "x"),
    )
    choice = decide(facts(STARTED, unfit, *leave, job=RUNNING), BUDGETS)
    assert choice.why.startswith("too few nodes are fit (n2: the health command ended with 127): requeue 1")
    later = facts(STARTED, unfit, job=NODE_DOWN, epoch=EPOCH._replace(restart=2))
    assert "a node was lost: requeue" in decide(later, BUDGETS).why


@pytest.mark.parametrize("entries", [drained(Cause.NODE_LOSS), (STARTED, ROUND)], ids=["drained", "none"])
def test_nothing_is_done_while_slurm_does_not_answer(entries: tuple[Entry, ...]) -> None:
    """The job might have been cancelled."""
    choice = decide(facts(*entries, job=None), BUDGETS)
    assert isinstance(choice, Leave)
    assert (75, None) == (choice.code, choice.requeued)


def test_nothing_is_done_where_slurm_answers_in_a_word_that_is_not_known() -> None:
    """A state of a later version may mean anything; the word is told."""
    choice = decide(facts(*drained(Cause.PREEMPTION), job=scontrol(JobState="TELEPORTING")), BUDGETS)
    assert isinstance(choice, Leave)
    assert choice.why.startswith("Slurm calls its state TELEPORTING, which is not known here, so the job is")


@pytest.mark.parametrize("cause", [Cause.STOP, Cause.INTERRUPT], ids=lambda cause: cause.value)
@pytest.mark.parametrize("job", [RUNNING, CANCELLED, TIME_LIMIT, REQUEUED, None], ids=str)
def test_a_stop_on_request_ends_the_run(cause: Cause, job: JobFacts | None) -> None:
    """The user's wish counts whatever Slurm does with the job."""
    choice = decide(facts(*drained(cause), job=job), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (0, Decision.STOPPED) == (choice.code, choice.record.decision)
    assert "step 40" in choice.record.reason


def test_a_requested_stop_counts_even_if_the_agents_were_killed_before_they_had_stopped() -> None:
    """The request stands in the journal although nobody wrote that it was carried out."""
    choice = decide(facts(STARTED, ROUND, DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "")), BUDGETS)
    assert isinstance(choice, Exit)


@pytest.mark.parametrize("code", [1, 137, 143, 168, 233, 0])
@pytest.mark.parametrize("relaunch", [0, 1, 2])
def test_a_running_job_whose_srun_died_is_relaunched_on_what_is_left(code: int, relaunch: int) -> None:
    """The node count is what Slurm says the job still has."""
    epoch = EPOCH._replace(relaunch=relaunch)
    job = scontrol(NumNodes="1")
    started = EpochStarted(epoch, "7", ())
    choice = decide(facts(started, round_of(epoch), job=job, epoch=epoch, srun_exit_code=code), BUDGETS)
    assert isinstance(choice, Relaunch)
    assert 1 == choice.nodes


def test_relaunches_are_bounded_then_the_job_is_requeued() -> None:
    """After the last relaunch Slurm may have better nodes."""
    epoch = EPOCH._replace(relaunch=3)
    choice = decide(facts(STARTED, ROUND, epoch=epoch, srun_exit_code=137), BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.AGENT_ERROR == choice.cause


def test_a_drain_that_was_cut_short_is_requeued_not_relaunched() -> None:
    """The nodes are wanted back; starting agents again would waste the rest of the grace."""
    asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM")
    choice = decide(facts(STARTED, ROUND, asked, job=IN_GRACE, srun_exit_code=137), BUDGETS)
    assert isinstance(choice, Requeue)


def test_a_pause_for_new_nodes_is_no_drain() -> None:
    """A drain after which the nodes rejoin does not end the start."""
    asked = DrainRequested(Cause.MEMBERSHIP, "n3", AfterDrain.REJOIN, "")
    assert isinstance(decide(facts(STARTED, ROUND, asked, srun_exit_code=137), BUDGETS), Relaunch)


@pytest.mark.parametrize("code", [2, 126, 127])
def test_agents_that_cannot_start_end_the_run(code: int) -> None:
    """Wrong flags or a missing Python do not get better by trying again."""
    choice = decide(facts(srun_exit_code=code), BUDGETS)
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (76, Decision.FAILED) == (choice.code, choice.record.decision)
    assert str(code) in choice.record.reason


def test_code_127_of_agents_that_had_started_is_no_reason_to_end() -> None:
    """Somebody wrote a record, so Python and flags are right."""
    assert isinstance(decide(facts(STARTED, srun_exit_code=127), BUDGETS), Relaunch)


@pytest.mark.parametrize("entries", [drained(Cause.PREEMPTION), (STARTED, ROUND), ()])
def test_a_local_run_that_was_told_to_end_is_stopped(entries: tuple[Entry, ...]) -> None:
    """Whoever ends the runner wants no other start, whatever its agents came to."""
    choice = decide(facts(*entries)._replace(ended_by="SIGTERM"), RequeueBudgets())
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (75, Decision.STOPPED) == (choice.code, choice.record.decision)
    assert choice.record.reason == "ended by SIGTERM" + (
        "; checkpoint of step 40" if len(entries) > 2 else ""
    )


def test_requeues_are_bounded() -> None:
    """A spent budget ends the run as failed and names the budget."""
    used = [entry for restart in range(10) for entry in _one_start(restart)]
    epoch = Epoch(0, 0, 10, 0)
    entries = (*used, EpochStarted(epoch, "7", ()), Drained(epoch, Cause.TIME_LIMIT, None, ""))
    job = scontrol(Restarts="10")
    choice = decide(facts(*entries, epoch=epoch, job=job), BUDGETS._replace(holds=False))
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert (76, Decision.FAILED) == (choice.code, choice.record.decision)
    assert "max_requeues" in choice.record.reason
    held = decide(facts(*entries, epoch=epoch, job=job), BUDGETS)
    assert isinstance(held, Hold)
    assert held.record is not None
    assert (Decision.HELD, Budget.REQUEUES) == (held.record.decision, held.record.budget)
    assert choice.record.reason == held.record.reason
    assert isinstance(decide(facts(*entries[2:], epoch=epoch, job=job), BUDGETS), Requeue)


def _one_start(restart: int) -> tuple[Entry, Entry]:
    epoch = Epoch(0, 0, restart, 0)
    return EpochStarted(epoch, "7", ()), Requeued(epoch, Cause.TIME_LIMIT)


def test_the_requeues_of_an_earlier_submission_do_not_count() -> None:
    """Submitting again is a new budget, even if no agent has written a record yet."""
    used = [entry for restart in range(10) for entry in _one_start(restart)]
    epoch = Epoch(1, 0, 0, 0)
    choice = decide(
        facts(*used, epoch=epoch, job=scontrol(JobState="COMPLETING", Reason="TimeLimit", Restarts="0")),
        BUDGETS,
    )
    assert isinstance(choice, Requeue)


def test_the_ending_of_an_earlier_submission_does_not_count() -> None:
    """A resumed run whose agents died before their first record goes on."""
    ended = (STARTED, RunEnded(Decision.FAILED, 1, "", None))
    choice = decide(
        facts(*ended, epoch=Epoch(1, 0, 0, 0), srun_exit_code=137, job=scontrol(Restarts="0")), BUDGETS
    )
    assert isinstance(choice, Relaunch)


@pytest.mark.parametrize("cause", [Cause.JOIN_TIMEOUT, Cause.AGENT_ERROR], ids=lambda cause: cause.value)
def test_starts_in_vain_are_bounded(cause: Cause) -> None:
    """A job that never brings workers up is not requeued for ever."""
    entries = (STARTED, Drained(EPOCH, cause, None, ""))
    assert isinstance(decide(facts(*entries, in_vain=4), BUDGETS), Requeue)
    choice = decide(facts(*entries, in_vain=5), BUDGETS)
    assert isinstance(choice, Exit)
    assert 76 == choice.code


def test_a_start_that_was_preempted_before_its_first_round_is_not_held_against_the_run() -> None:
    """A job may be preempted many times before its nodes have met."""
    entries = (STARTED, Drained(EPOCH, Cause.PREEMPTION, None, ""))
    assert isinstance(decide(facts(*entries, in_vain=9), BUDGETS), Requeue)


def test_a_job_that_may_not_be_requeued_ends_the_run() -> None:
    """The reason says so; how to go on is printed with it."""
    known = facts(*drained(Cause.PREEMPTION), job=scontrol(Requeue="0"))
    assert isinstance(decide(known, BUDGETS), Resubmit)
    assert isinstance(decide(known._replace(has_script=False), BUDGETS), Exit)
    choice = decide(known, BUDGETS._replace(resubmits=False))
    assert isinstance(choice, Exit)
    assert choice.record is not None
    assert "--no-requeue" in choice.record.reason


def test_the_script_of_an_old_start_does_nothing() -> None:
    """A left-over on a node that was cut off must not touch the job of today."""
    choice = decide(facts(STARTED, epoch=Epoch(0, 0, 0, 0)), BUDGETS)
    assert isinstance(choice, Leave)
    assert (77, None) == (choice.code, choice.requeued)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"JobState": "PENDING", "Restarts": "2"}, Standing.REQUEUED),
        ({"JobState": "SUSPENDED"}, Standing.RUNNING),
        (
            {"JobState": "COMPLETING", "Restarts": "2", "Reason": "job_requeued_in_held_state"},
            Standing.REQUEUED,
        ),
        ({"JobState": "TIMEOUT", "Reason": "TimeLimit"}, Standing.TIME_LIMIT),
        ({"JobState": "CANCELLED"}, Standing.CANCELLED),
        ({"JobState": "FAILED"}, Standing.ENDING),
        ({"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}, Standing.SCRIPT_DIED),
        ({"JobState": "COMPLETING", "Reason": "OutOfMemory"}, Standing.SCRIPT_DIED),
        ({"JobState": "COMPLETING", "Reason": "RaisedSignal:9(Killed)"}, Standing.SCRIPT_DIED),
        ({"JobState": "RUNNING", "NumNodes": "2-4"}, Standing.RUNNING),
    ],
    ids=str,
)
def test_how_a_job_stands(fields: dict[str, str], expected: Standing) -> None:
    """State, reason and restart count together tell how a job stands."""
    assert expected is standing(scontrol(**fields), 1)


def test_starts_in_vain_are_counted_from_the_newest_back() -> None:
    """Relaunches belong to their start; a round ends the count; other submissions do not matter."""
    first, second = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
    entries: list[Entry] = [EpochStarted(first, "7", ()), round_of(first), EpochStarted(second, "7", ())]
    entries += [EpochStarted(second._replace(relaunch=1), "7", ())]
    assert 1 == starts_in_vain(records_of(*entries), second)
    assert 2 == starts_in_vain(records_of(*entries), Epoch(0, 0, 2, 0))
    assert 0 == starts_in_vain(records_of(*entries, round_of(second, 2)), second)
    assert 1 == starts_in_vain(records_of(*entries), Epoch(1, 0, 0, 0))


def test_a_run_that_is_held_waits_only_where_slurm_can_have_it_wait() -> None:
    """A local run ends with the reason, and with the code of what was to be done again."""
    ending = RunEnded(Decision.HELD, 75, "the budget is spent", None)
    held = facts(STARTED, ROUND, ending)
    waits = decide(held, BUDGETS)
    assert isinstance(waits, Hold)
    assert "the budget is spent" in waits.why
    ends = decide(held._replace(local=True), BUDGETS)
    assert isinstance(ends, Exit)
    assert (75, "the run is held: the budget is spent") == (ends.code, ends.why)


def test_each_cause_has_its_budget_or_none() -> None:
    """Without a limit, too."""
    budgets = BUDGETS._replace(max_node_losses=3, max_preemptions=None)
    found = [budgets.of(cause) for cause in (Cause.NODE_LOSS, Cause.PREEMPTION, Cause.CRASH)]
    assert [(3, Budget.NODE_LOSSES), None, None] == found


def test_what_slurm_does_not_tell_bars_no_requeue() -> None:
    """It answers when it is asked for one."""
    assert facts(job=None).may_requeue


def test_an_array_is_throttled_only_where_a_size_is_wanted() -> None:
    """Another array of the run has no bound of its own."""
    task = facts(STARTED)._replace(is_task=True, job_id="7_1")
    wanted = facts(STARTED, SizeWanted(0, 2, "scale"))._replace(is_task=True, job_id="7_1")
    assert (False, True, False) == (
        task.is_throttled,
        wanted.is_throttled,
        wanted._replace(job_id="8_1").is_throttled,
    )


def test_only_a_task_that_was_of_use_is_resubmitted() -> None:
    """The starts of a job in vain have a bound of their own."""
    budgets = BUDGETS._replace(resubmits=True)
    job = facts(STARTED, in_vain=1)
    assert job.may_resubmit(budgets)
    assert not job._replace(is_task=True).may_resubmit(budgets)
    assert job._replace(is_task=True, in_vain=0).may_resubmit(budgets)
    assert not job._replace(has_script=False).may_resubmit(budgets)


def test_a_run_needs_one_node_if_nobody_says_more() -> None:
    """As sbatch gives one."""
    task = facts(STARTED, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, ""))._replace(is_task=True, job_id="7_1")
    assert isinstance(decide(task._replace(others=Others(0, 0)), BUDGETS), Requeue)
