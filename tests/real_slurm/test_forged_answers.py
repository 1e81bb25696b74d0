"""Runs with texts that look like Slurm's words, in the job and on its nodes: they go on like any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import Run, elastic, installed_for_users, plain, submit

__all__ = ["installed_for_users"]
pytestmark = pytest.mark.usefixtures("installed_for_users")

ONE = ("--nodes", "1", "--time", "10m", "--partition", "low")
FORGED = "JobState=CANCELLED Reason=None Restarts=0"
SUBMITTED = {  # name of a run -> flags of submit
    "plain": ("--name", "plain"),
    "name": ("--name", "x JobState=CANCELLED"),
    "newline": ("--name", "newline"),
    "comment": ("--name", "scaling NumNodes=0", "--comment", f"mine {FORGED}"),
}
UPDATED = {  # name of a run -> what its owner changes afterwards, which submit refuses
    "newline": f"name=x\nJobId=1 {FORGED} UserId=alice(1001)",
    "comment": f"comment=mine\n1|{FORGED}\n|CANCELLED",
}


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[None]:
    """Have an administrator give reasons, comments and features to nodes that hold words of Slurm's."""
    hostile = "x State=DOWN+NOT_RESPONDING Reason=NodeDown\nNodeName=node1 State=IDLE"
    for node in cluster.node_names:
        words = (f"comment={hostile}", f"extra={hostile}", "availablefeatures=a", "activefeatures=a")
        cluster.as_root("scontrol", "update", f"nodename={node}", *words)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=drain", f"reason={hostile}")
    yield
    for node in cluster.node_names:
        words = ("comment=", "extra=", "availablefeatures=", "activefeatures=")
        cluster.as_root("scontrol", "update", f"nodename={node}", *words)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=resume")


def started(run: Run) -> Run:
    """Wait until the workers run."""
    run.wait(lambda state: state.running is not None, "the workers to run", 120)
    return run


@pytest.mark.timeout(600)
def test_runs_whose_job_looks_cancelled_go_on(cluster: Cluster, admin: None) -> None:
    """After the end of their step all start their agents again, whatever the job is called."""
    worker = plain(cluster, "--step-time", "0.5")
    runs = {name: submit(cluster, (*ONE, *flags), worker) for name, flags in SUBMITTED.items()}
    place = cluster.shared / "work JobState=COMPLETED"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    runs["directory"] = submit(cluster, (*ONE, "-o", f"chdir={place}"), worker)
    for name, change in UPDATED.items():
        assert (
            0 == cluster.run("alice", ["scontrol", "update", f"jobid={runs[name].job_id}", change]).returncode
        )
    for run in runs.values():
        assert "RUNNING" in started(run).command("status", str(run.directory)).stdout
    for run in runs.values():
        cluster.run("alice", ["scancel", f"{run.job_id}.0"])
    for name, run in runs.items():
        run.wait(
            lambda state: state.epoch.relaunch == 1 and state.running is not None, f"{name} to go on", 120
        )
        assert 2 == len(run.entries(RoundFormed)), name
        assert run.state().ending is None, name
    for name, run in runs.items():
        run.command("cancel", str(run.directory))
        ending = run.wait_ending(120).ending
        assert ending is not None, name
        assert Decision.CANCELLED is ending.decision, name


def test_jobs_of_bobs_with_the_mark_of_a_run_are_not_taken_for_its_own(cluster: Cluster) -> None:
    """Everybody can read the mark, by which a job is found whose submission was cut short."""
    run = submit(cluster, (*ONE, "--name", "marked", "-o", "hold"), plain(cluster))
    mark = cluster.run("bob", ["squeue", "--noheader", f"--jobs={run.job_id}", "--format=%k"]).stdout.strip()
    forged = ("--hold", f"--comment={mark}", "--job-name=marked")
    decoys = [cluster.submit("bob", *forged, *more, wrap="true") for more in ((), ("--array=0-3",))]
    record = run.directory / "submissions" / "000000.json"
    record.unlink()
    again = elastic(cluster, "submit", "--resume", str(run.directory))
    assert f"marked was already queued as job {run.job_id}\n" in again.stdout, again.stderr
    run.command("cancel", str(run.directory))
    cluster.wait_for(lambda: "CANCELLED" == run.job().get("JobState"), 60, "alice's job to be cancelled")
    assert ["PENDING", "PENDING"] == [cluster.job(job_id).get("JobState") for job_id in decoys]
