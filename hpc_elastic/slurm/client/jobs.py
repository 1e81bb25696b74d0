"""What squeue says about jobs, in the words of ``scontrol show job``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpc_elastic.slurm.client.parse import JobState, job_state
from hpc_elastic.slurm.client.tables import Form, UnclearAnswerError

_COLUMNS = {
    "JobId": "jobid",
    "ArrayJobId": "arrayjobid",
    "ArrayTaskId": "arraytaskid",
    "JobState": "state",
    "Reason": "reason",
    "Dependency": "dependency",
    "Requeue": "requeue",
    "Restarts": "restartcnt",
    "ExitCode": "exit_code",
    "SubmitTime": "submittime",
    "EligibleTime": "eligibletime",
    "StartTime": "starttime",
    "EndTime": "endtime",
    "PreemptTime": "preempttime",
    "Priority": "prioritylong",
    "Partition": "partition",
    "QOS": "qos",
    "ReqNodeList": "reqnodes",
    "NodeList": "nodelist",
    "NumNodes": "numnodes",
    "Features": "feature",
    "Comment": "comment",
}
"""Fields of scontrol, and the columns of squeue that tell the same."""

FORM = Form(tuple(_COLUMNS.values()), is_long=True)

_NO_TIME = ("N/A", "NONE", "NOT_SET")
_TIMES = ("SubmitTime", "EligibleTime", "StartTime", "EndTime")
_LIVELIEST_FIRST = (
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.PENDING,
    JobState.UNKNOWN,
    JobState.ENDED,
)


def read(rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Return the fields of each job, with the values that scontrol prints.

    `ArrayJobId` and `ArrayTaskId` are missing for a job that is no array, `Comment` for one without. What a
    job does not get, `ExcNodeList`, squeue tells in another table only: `EXCLUDED`.

    Args:
        rows: of the table `FORM`.

    Raises:
        UnclearAnswerError: this squeue does not print that table.
    """
    return [_fields(row) for row in rows]


def _fields(row: Sequence[str]) -> dict[str, str]:
    found = dict(zip(_COLUMNS, row, strict=True))
    if not re.fullmatch("[0-9]{1,18}", found["JobId"]) or not re.fullmatch("[A-Z_]+", found["JobState"]):
        told = f"a job {found['JobId']!r} in state {found['JobState']!r}"
        raise UnclearAnswerError(("squeue",), told)
    found["Reason"] = reason_word(found["Reason"])
    found["ExitCode"] = exit_text(found["ExitCode"])
    found["ReqNodeList"] = found["ReqNodeList"] or "(null)"
    for name in _TIMES:
        found[name] = "Unknown" if found[name] in _NO_TIME else found[name]
    if found["PreemptTime"] in _NO_TIME:
        found["PreemptTime"] = "None"
    if found["ArrayTaskId"] in ("", "N/A"):
        del found["ArrayTaskId"], found["ArrayJobId"]
    if found["Comment"] == "(null)":
        del found["Comment"]
    return found


def reason_word(reason: str) -> str:
    """Return a reason of Slurm's as scontrol writes it, in one word."""
    return re.sub(r"\s", "_", reason)


def exit_text(text: str) -> str:
    """Return an exit code and a signal, ``1:0``, which squeue prints so, or before Slurm 24 as one number."""
    if not re.fullmatch("[0-9]{1,9}", text):
        return text if re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", text) else "0:0"
    status = int(text)
    return f"0:{status & 127}" if status & 127 else f"{status >> 8 & 255}:0"


def liveliest(jobs: Iterable[dict[str, str]]) -> dict[str, str] | None:
    """Return that of some jobs which may do most; of an array its liveliest task. None of none."""
    return min(jobs, key=lambda job: _LIVELIEST_FIRST.index(job_state(job.get("JobState", ""))), default=None)


COMMENTS = Form(("F", "k"))
TASKS = Form(("F", "K", "T", "N", "r", "k"))  # array, index, state, nodes, reason, comment
EXCLUDED = Form(("i", "x"))


def with_comment(rows: Iterable[Sequence[str]], token: str) -> list[str]:
    """Return the ids of the jobs whose comment starts with a token, from rows of `COMMENTS`.

    A token is one word or several.
    """
    found = (job_id for job_id, comment in rows if f"{comment} ".startswith(f"{token} "))
    return [*dict.fromkeys(found)]
