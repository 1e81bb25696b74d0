"""Time limits, warnings, and how long a requeued job waits. No code of ours runs here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.probes import Probe, Shape, running

LOW = ("--partition=low", "--requeue")
SHAPES = {
    "limit": Shape((*LOW, "--time=1")),
    "limit, requeues itself": Shape((*LOW, "--time=1"), agent="exit=75", script="requeue=75"),
    "limit, RequeueExit": Shape((*LOW, "--time=1"), agent="exit=75", script="exit=99"),
    "warn tasks": Shape((*LOW, "--time=3", "--signal=USR1@90")),
    "warn script": Shape((*LOW, "--time=3", "--signal=B:USR1@90")),
    "waits": Shape(LOW, agent="exit=75"),
    "is hurried": Shape(LOW, agent="exit=75"),
}


@pytest.fixture(scope="module")
def jobs(session_cluster: Cluster) -> Iterator[dict[str, Probe]]:
    """Jobs with short limits; an administrator brings those limits forward, as nobody can ask for seconds."""
    with running(session_cluster, SHAPES) as probes:
        for name, ahead_s in (("limit", 5), ("warn", 91)):
            for job in (probe for key, probe in probes.items() if key.startswith(name)):
                before = job.job()["EndTime"]
                at = datetime.now() + timedelta(seconds=ahead_s)  # noqa: DTZ005 - slurmctld reads local time
                when = at.isoformat(timespec="seconds")
                session_cluster.as_root("scontrol", "update", f"jobid={job.job_id}", f"EndTime={when}")
                assert job.job()["EndTime"] < before  # it may have ended since, a little later
        yield probes


def test_a_warning_goes_to_whom_it_was_asked_for(jobs: dict[str, Probe]) -> None:
    """--signal=USR1@N tells the tasks, with B: the script alone; up to 30 s early."""
    tasks, script = jobs["warn tasks"], jobs["warn script"]
    tasks.wait_heard("USR1", "agent", timeout=90)
    script.wait_heard("USR1", "batch", timeout=90)
    assert "USR1" not in tasks.heard("batch")
    assert "USR1" not in script.heard("agent")


def test_the_limit_tells_everybody_and_is_final(jobs: dict[str, Probe]) -> None:
    """At the limit tasks and script hear SIGTERM, KillWait later all are killed; nothing is requeued."""
    job = jobs["limit"]
    job.wait_heard("TERM", "agent", timeout=150)
    job.wait_heard("TERM", "batch")
    assert "TIMEOUT" == job.wait_over()
    assert ("TimeLimit", 0) == (job.job()["Reason"], job.restarts)


@pytest.mark.parametrize("name", ["limit, requeues itself", "limit, RequeueExit"])
def test_a_job_at_its_limit_can_be_put_back(jobs: dict[str, Probe], name: str) -> None:
    """`scontrol requeue` while it ends for its limit, or RequeueExit, brings a job back."""
    jobs[name].wait_requeued(150)


def test_a_requeued_job_waits_unless_its_owner_hurries_it(jobs: dict[str, Probe]) -> None:
    """It is eligible cred_expire + 1 s after its end (2 min by default); a StartTime cuts that short.

    Not to the same second: slurmd takes the credential of the new start for revoked, and the job fails.
    """
    waits, hurried = jobs["waits"], jobs["is hurried"]
    cluster = waits.cluster
    for job in (waits, hurried):
        assert 0 == cluster.run("alice", ["scontrol", "requeue", job.job_id]).returncode
    cluster.wait_for(lambda: hurried.job().get("JobState") == "PENDING", 30, "the job to be pending")
    assert "BeginTime" == hurried.job()["Reason"]
    words = ["scontrol", "update", f"jobid={hurried.job_id}", "StartTime=now+3"]
    assert 0 == cluster.run("alice", words).returncode
    waits.wait_started(start=1)
    hurried.wait_started(start=1)
    assert _began(hurried) < _began(waits)


def _began(job: Probe) -> str:
    """Return when the second start of a job began, by Slurm: on a busy machine the program comes later."""
    return job.job()["StartTime"]
