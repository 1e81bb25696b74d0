"""What Slurm's facts say about why a job ends."""

from __future__ import annotations

import pytest

from hpc_elastic.rendezvous.journal import Cause
from hpc_elastic.slurm.standing import Standing, due_to, job_facts, standing, true_cause

PLAIN = job_facts({"JobState": "RUNNING"})
WARNED = job_facts({"JobState": "RUNNING", "PreemptTime": "2026-11-21T08:00:00"})
NOT_STARTED = job_facts({"JobState": "PENDING", "Reason": "launch_failed_requeued_held"})
LINE = "slurmstepd-node1: error: *** JOB 17 ON node1 CANCELLED AT 2026-11-21T20:42:57 DUE TO {} ***"


@pytest.mark.parametrize(
    ("job", "stands", "asked", "cause"),
    [
        (PLAIN, Standing.TIME_LIMIT, Cause.PREEMPTION, Cause.TIME_LIMIT),
        (PLAIN, Standing.NODE_DOWN, Cause.PREEMPTION, Cause.NODE_LOSS),
        (WARNED, Standing.RUNNING, Cause.TIME_LIMIT, Cause.PREEMPTION),
        (WARNED, Standing.RUNNING, Cause.JOIN_TIMEOUT, Cause.JOIN_TIMEOUT),
        (PLAIN, Standing.RUNNING, Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        (PLAIN, Standing.REQUEUED, Cause.PREEMPTION, Cause.REQUEUE),
        (PLAIN, Standing.REQUEUED, Cause.NODE_LOSS, Cause.NODE_LOSS),
        (NOT_STARTED, Standing.REQUEUED, Cause.PREEMPTION, Cause.LAUNCH_FAILURE),
        (NOT_STARTED, Standing.REQUEUED, Cause.NODE_LOSS, Cause.NODE_LOSS),
        (None, Standing.UNKNOWN, Cause.PREEMPTION, Cause.PREEMPTION),
        (PLAIN, Standing.SCRIPT_DIED, Cause.PREEMPTION, Cause.LAUNCH_FAILURE),
    ],
)
def test_slurm_knows_better_than_a_signal(job: object, stands: Standing, asked: Cause, cause: Cause) -> None:
    """What the agents have seen themselves stands; what they were signalled for is Slurm's to say."""
    assert cause is true_cause(job, stands, asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("PREEMPTION", Cause.PREEMPTION),
        ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", Cause.NODE_LOSS),
        ("TIME LIMIT", Cause.TIME_LIMIT),
        ("JOB REQUEUE", Cause.REQUEUE),
        ("SOMETHING NEW", None),
    ],
)
def test_the_last_word_in_the_batch_log_counts(words: str, cause: Cause | None) -> None:
    """Earlier starts have left theirs; a step's is not the job's."""
    log = "\n".join([LINE.format("TIME LIMIT"), "loss 0.1", LINE.format(words), "srun: error: node1"])
    assert cause is due_to(log)
    assert due_to(log.replace("*** JOB 17", "*** STEP 17.0")) is None


def test_a_held_job_is_known() -> None:
    """By its reason, or by its priority."""
    assert job_facts({"JobState": "PENDING", "Reason": "JobHeldUser"}).held
    assert job_facts({"JobState": "PENDING", "Priority": "0"}).held
    assert not job_facts({"JobState": "PENDING", "Reason": "Priority"}).held
    assert not job_facts({"JobState": "RUNNING", "Priority": "0"}).held


@pytest.mark.parametrize(
    ("fields", "stands"),
    [
        ({"JobState": "TIMEOUT"}, Standing.TIME_LIMIT),
        ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, Standing.TIME_LIMIT),
        ({"JobState": "NODE_FAIL"}, Standing.NODE_DOWN),
        ({"JobState": "COMPLETING", "Reason": "NodeDown"}, Standing.NODE_DOWN),
        ({"JobState": "PREEMPTED"}, Standing.PREEMPTED),
        ({"JobState": "COMPLETING", "PreemptTime": "T08", "EndTime": "T08"}, Standing.PREEMPTED),
        ({"JobState": "COMPLETING", "PreemptTime": "T08", "EndTime": "T07"}, Standing.CANCELLED),
        ({"JobState": "CANCELLED by 0"}, Standing.CANCELLED),
    ],
)
def test_why_a_job_ends(fields: dict[str, str], stands: Standing) -> None:
    """By its state where that says so, else by the reason; one cancelled in its grace was not preempted."""
    assert stands is standing(job_facts(fields), 0)
