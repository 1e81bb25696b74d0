"""What a real squeue and a real sinfo (22.05.8) print, read; texts in it look like jobs and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import ListedNode, UnclearAnswerError, in_partitions, parse_nodes

RECORDED = Path(__file__).parents[1] / "recorded" / "22.05"
MARK = "_recorded_"


def rows(name: str) -> list[tuple[str, ...]]:
    """Return the rows of a recorded table."""
    form = {"squeue_jobs": answers.JOBS, "sinfo_states": answers.STATES, "sinfo_offers": answers.OFFERS}[name]
    return form.rows((RECORDED / f"{name}.txt").read_text(), MARK, ("squeue",))


JOBS = {job["JobId"]: job for job in answers.read_jobs(rows("squeue_jobs"))}


def test_all_jobs_are_read_and_no_other() -> None:
    """The name of one says that it is job 9 and cancelled, the comment of another that it has failed."""
    states = {name: (job["JobState"], job["Reason"]) for name, job in JOBS.items()}
    assert {
        "1003": ("CANCELLED", "JobHeldUser"),
        "1012": ("FAILED", "NonZeroExitCode"),
        "1009": ("PENDING", "JobArrayTaskLimit"),
        "1013": ("PENDING", "job_requeued_in_held_state"),
        "1011": ("PENDING", "JobHeldUser"),
        "1007": ("RUNNING", "None"),
        "1008": ("RUNNING", "None"),
        "1010": ("RUNNING", "None"),
    } == states


def test_a_job_is_told_in_the_words_of_scontrol() -> None:
    """Dates that are none are Unknown or None, as there."""
    comment = 'hpc_elastic:ab mine\n9|JobId=9 JobState=FAILED Reason=TimeLimit\t"q" % \' \x1b[31m é'
    assert {
        "JobId": "1007",
        "JobState": "RUNNING",
        "Reason": "None",
        "Dependency": "(null)",
        "Requeue": "1",
        "Restarts": "0",
        "ExitCode": "0:0",
        "SubmitTime": "2026-11-22T23:24:21",
        "EligibleTime": "2026-11-22T23:24:21",
        "StartTime": "2026-11-22T23:24:21",
        "EndTime": "2026-11-22T23:33:21",
        "PreemptTime": "None",
        "Priority": "4294901756",
        "Partition": "low",
        "QOS": "(null)",
        "ReqNodeList": "(null)",
        "NodeList": "node[1-2]",
        "NumNodes": "2",
        "Features": "(null)",
        "Comment": comment,
    } == JOBS["1007"]
    held = JOBS["1013"]
    assert ("Unknown", "None", "0", "1") == (
        held["EndTime"],
        held["PreemptTime"],
        held["Priority"],
        held["Restarts"],
    )
    assert ("node3", "Unknown") == (JOBS["1011"]["ReqNodeList"], JOBS["1011"]["StartTime"])
    assert "Comment" not in held


def test_tasks_of_an_array_are_told_from_jobs() -> None:
    """Those that have not begun share one row."""
    tasks = {
        name: (job["ArrayJobId"], job["ArrayTaskId"]) for name, job in JOBS.items() if "ArrayTaskId" in job
    }
    assert {"1009": ("1009", "1-3%1"), "1010": ("1009", "0")} == tasks
    liveliest = answers.liveliest([JOBS["1009"], JOBS["1010"]])
    assert liveliest is not None
    assert "1010" == liveliest["JobId"]


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("0", "0:0"),
        ("768", "3:0"),
        ("9", "0:9"),
        ("3:0", "3:0"),
        ("0:15", "0:15"),
        ("-2", "0:0"),
        ("", "0:0"),
    ],
)
def test_exit_codes_are_a_number_or_two(printed: str, code: str) -> None:
    """A wait status up to Slurm 23."""
    assert code == answers.exit_text(printed)


@pytest.mark.parametrize(
    ("column", "text"), [("JobId", "x"), ("JobId", ""), ("JobState", ""), ("JobState", "7")]
)
def test_a_row_that_is_no_job_is_refused(column: str, text: str) -> None:
    """Another program prints other columns."""
    row = list(rows("squeue_jobs")[0])
    row[{"JobId": 0, "JobState": 3}[column]] = text
    with pytest.raises(UnclearAnswerError, match="cannot be read for sure: a job '"):
        answers.read_jobs([row])


@pytest.mark.parametrize("lines", [3, 6])
def test_a_sinfo_that_does_not_know_the_column_of_states_is_noticed(lines: int) -> None:
    """That of Slurm 20.11 prints the others: three lines of two cells are no two rows."""
    text = "".join(f"node{at}{MARK}none{MARK}\n" for at in range(lines))
    assert not answers.has_states(answers.STATES.rows(text, MARK, ("sinfo",)))
    assert answers.has_states(rows("sinfo_states"))


def test_states_of_nodes_are_told_from_the_reasons() -> None:
    """An administrator has written `State=IDLE`, a newline and another node into one."""
    known = rows("sinfo_states")
    assert {"node4": "bad State=IDLE\nNodeName=node1 State=DOWN _x_"} == answers.draining(known)
    assert answers.down_nodes(known)
    assert not answers.down_nodes(row for row in known if row[0] != "node3")
    assert answers.down_nodes([("n1", "mixed+not_responding", "none")])


def test_nodes_are_listed_with_what_they_offer() -> None:
    """In each of their partitions."""
    listed = in_partitions(parse_nodes(rows("sinfo_offers")), None)
    assert ["mixed", "mixed", "down", "drained"] == [node.state for node in listed]
    assert ListedNode("node2", "mixed", frozenset("ab"), 2) == listed[1]


def test_jobs_are_found_by_the_beginning_of_their_comment() -> None:
    """A comment of the user's own may follow the token; a longer token is another one."""
    listed = [
        ("10", "hpc_elastic:ab mine"),
        ("11", "hpc_elastic:abc"),
        ("12", "(null)"),
        ("13", "x\n13|hpc_elastic:ab"),
        ("10", "hpc_elastic:ab mine"),
    ]
    assert ["10"] == answers.with_comment(listed, "hpc_elastic:ab")
