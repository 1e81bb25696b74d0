"""Where a run stands, from its records and Slurm's word."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.slurm.client.job_standing import GONE, JobFacts, job_facts

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
ROUND = RoundFormed(3, EPOCH, (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2)), "n1", 1, None)
FIRST_ROUND = ROUND._replace(number=1)
DRAIN = DrainRequested(Cause.TIME_LIMIT, "n1", AfterDrain.LEAVE, "SIGUSR2")


def job(state: str, reason: str = "None", restarts: int = 0) -> JobFacts:
    """Return a job as scontrol tells it."""
    return job_facts({"JobState": state, "Reason": reason, "Restarts": str(restarts), "NumNodes": "2"})


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)])


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (Cause.REQUEUE, "requeued by hand, waits for nodes"),
        (Cause.LAUNCH_FAILURE, "requeued because what finish says, waits for nodes"),
        (Cause.NODE_LOSS, "requeued after a node was lost, waits for nodes"),
        (Cause.PREEMPTION, "requeued after preemption, waits for nodes"),
        (None, "requeued after SIGTERM, waits for nodes"),
    ],
)
def test_why_a_job_waits_again_is_what_finish_has_found_out(cause: Cause | None, words: str) -> None:
    """Agents take any SIGTERM for a preemption."""
    drain = DRAIN._replace(cause=Cause.PREEMPTION, detail="", asked=Asked("SIGTERM"))
    state = state_of(STARTED, FIRST_ROUND, drain, Drained(EPOCH, Cause.PREEMPTION, 9, ""))
    back = None if cause is None else Requeued(EPOCH, cause, "what finish says")
    view = RunView(state, 0, "7", job("PENDING", restarts=1), handed_back=back)
    assert words == status_of(view).text


def test_a_batch_script_that_was_killed_is_no_start_that_failed() -> None:
    """Its agents had started: they have saved, and given the job back."""
    drain = DRAIN._replace(cause=Cause.PREEMPTION, detail="", asked=Asked("SIGTERM"))
    killed = DrainExplained(EPOCH, Cause.LAUNCH_FAILURE, "its batch script was killed")
    state = state_of(STARTED, FIRST_ROUND, drain, killed, Drained(EPOCH, Cause.LAUNCH_FAILURE, 9, ""))
    view = RunView(state, 0, "7", job("PENDING", restarts=1))
    assert "requeued because the batch script was killed, waits for nodes" == status_of(view).text
    over = status_of(view._replace(job=job("FAILED", "RaisedSignal:9(Killed)"))).text
    assert "job 7 ended as FAILED, drained at step 9 (the batch script was killed)" == over


@pytest.mark.parametrize(
    ("entries", "facts", "phase", "words"),
    [
        ((), job("PENDING", "Priority"), RunPhase.QUEUED, "Slurm's reason: Priority"),
        ((), job("RUNNING"), RunPhase.STARTING, "have not spoken"),
        ((), None, RunPhase.UNKNOWN, "no agent"),
        ((STARTED,), job("RUNNING"), RunPhase.STARTING, "n1, n2 meet"),
        ((STARTED, FIRST_ROUND), job("RUNNING"), RunPhase.RUNNING, "round 1 on n1, n2 (4 workers)"),
        ((STARTED, FIRST_ROUND), None, RunPhase.RUNNING, "round 1 on n1, n2 (4 workers)"),
        (
            (STARTED, FIRST_ROUND, RoundEnded(1, Cause.CRASH, ("n1",), {})),
            None,
            RunPhase.RESTARTING,
            "worker failed",
        ),
        (
            (STARTED, FIRST_ROUND, DRAIN, StopAgreed(1, 9)),
            None,
            RunPhase.DRAINING,
            "time limit; all running ranks stop at step 9 at the latest",
        ),
        (
            (STARTED, FIRST_ROUND, DRAIN, Drained(EPOCH, Cause.TIME_LIMIT, 9, "")),
            None,
            RunPhase.REQUEUED,
            "at step 9",
        ),
        ((STARTED, FIRST_ROUND), job("PENDING", "BeginTime", 1), RunPhase.REQUEUED, "BeginTime"),
        ((STARTED, Requeued(EPOCH, Cause.LAUNCH_FAILURE)), None, RunPhase.REQUEUED, "given back to Slurm"),
        ((STARTED, FIRST_ROUND), job("RUNNING", restarts=1), RunPhase.STARTING, "have not spoken"),
        (
            (STARTED, FIRST_ROUND),
            job("FAILED"),
            RunPhase.GONE,
            "ended as FAILED, and its agents have recorded no end",
        ),
        (
            (STARTED, FIRST_ROUND),
            job("FAILED", "RaisedSignal:9(Killed)"),
            RunPhase.GONE,
            "job 7 ended as FAILED: its batch script was killed, and no process was left to requeue it",
        ),
        ((STARTED, FIRST_ROUND), GONE, RunPhase.GONE, "not there any more"),
        ((STARTED, RunEnded(Decision.DONE, 0, "", None)), job("PENDING"), RunPhase.DONE, "done"),
        ((STARTED, RunEnded(Decision.FAILED, 1, "why", None)), None, RunPhase.FAILED, "why"),
        ((STARTED, RunEnded(Decision.STOPPED, 0, "", None)), None, RunPhase.STOPPED, "stopped"),
        ((STARTED, RunEnded(Decision.CANCELLED, 130, "", None)), GONE, RunPhase.CANCELLED, "cancelled"),
    ],
)
def test_the_status_of_a_run(
    entries: tuple[Entry, ...], facts: JobFacts | None, phase: RunPhase, words: str
) -> None:
    """Records tell what happens inside a start of the job, Slurm tells whether there is one."""
    found = status_of(RunView(state_of(*entries), 0, "7", facts))
    assert phase is found.phase
    assert words in found.text


def test_a_job_that_is_held_does_not_merely_wait() -> None:
    """No node that becomes free starts it."""
    view = RunView(state_of(), 0, "7", job("PENDING", "JobHeldUser")._replace(held=True))
    words = "held: it does not start before it is released (Slurm's reason: JobHeldUser)"
    assert f"queued, but {words}" == status_of(view).text
    after = status_of(view._replace(state=state_of(STARTED, FIRST_ROUND)))
    assert f"requeued, but {words}" == after.text


def test_between_rounds_those_who_ended_the_last_one_are_named() -> None:
    """A node that was lost, a rank that failed."""
    lost = state_of(STARTED, FIRST_ROUND, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None))
    assert "between rounds: lost n2" == status_of(RunView(lost, 0)).text
    failed = state_of(STARTED, FIRST_ROUND, RoundEnded(1, Cause.CRASH, ("n2",), {"rank": 3, "node": "n2"}))
    assert "between rounds: rank 3 on n2: exit code 1" == status_of(RunView(failed, 0)).text


def test_a_run_that_was_submitted_again_is_not_what_its_last_ending_says() -> None:
    """The ending belongs to the submission before."""
    state = state_of(STARTED, RunEnded(Decision.FAILED, 1, "why", None))
    assert RunPhase.QUEUED is status_of(RunView(state, 1, "8", job("PENDING"))).phase
    assert RunPhase.UNKNOWN is status_of(RunView(state, 1, "8", None)).phase


DRAINED = Drained(EPOCH, Cause.TIME_LIMIT, 9, "")
PREEMPTED = Drained(EPOCH, Cause.PREEMPTION, None, "")


@pytest.mark.parametrize(
    ("drained", "facts", "phase", "text"),
    [
        (DRAINED, None, RunPhase.STOPPED, "stopped: the time limit, saved step 9"),
        (PREEMPTED, None, RunPhase.STOPPED, "stopped: preemption"),
        (DRAINED._replace(cause=Cause.STOP), GONE, RunPhase.STOPPED, "stopped by the user, saved step 9"),
        (DRAINED, job("COMPLETED"), RunPhase.STOPPED, "stopped: the time limit, saved step 9"),
        (PREEMPTED, job("CANCELLED"), RunPhase.STOPPED, "stopped: the job was cancelled"),
        (DRAINED, job("RUNNING"), RunPhase.DRAINING, "drained at step 9 (the time limit), leaves the nodes"),
        (
            PREEMPTED,
            job("PENDING", restarts=1),
            RunPhase.REQUEUED,
            "requeued after preemption, waits for nodes",
        ),
    ],
)
def test_a_drained_run_without_a_script_of_ours_is_over(
    drained: Drained, facts: JobFacts | None, phase: RunPhase, text: str
) -> None:
    """Nobody is known to requeue it; if its script or Slurm does, it is requeued like any other."""
    state = state_of(STARTED, FIRST_ROUND, drained)
    assert (phase, text) == status_of(RunView(state, -1, "7", facts, has_script=False))
    requeued = state_of(STARTED, FIRST_ROUND, drained, Requeued(EPOCH, drained.cause))
    assert RunPhase.REQUEUED is status_of(RunView(requeued, -1, "7", None, has_script=False)).phase


def test_a_drained_run_whose_job_has_ended_says_so() -> None:
    """Its agents have recorded what they did; only the requeue is missing."""
    state = state_of(STARTED, FIRST_ROUND, DRAINED)
    found = status_of(RunView(state, 0, "7", job("CANCELLED")))
    assert (RunPhase.GONE, "job 7 ended as CANCELLED, drained at step 9 (the time limit)") == found


@pytest.mark.parametrize(("entries", "restarts"), [((Requeued(EPOCH, Cause.PREEMPTION),), 0), ((), 1)])
def test_a_job_that_was_cancelled_in_the_queue_says_so(entries: tuple[Entry, ...], restarts: int) -> None:
    """It was requeued before, by our script or by Slurm: the preemption did not end it."""
    state = state_of(STARTED, FIRST_ROUND, PREEMPTED, *entries)
    found = status_of(RunView(state, 0, "7", job("CANCELLED", restarts=restarts)))
    text = "job 7 was cancelled while it waited in the queue, drained (preemption)"
    assert (RunPhase.GONE, text) == found


def test_a_phase_is_equal_to_its_word() -> None:
    """A loop in a notebook that waits for the word would go round for ever otherwise."""
    assert status_of(RunView(state_of(STARTED, FIRST_ROUND), 0)).phase == "running"


def test_silence_is_told_with_what_slurm_says() -> None:
    """Records of a run whose last agent was killed say that it runs; its members do not."""
    view = RunView(state_of(STARTED, FIRST_ROUND), 0, "7", job("RUNNING"), silent_s=45.0)
    told = status_of(view)
    assert RunPhase.SILENT is told.phase
    assert "no agent has given a sign of life for 45 s; Slurm says: job 7 RUNNING" in told.text
    assert "running round 1 on n1, n2" in told.text
    assert "Slurm did not tell" in status_of(view._replace(job=None)).text


def test_a_job_that_is_gone_needs_no_look_at_members() -> None:
    """Slurm knows best; so it does of a requeued job that waits."""
    view = RunView(state_of(STARTED, FIRST_ROUND), 0, "7", GONE, silent_s=45.0)
    assert RunPhase.GONE is status_of(view).phase
    assert RunPhase.REQUEUED is status_of(view._replace(job=job("PENDING", restarts=1))).phase


def test_a_held_run_is_told_as_such() -> None:
    """A run that waits for its user is neither running nor failed."""
    held = RunEnded(Decision.HELD, 75, "max_preemptions = 0 is spent", None)
    told = status_of(RunView(state_of(STARTED, FIRST_ROUND, held), 0, "7", None))
    assert (RunPhase.HELD, True) == (told.phase, "max_preemptions" in told.text)
