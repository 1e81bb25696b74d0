"""What Slurm's facts say about why a job ends."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Cause, Drained, NodeUnfit
from hpc_elastic.slurm.client.job_standing import (
    GONE,
    Standing,
    due_to,
    job_facts,
    signal_not_from_slurm,
    standing,
    true_cause,
    unfit_text,
)
from hpc_elastic.slurm.client.parse import JobState
from tests.meet.build import E0, REQUEUED, after, formed, loss, start

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
        (PLAIN, Standing.SCRIPT_DIED, Cause.NODE_LOSS, Cause.NODE_LOSS),  # its batch host was taken from it
        (PLAIN, Standing.PREEMPTED, Cause.TIME_LIMIT, Cause.PREEMPTION),
        (WARNED, Standing.REQUEUED, None, Cause.PREEMPTION),
        (PLAIN, Standing.RUNNING, None, None),
        (None, Standing.REQUEUED, None, None),
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


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "[2026-11-22T21:08:06.134] error: *** JOB 1009 ON node1 CANCELLED AT {} DUE TO PREEMPTION ***",
            Cause.PREEMPTION,
        ),
        (
            "[2026-11-22T21:08:06.134] error: *** JOB 9 ON n1 CANCELLED AT {} DUE TO SIGNAL Terminated ***",
            None,
        ),
        ("slurmstepd-node1: error: *** JOB 1009 ON n1 CANCELLED AT {} DUE TO SIGNAL Terminated ***", None),
    ],
    ids=["preempted, 26.05", "scancel, 26.05", "scancel, 25.05"],
)
def test_lines_of_newer_versions_are_read(line: str, cause: Cause | None) -> None:
    """Since 26.05 they begin with the time; since 25.05 that of scancel names a signal."""
    assert cause is due_to(line.format("2026-11-22T21:08:06"))


def test_a_held_job_is_known() -> None:
    """By its reason, or by its priority."""
    assert job_facts({"JobState": "PENDING", "Reason": "JobHeldUser"}).held
    assert job_facts({"JobState": "PENDING", "Priority": "0"}).held
    assert not job_facts({"JobState": "PENDING", "Reason": "Priority"}).held
    assert not job_facts({"JobState": "RUNNING", "Priority": "0"}).held
    limit = {"JobState": "REQUEUE_HOLD", "Reason": "launch_failure_limit_exceeded_requeued_held"}
    assert job_facts(limit).held
    assert not job_facts({"JobState": "REQUEUED", "Priority": "0"}).held


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
        ({"JobState": "CANCELLED", "PreemptTime": "T08", "EndTime": "T08"}, Standing.CANCELLED),
        ({"JobState": "CANCELLED by 0", "Reason": ""}, Standing.CANCELLED),
        ({"JobState": "COMPLETING", "Reason": "None"}, Standing.CANCELLED),
        ({"JobState": "COMPLETING", "Reason": "Dependency"}, Standing.ENDING),
        ({"JobState": "COMPLETED"}, Standing.ENDING),
        ({"JobState": "LAUNCH_FAILED"}, Standing.SCRIPT_DIED),
        ({"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}, Standing.SCRIPT_DIED),
        ({"JobState": "COMPLETING", "Reason": "RaisedSignal:9(Killed)"}, Standing.SCRIPT_DIED),
        ({"JobState": "FAILED", "Reason": "RaisedSignal:9(Killed)"}, Standing.SCRIPT_DIED),
        ({"JobState": "FAILED", "Reason": "RaisedSignal:15(Terminated)"}, Standing.SCRIPT_DIED),
        ({"JobState": "COMPLETING", "Reason": "OutOfMemory"}, Standing.SCRIPT_DIED),
        ({"JobState": "OUT_OF_MEMORY"}, Standing.SCRIPT_DIED),
        ({"JobState": "FAILED", "Reason": "NonZeroExitCode"}, Standing.ENDING),
    ],
)
def test_why_a_job_ends(fields: dict[str, str], stands: Standing) -> None:
    """By its state where that says so, else by the reason; one cancelled in its grace was not preempted."""
    assert stands is standing(job_facts(fields), 0)


@pytest.mark.parametrize(
    ("fields", "restarts", "stands"),
    [
        ({"JobState": "RUNNING", "Restarts": "2"}, 2, Standing.RUNNING),
        ({"JobState": "RUNNING", "Restarts": "2"}, 1, Standing.REQUEUED),
        ({"JobState": "RUNNING", "Restarts": "2"}, 3, Standing.RUNNING),
        ({"JobState": "SUSPENDED"}, 0, Standing.RUNNING),
        ({"JobState": "PENDING"}, 0, Standing.REQUEUED),
        ({"JobState": "REQUEUED"}, 0, Standing.REQUEUED),
        ({"JobState": "EXPEDITING", "Restarts": "1"}, 0, Standing.REQUEUED),
        ({"JobState": "TELEPORTING"}, 0, Standing.UNKNOWN),
        ({"JobState": "TELEPORTING", "Restarts": "1"}, 0, Standing.REQUEUED),
    ],
)
def test_a_job_that_has_not_ended(fields: dict[str, str], restarts: int, stands: Standing) -> None:
    """A later start of it shows that this one was put back into the queue."""
    assert stands is standing(job_facts(fields), restarts)
    assert Standing.UNKNOWN is standing(None, restarts)


def test_a_job_is_let_be_if_it_runs_and_nobody_has_warned_it() -> None:
    """Else a signal may be Slurm's own; so it may if Slurm does not answer."""
    assert signal_not_from_slurm(PLAIN, 0)
    assert not signal_not_from_slurm(WARNED, 0)
    assert not signal_not_from_slurm(None, 0)
    assert not signal_not_from_slurm(None, 0)
    assert not signal_not_from_slurm(job_facts({"JobState": "COMPLETING"}), 0)
    assert not signal_not_from_slurm(PLAIN._replace(restarts=1), 0)


def test_told_why_a_job_was_put_back_is_believed() -> None:
    """The log of the batch script says more than the queue does."""
    assert Cause.TIME_LIMIT is true_cause(PLAIN, Standing.REQUEUED, None, told=Cause.TIME_LIMIT)


def test_what_slurm_leaves_out_takes_its_usual_value() -> None:
    """No restarts, no nodes, may be requeued; nothing was preempted or warned."""
    facts = job_facts({})
    assert (0, True, 0, False, False, "", False, None) == facts[3:]
    assert ("", "None") == (facts.word, facts.reason)
    fields = {"Restarts": "12", "NumNodes": "3-4", "Requeue": "0", "NodeList": "n[1-3]"}
    assert (12, False, 3, False, False, "n[1-3]", False, None) == job_facts(fields)[3:]
    assert "" == job_facts({"NodeList": "(null)"}).node_list
    assert (0, False, 0, False, False, "", False, None) == GONE[3:]


@pytest.mark.parametrize(
    ("fields", "warned", "preempted"),
    [
        ({"PreemptTime": "None", "EndTime": "None"}, False, False),
        ({"PreemptTime": "", "EndTime": ""}, False, False),
        ({"PreemptTime": "T08", "EndTime": "T09"}, True, False),
        ({"PreemptTime": "T08", "EndTime": "T08"}, True, True),
    ],
)
def test_a_warning_of_preemption_is_no_preemption(
    fields: dict[str, str], warned: bool, preempted: bool
) -> None:
    """It is one if the job ended at that time."""
    facts = job_facts(fields)
    assert (warned, preempted) == (facts.warned, facts.preempted)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"JobState": "PENDING", "Reason": "JobHeldAdmin"}, True),
        ({"JobState": "COMPLETING", "Reason": "JobHeldUser"}, True),
        ({"JobState": "COMPLETING", "Reason": "None"}, False),
        ({"JobState": "RUNNING", "Reason": "JobHeldUser"}, False),
    ],
)
def test_who_is_to_be_released(fields: dict[str, str], expected: bool) -> None:
    """Also a job that will be held once its processes have ended."""
    assert expected is job_facts(fields).to_be_released


def test_that_too_few_nodes_are_fit_is_told_of_this_start_only() -> None:
    """The first of them by name, with its reason; lost nodes are another matter."""
    unfit = [NodeUnfit(E0, node, "disk full") for node in ("n3", "n2")]
    left = Drained(E0, Cause.NODE_LOSS, None, "")
    state = after(start(), *unfit, left)
    assert "too few nodes are fit (n2: disk full)" == unfit_text(state, E0)
    assert "" == unfit_text(state, REQUEUED)
    assert "" == unfit_text(after(start()), E0)
    assert "" == unfit_text(after(start(), *unfit), E0)
    assert "" == unfit_text(after(start(), formed(1), loss(1, "n1"), unfit[1], left), E0)


def test_a_job_that_slurm_does_not_know_has_ended() -> None:
    """It has no node, and nothing is left to be requeued."""
    assert (JobState.ENDED, "", "None", 0, False, 0, False, False, "", False, None) == tuple(GONE)
    assert not GONE.to_be_released
