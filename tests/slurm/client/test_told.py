"""What scontrol prints: believed only where no text in it looks like a field."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import UnclearAnswerError

RECORDED = Path(__file__).parents[1] / "recorded" / "22.05"
JOB = (RECORDED / "scontrol_show_job.txt").read_text().splitlines()[0]
LOW = (RECORDED / "scontrol_show_partition.txt").read_text().splitlines()[0]
TASK = JOB.replace("JobId=1050 ", "JobId={} ArrayJobId=1050 ArrayTaskId={} ")


def named(name: str, job: str = JOB) -> str:
    """Return the recorded job with another name."""
    return job.replace("JobName=qq", f"JobName={name}")


def test_a_recorded_job_is_read() -> None:
    """Only fields whose values hold no blank."""
    job = answers.job(JOB, "1050")
    assert ("1050", "RUNNING", "None", "0", "2", "node[1-2]", "None") == tuple(
        job[name]
        for name in ("JobId", "JobState", "Reason", "Restarts", "NumNodes", "NodeList", "PreemptTime")
    )
    assert not {"JobName", "Comment", "Command", "WorkDir"} & set(job)


@pytest.mark.parametrize(
    "name", ["a b", "x=1 y=2", 'state="JobState"', "xJobState=FAILED", "a\tb", "%", "a|b", "é\n"]
)
def test_a_name_that_is_no_field_changes_nothing(name: str) -> None:
    """Blanks and equal signs are common in names."""
    assert answers.job(JOB, "1050") == answers.job(named(name), "1050")


@pytest.mark.parametrize(
    "name",
    [
        "x JobState=CANCELLED",
        "scaling NumNodes=4",
        "x\tReason=TimeLimit",
        "x\nJobId=1050 JobState=CANCELLED",
        "x\nJobId=4 JobState=CANCELLED Reason=None Requeue=1 Restarts=0",
        "x PreemptTime=2026-11-21T08:03:01",
        "x Features=gpu",
    ],
)
def test_a_name_that_looks_like_a_field_is_not_believed(name: str) -> None:
    """Nor is the true field then: nobody can tell which one is Slurm's."""
    with pytest.raises(UnclearAnswerError, match="what scontrol show job tells cannot be read for sure"):
        answers.job(named(name), "1050")


def test_texts_behind_the_last_field_cannot_add_one() -> None:
    """A field that this job does not have would stand out of Slurm's order."""
    job = JOB.replace("PreemptTime=None ", "")
    assert "PreemptTime" not in answers.job(job, "1050")
    with pytest.raises(UnclearAnswerError, match="not in Slurm's order"):
        answers.job(job.replace("Comment=hello", "Comment=x PreemptTime=2026-11-21T08:03:01"), "1050")


def test_one_task_is_found_among_those_of_its_array() -> None:
    """By its own id and by that of the array; a name with a newline forges none."""
    tasks = "\n".join(TASK.format(number, index) for number, index in ((1051, 0), (1052, 1), (1050, "2-3")))
    found = [answers.job(tasks, name)["ArrayTaskId"] for name in ("1050_0", "1052", "1050")]
    assert ["0", "1", "2-3"] == found
    with pytest.raises(UnclearAnswerError, match="0 of 3 jobs are 7"):
        answers.job(tasks, "7")
    forged = named("x\nJobId=1051 JobState=CANCELLED Reason=None Requeue=1 Restarts=0", tasks)
    with pytest.raises(UnclearAnswerError):
        answers.job(forged, "1050_0")


def test_a_name_makes_no_task_of_a_job() -> None:
    """Slurm writes the numbers of an array right behind the id."""
    assert "ArrayTaskId" not in answers.job(named("x ArrayJobId=5 ArrayTaskId=3"), "1050")


def test_nothing_is_read_from_nothing() -> None:
    """A job that Slurm does not know has no fields; half of one is none."""
    assert {} == answers.job("", "7")
    with pytest.raises(UnclearAnswerError, match="Requeue= and Restarts= is missing"):
        answers.job("JobId=7 JobState=RUNNING Reason=None", "7")
    with pytest.raises(UnclearAnswerError, match="JobId= is missing"):
        answers.job(f"x {JOB}", "1050")


def test_the_limits_of_a_partition_are_read() -> None:
    """Of the one that is named, or of the default one among all."""
    low = answers.partition(LOW, "low")
    assert ("8", "UNLIMITED", "REQUEUE", "32") == tuple(
        low[name] for name in ("GraceTime", "MaxTime", "PreemptMode", "TotalCPUs")
    )
    others = (RECORDED / "scontrol_show_partition.txt").read_text()
    assert low == answers.partition(others, "")
    assert {} == answers.partition(others.replace("Default=YES", "Default=NO"), "")
    assert {} == answers.partition("", "low")


@pytest.mark.parametrize("group", ["x GraceTime=900", "x PreemptMode=OFF", "x Default=NO"])
def test_a_partition_with_a_text_like_a_field_is_not_believed(group: str) -> None:
    """Groups and accounts stand before its limits."""
    with pytest.raises(UnclearAnswerError, match="more than once"):
        answers.partition(LOW.replace("AllowGroups=ALL", f"AllowGroups={group}"), "low")


def test_settings_stand_one_in_a_line() -> None:
    """A value that looks like a setting is none, and what a plugin prints below does not count."""
    text = "KillWait                = 30 sec\nMailProg = /x KillWait = 5 sec\nKillWait = 9 sec\n"
    assert {"KillWait": "30 sec", "MailProg": "/x KillWait = 5 sec"} == answers.config(text)


DETAILS = """JobId=7 JobName=train
   JOB_GRES=gpu:5
     Nodes=node[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:2(IDX:0-1)
     Nodes=node3 CPU_IDs=0-7 Mem=0 GRES={}
   MinCPUsNode=8 MinMemoryNode=0 MinTmpDiskNode=0
"""


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:1(IDX:0)", 1),
        ("gpu:a100:4(IDX:0,2,4,6)", 4),
        ("gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)", 3),
        ("shard:8(0/8),gpu:h100-80g:1(IDX:0)", 1),
        ("nic:2", 0),
        ("", 0),
    ],
)
def test_the_gpus_of_each_node(gres: str, count: int) -> None:
    """Each group of nodes that are alike has a line, with types or without."""
    assert {"node1": 2, "node2": 2, "node3": count} == answers.gpus_on_nodes(DETAILS.format(gres))


def test_a_text_that_tells_gpus_is_not_believed() -> None:
    """Nobody can tell which line is Slurm's."""
    forged = DETAILS.format("gpu:2") + "   Comment=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:8\n"
    with pytest.raises(UnclearAnswerError, match="node node1 occurs twice"):
        answers.gpus_on_nodes(forged)


ROW = dict.fromkeys(answers._COLUMNS, "") | {"JobId": "7", "JobState": "RUNNING", "Comment": "(null)"}


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"Comment": "(null)"}, {"Comment": None}),
        ({"Comment": "mine"}, {"Comment": "mine"}),
        ({"ReqNodeList": ""}, {"ReqNodeList": "(null)"}),
        ({"ReqNodeList": "n1"}, {"ReqNodeList": "n1"}),
        ({"PreemptTime": "N/A", "EndTime": "N/A"}, {"PreemptTime": "None", "EndTime": "Unknown"}),
        ({"ArrayTaskId": "N/A", "ArrayJobId": "7"}, {"ArrayTaskId": None, "ArrayJobId": None}),
        ({"ArrayTaskId": "0", "ArrayJobId": "7"}, {"ArrayTaskId": "0", "ArrayJobId": "7"}),
    ],
    ids=str,
)
def test_a_row_of_squeue_is_read_as_scontrol_writes_it(
    told: dict[str, str], read: dict[str, str | None]
) -> None:
    """What is not there has scontrol's word for that, or no field."""
    (job,) = answers.read_jobs([tuple((ROW | told).values())])
    assert read == {name: job.get(name) for name in read}


def test_the_only_record_is_that_of_the_job() -> None:
    """By whatever name it was asked for."""
    assert answers.job(JOB, "1050") == answers.job(JOB, "another")
    assert {} == answers.job("", "1050")
