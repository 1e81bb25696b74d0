"""No text that people write into a job or a node changes what is decided about it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import SlurmTask, UnclearAnswerError
from hpc_elastic.slurm.client.commands import Slurm, look
from hpc_elastic.slurm.client.job_standing import Standing, job_facts, standing
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest, Settings, State, World
from hpc_elastic.testing.fake_slurm.commands import queries, shown
from tests.slurm.forms import job_row, printed

RECORDED = Path(__file__).parents[1] / "recorded" / "22.05"
MARK = "_recorded_"
FIELDS = (
    "JobState=CANCELLED Reason=TimeLimit Dependency=(null) Requeue=0 Restarts=9 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 EndTime=2026-11-21T08:00:00 PreemptTime=2026-11-21T08:00:00 NodeList= NumNodes=0"
)
HOSTILE = (
    " JobState=CANCELLED",
    "scaling NumNodes=4",
    f"x {FIELDS}",
    f"x UserId=a(1) GroupId=a(1) MCS_label=N/A Priority=0 Nice=0 Account=a QOS=q {FIELDS}",
    f"x\nJobId=7 {FIELDS}",
    f"x\n\nJobId=8 JobName=y UserId=a(1) {FIELDS}\n",
    "a|b||CANCELLED|",
    "8|0|RUNNING|n1|None|token",
    "\t\r\v\f",
    "\"'`$(false);\\",
    "%i %T %N%%",
    "\x1b[2J\x07\x7f",
    "\u2028JobState=FAILED\u00a0Restarts=3\u202e",
    "é" * 500,
    "_recorded_0_",
    "_",
    ",",
    "N/A",
    "(null)",
)
RUNNING = {
    "JobId": "7",
    "JobState": "RUNNING",
    "Reason": "None",
    "Restarts": "2",
    "NumNodes": "2",
    "NodeList": "n[1-2]",
    "EndTime": "2026-11-21T08:00:00",
    "Partition": "low",
    "QOS": "normal",
    "Comment": "token",
}
COMPLETING = {**RUNNING, "JobState": "COMPLETING"}
ENDINGS = {
    Standing.RUNNING: RUNNING,
    Standing.CANCELLED: COMPLETING,
    Standing.TIME_LIMIT: {**COMPLETING, "Reason": "TimeLimit"},
    Standing.PREEMPTED: {**COMPLETING, "PreemptTime": "2026-11-21T08:00:00", "Requeue": "0"},
    Standing.REQUEUED: {**RUNNING, "JobState": "PENDING", "Restarts": "3"},
}
FREE = ("Comment", "Features", "Dependency", "Partition", "QOS", "ReqNodeList", "ExcNodeList")
"""Fields whose values people choose, and which decide nothing about how the job stands."""


class Printing(Slurm):
    """A Slurm whose programs print one table.

    Args:
        rows: their cells.
    """

    def __init__(self, *rows: dict[str, str]) -> None:
        super().__init__({})
        self._rows = rows

    def _run(self, *argv: str, **_: object) -> str:
        return printed(argv, self._rows)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", FREE)
@pytest.mark.parametrize("stands", ENDINGS)
def test_how_a_job_stands_is_the_same_with_any_text(stands: Standing, field: str, text: str) -> None:
    """All facts are, not only those that decide."""
    plain = look(Printing(job_row(ENDINGS[stands])), "7")
    found = look(Printing(job_row({**ENDINGS[stands], field: text})), "7")
    assert plain is not None
    assert plain == found
    assert stands is standing(found, 2)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_reason_that_slurm_does_not_give_changes_nothing_else(text: str) -> None:
    """It is part of an answer, in one word."""
    found = look(Printing(job_row({**RUNNING, "Reason": text})), "7")
    assert found is not None
    assert job_facts(RUNNING) == found._replace(reason="None")
    assert len(found.reason.split()) <= 1


@pytest.mark.parametrize("text", HOSTILE)
def test_tasks_and_jobs_are_found_by_their_own_comments(text: str) -> None:
    """No comment makes a task of the run, or a job, of something else."""
    mine = {**RUNNING, "ArrayJobId": "7", "ArrayTaskId": "0", "NodeList": "n1"}
    slurm = Printing(job_row(mine), job_row({**mine, "JobId": "8", "ArrayJobId": "8", "Comment": text}))
    assert [SlurmTask("7", 0, JobState.RUNNING, "n1")] == slurm.array_tasks("token", "5")
    assert ["7"] == slurm.jobs_with_comment("token")
    assert {} == slurm.excluded_nodes()
    assert ["7", "8"] == [job["ArrayJobId"] for job in slurm.show_tasks("7")]


@pytest.mark.parametrize("text", HOSTILE)
def test_nodes_are_as_slurm_says_whatever_an_administrator_writes(text: str) -> None:
    """Reasons and features are texts, states are not."""
    row = {"nodelist": "n1", "statecomplete": "idle+drain", "reason": text}
    ready = {"nodelist": "n2", "statecomplete": "idle", "reason": text}
    slurm = Printing(row, ready)
    assert {"n1": text} == slurm.draining_nodes(["n1", "n2"])
    assert not slurm.has_down_node("n[1-2]")
    assert Printing({**row, "statecomplete": "down+drain"}).has_down_node("n1")
    offers = {"N": "n1", "P": "low*", "T": "idle", "f": text, "G": "gpu:2"}
    [node] = Printing(offers).nodes(None)
    assert ("n1", "idle", 2) == (node.name, node.state, node.gpus)


ANY = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00") | st.sampled_from(["\n", " ", "|", "=", "_", "%"])
)
TEXTS = st.lists(ANY | st.sampled_from(HOSTILE), min_size=1, max_size=3).map("".join)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
USER = {"USER": "alice", "UID": "1001", "GID": "1001"}


def of_fake(request: JobRequest, reason: str) -> Job:
    """Return a running job of a fake Slurm."""
    job = Job(7, request, 0.0, 0.0, 0)
    return job._replace(state=State.RUNNING, reason=reason, nodes=("node1", "node2"), restarts=2)


@RELAXED
@given(name=TEXTS, comment=TEXTS, reason=TEXTS)
def test_a_job_of_the_fake_is_read_as_it_is(name: str, comment: str, reason: str) -> None:
    """In the table that the fake's squeue prints."""
    job = of_fake(JobRequest(name=name, comment=comment, directory=f"/{name}"), reason)
    seen = queries.SeenBy(World(Settings(), {}, {}), job, USER, 0.0)
    text = queries.long_fields(answers.JOBS.option(MARK).partition("=")[2], seen) + "\n"
    if text.count(MARK) != len(answers.JOBS.columns):  # the text has the mark, which nobody can know
        return
    [found] = answers.read_jobs(answers.JOBS.rows(text, MARK, ("squeue",)))
    assert ("7", "RUNNING", "2", "node[1-2]") == tuple(
        found[field] for field in ("JobId", "JobState", "Restarts", "NodeList")
    )
    assert comment in (found.get("Comment", "(null)"), "")


@RELAXED
@given(name=TEXTS, comment=TEXTS)
def test_a_job_that_a_script_passes_on_is_read_as_it_is_or_not_at_all(name: str, comment: str) -> None:
    """In the text that the fake's scontrol prints, and in that of the real one with other texts."""
    job = of_fake(JobRequest(name=name, comment=comment, directory=f"/{name}"), "None")
    recorded = (RECORDED / "scontrol_show_job.txt").read_text()
    renamed = recorded.replace("JobName=qq", f"JobName={name}").replace("Comment=hello", f"Comment={comment}")
    for text, state in ((shown.job_line(job, USER, 0.0), ("7", "2")), (renamed, ("1050", "0"))):
        try:
            found = answers.job(text, state[0])
        except UnclearAnswerError:
            continue
        assert (*state, "RUNNING", "1") == tuple(
            found[field] for field in ("JobId", "Restarts", "JobState", "Requeue")
        )


@RELAXED
@given(comment=TEXTS)
def test_jobs_of_a_real_slurm_are_read_as_they_are(comment: str) -> None:
    """In what a real squeue printed, with another comment."""
    recorded = (RECORDED / "squeue_jobs.txt").read_text()
    first = recorded.index("hpc_elastic:ab mine")
    text = recorded[:first] + comment + recorded[recorded.index(MARK, first) :]
    if text.count(MARK) != recorded.count(MARK):
        return
    known = _states(recorded)
    assert known == _states(text)
    assert 8 == len(known)


def _states(text: str) -> list[tuple[str, str]]:
    rows: Sequence[Sequence[str]] = answers.JOBS.rows(text, MARK, ("squeue",))
    return [(job["JobId"], job["JobState"]) for job in answers.read_jobs(rows)]


@RELAXED
@given(reason=TEXTS)
def test_nodes_of_a_real_slurm_are_read_as_they_are(reason: str) -> None:
    """In what a real sinfo printed, with another reason."""
    recorded = (RECORDED / "sinfo_states.txt").read_text()
    text = recorded.replace("bad State=IDLE\nNodeName=node1 State=DOWN _x_", reason)
    if text.count(MARK) != recorded.count(MARK):
        return
    rows = answers.STATES.rows(text, MARK, ("sinfo",))
    assert {"node4"} == set(answers.draining(rows))
    assert ["down"] * 3 == [state for name, state, _ in rows if name == "node3"]


def test_the_mark_is_another_one_for_each_question() -> None:
    """Who has seen one of them knows nothing of the next."""

    class Listening(Slurm):
        asked: list[str] = []  # noqa: RUF012 - of this test

        def _run(self, *argv: str, **_: object) -> str:
            self.asked.append(argv[-1])
            return ""

    slurm = Listening(os.environ)
    assert slurm.show_job("7") is None
    assert slurm.show_job("7") is None
    marks = [asked.rpartition(":0")[2] for asked in slurm.asked]
    assert 2 == len(set(marks))
    assert all(len(mark) == 26 for mark in marks)
