"""What Slurm's commands print of texts that look like its own words. No code of ours runs as a job here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import Form
from tests.real_slurm.cluster import Cluster

MARK = "_0123456789abcdef_"
NAME = "x JobState=CANCELLED\nJobId=9 JobState=FAILED Reason=TimeLimit"
COMMENT = "token 9|0|RUNNING\nJobId=9 JobState=FAILED\t\"' % \x1b[31m é"
REASON = "bad State=IDLE\nNodeName=node2 State=DOWN"


def ask(cluster: Cluster, form: Form, *argv: str) -> list[tuple[str, ...]]:
    """Return a table."""
    return form.rows(cluster.as_root(*argv, "--noheader", form.option(MARK)), MARK, argv)


def jobs_of(cluster: Cluster, job: str) -> list[dict[str, str]]:
    """Return the fields of a job, or of the tasks of an array."""
    return answers.read_jobs(ask(cluster, answers.JOBS, "squeue", "--all", "--states=all", f"--jobs={job}"))


def test_a_job_with_hostile_texts_is_read_as_it_is(cluster: Cluster) -> None:
    """Running, and after it was cancelled; with the values that scontrol prints of a plain job."""
    comment = COMMENT.replace("token", "my-token")  # other tests' jobs are listed too
    texts = ("--job-name", NAME, "--comment", comment, "--exclude=node4", "--nodes=2")
    hostile = cluster.submit("alice", *texts, "--time=5", wrap="exec sleep 300")
    plain = cluster.submit("alice", "--nodes=1", "--time=5", wrap="exec sleep 300")
    cluster.wait_state(plain, "RUNNING", 60)
    cluster.wait_for(lambda: jobs_of(cluster, hostile)[0]["JobState"] == "RUNNING", 60, "the job to run")
    [found] = jobs_of(cluster, hostile)
    assert ("RUNNING", "None", "0", "2", comment) == tuple(
        found[name] for name in ("JobState", "Reason", "Restarts", "NumNodes", "Comment")
    )
    [read], shown = jobs_of(cluster, plain), cluster.job(plain)
    shared = set(read) & set(shown)
    assert len(shared) > 15
    assert {name: shown[name] for name in shared} == {name: read[name] for name in shared}
    [row] = ask(cluster, answers.EXCLUDED, "squeue", "--all", f"--jobs={hostile}")
    assert (hostile, "node4") == row
    rows = ask(cluster, answers.COMMENTS, "squeue", "--states=all")
    assert [hostile] == answers.with_comment(rows, "my-token")
    cluster.run("alice", ["scancel", hostile])
    cluster.wait_for(lambda: jobs_of(cluster, hostile)[0]["JobState"] == "CANCELLED", 60, "the job to end")


def test_tasks_of_an_array_are_read_one_by_one(cluster: Cluster) -> None:
    """Each with its own state."""
    options = ("--array=0-1", "--job-name", NAME, "--comment", COMMENT, "--nodes=1")
    array = cluster.submit("alice", *options, wrap="exec sleep 300")
    cluster.wait_for(
        lambda: [job["JobState"] for job in jobs_of(cluster, array)] == ["RUNNING"] * 2, 60, "both tasks"
    )
    rows = ask(cluster, answers.TASKS, "squeue", "--all", "--array")
    assert {(array, "0", "RUNNING", COMMENT), (array, "1", "RUNNING", COMMENT)} == {
        (of, number, word, comment) for of, number, word, _, _, comment in rows
    }
    assert ["1"] == [job["ArrayTaskId"] for job in jobs_of(cluster, f"{array}_1")]
    assert "1" == next(job for job in jobs_of(cluster, array) if job["ArrayTaskId"] == "1")["Requeue"]


@pytest.fixture
def drained(cluster: Cluster) -> Iterator[str]:
    """Return a node that an administrator drains with a hostile reason."""
    cluster.as_root("scontrol", "update", "nodename=node1", "state=drain", f"reason={REASON}")
    yield "node1"
    cluster.as_root("scontrol", "update", "nodename=node1", "state=resume")


def test_a_node_with_a_hostile_reason_is_read_as_it_is(cluster: Cluster, drained: str) -> None:
    """The other one that the reason names is up."""
    form = answers.OLD_STATES if cluster.version.startswith("20.") else answers.STATES
    rows = ask(cluster, form, "sinfo", "--all", "--Node", "--nodes=node[1-2]")
    assert {drained: REASON} == answers.draining(rows)
    assert not answers.down_nodes(rows)
    offers = ask(cluster, answers.OFFERS, "sinfo", "--Node")
    assert {"drained", "idle"} == {state for _, _, state, _, _ in offers}
    assert {"node1", "node2", "node3", "node4"} == {name for name, *_ in offers}
