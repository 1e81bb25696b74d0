"""What scontrol prints, where no other command tells it. Pure.

It prints ``Name=value`` one after the other and quotes nothing, so that a value may look like more fields.
Only fields whose values hold no blank are read, and an answer in which one of them stands twice, or out of
Slurm's order, is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpc_elastic.slurm.client import hostlist
from hpc_elastic.slurm.client.tables import UnclearAnswerError

_JOB = (
    "JobId", "Priority", "QOS", "JobState", "Reason", "Dependency", "Requeue",
    "Restarts", "ExitCode", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "PreemptTime", "Partition",
    "ReqNodeList", "ExcNodeList", "NodeList", "NumNodes", "Features",
)  # fmt: skip
_OF_EVERY_JOB = ("JobId", "JobState", "Reason", "Requeue", "Restarts")
_SHOW_JOB = ("scontrol", "show", "job")
_MEND_JOB = "give the job a name without words that look like a field, such as JobState=..."
_PARTITION = (
    "PartitionName", "Default", "GraceTime", "MaxNodes", "MaxTime", "OverSubscribe", "OverTimeLimit",
    "PreemptMode", "TotalCPUs",
)  # fmt: skip
_NODE = ("NodeName", "State", "BootTime", "SlurmdStartTime")
_SHOW_NODE = ("scontrol", "show", "node")
_SHOW_PARTITION = ("scontrol", "show", "partition")


def job(text: str, name: str) -> dict[str, str]:
    """Return the fields of one job in the output of ``scontrol show job -o``; empty if there is none.

    Args:
        text: the output, of one job, or of several where they are tasks of an array.
        name: what Slurm's commands call the job, of several.

    Raises:
        UnclearAnswerError: a text in it looks like a field, or the job is not among several.
    """
    found = [_job(record) for record in re.split(r"\n(?=JobId=)", text.strip()) if record]
    if len(found) <= 1:
        return found[0] if found else {}
    chosen = [
        one for one in found if name in (one["JobId"], f"{one.get('ArrayJobId')}_{one.get('ArrayTaskId')}")
    ]
    if len(chosen) != 1:
        raise UnclearAnswerError(_SHOW_JOB, f"{len(chosen)} of {len(found)} jobs are {name}", _MEND_JOB)
    return chosen[0]


def _job(record: str) -> dict[str, str]:
    fields = _once(record, _JOB, _SHOW_JOB, _MEND_JOB)
    missing = [name for name in _OF_EVERY_JOB if name not in fields]
    if missing or not record.startswith("JobId="):
        raise UnclearAnswerError(_SHOW_JOB, f"{'= and '.join(missing) or 'JobId'}= is missing", _MEND_JOB)
    array = re.match(r"JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\S+) ", record)
    return {**fields, **({"ArrayJobId": array[1], "ArrayTaskId": array[2]} if array else {})}


def gpus_on_nodes(text: str) -> dict[str, int]:
    """Return how many GPUs a job has on each of its nodes, from ``scontrol show job -d``.

    Each group of nodes that are alike has a line, such as
    ``Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1)``.

    Raises:
        UnclearAnswerError: a node occurs twice: a text that somebody gave the job looks like such a line.
    """
    found: dict[str, int] = {}
    for names, gres in re.findall(r"^ +Nodes=(\S+) .*?GRES=(\S*) *$", text, re.MULTILINE):
        gpus = sum(int(count) for count in re.findall(r"(?:^|[,)])gpu(?::[^:(,]+)?:(\d+)", gres))
        for name in hostlist.expand(names):
            if name in found:
                raise UnclearAnswerError(_SHOW_JOB, f"node {name} occurs twice", _MEND_JOB)
            found[name] = gpus
    return found


def node(text: str) -> dict[str, str]:
    """Return the state of one node and since when it is up, from ``scontrol show node -o``.

    Raises:
        UnclearAnswerError: a text in it looks like a field.
    """
    return _once(text.strip(), _NODE, _SHOW_NODE)


def partition(text: str, name: str) -> dict[str, str]:
    """Return what a partition allows, from ``scontrol show partition -o``; nothing if it is not there.

    Args:
        text: the output.
        name: of the partition; empty for the default one, of all that there are.

    Raises:
        UnclearAnswerError: a text in it looks like a field.
    """
    records = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    found = [_once(record, _PARTITION, _SHOW_PARTITION) for record in records]
    chosen = found if name else [one for one in found if one.get("Default") == "YES"]
    return chosen[0] if chosen else {}


def config(text: str) -> dict[str, str]:
    """Return the settings in the output of ``scontrol show config``, one a line; of two the first."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE):
        found.setdefault(name, value)
    return found


def _once(record: str, names: Sequence[str], argv: tuple[str, ...], fix: str = "") -> dict[str, str]:
    """Return the fields of these names, which stand once and in this order."""
    found = re.findall(rf"(?:^|\s)({'|'.join(names)})=(\S*)", record)
    twice = next((name for name in names if [one for one, _ in found].count(name) > 1), None)
    if twice is not None:
        raise UnclearAnswerError(argv, f"{twice}= stands there more than once", fix)
    places = [names.index(name) for name, _ in found]
    if places != sorted(places):
        raise UnclearAnswerError(argv, "its fields are not in Slurm's order", fix)
    return dict(found)
