"""Tables as squeue and sinfo print them, for stand-ins of these programs: whatever the columns are."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """#!{python} -IS
import json, sys
sys.path.insert(0, {root!r})
from tests.slurm.forms import printed
sys.stdout.write(printed(sys.argv[1:], json.loads({rows!r})))
"""
_COLUMNS = {  # of squeue -> a field of scontrol, and what is printed without it
    "jobid": ("JobId", "7"),
    "state": ("JobState", ""),
    "reason": ("Reason", "None"),
    "dependency": ("Dependency", "(null)"),
    "requeue": ("Requeue", "1"),
    "restartcnt": ("Restarts", "0"),
    "exit_code": ("ExitCode", "0:0"),
    "submittime": ("SubmitTime", "N/A"),
    "eligibletime": ("EligibleTime", "N/A"),
    "starttime": ("StartTime", "N/A"),
    "endtime": ("EndTime", "N/A"),
    "preempttime": ("PreemptTime", "N/A"),
    "prioritylong": ("Priority", "1"),
    "partition": ("Partition", ""),
    "qos": ("QOS", "(null)"),
    "reqnodes": ("ReqNodeList", ""),
    "nodelist": ("NodeList", ""),
    "numnodes": ("NumNodes", "1"),
    "feature": ("Features", "(null)"),
    "comment": ("Comment", "(null)"),
    "arraytaskid": ("ArrayTaskId", "N/A"),
    "x": ("ExcNodeList", ""),
}
_LETTERS = {"K": "arraytaskid", "T": "state", "N": "nodelist", "r": "reason", "k": "comment"}


def printed(argv: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Return what a program prints for its ``--format`` or ``--Format``.

    Args:
        argv: its arguments.
        rows: cells by letter or name of the column.
    """
    short = next((word[9:] for word in argv if word.startswith("--format=")), "")
    long = next((word[9:] for word in argv if word.startswith("--Format=")), "")
    columns = re.findall(r"%(\w)([^%]*)", short) or re.findall(r"([^:,]+):0([^,]*)", long)
    return "".join("".join(row.get(name, "") + mark for name, mark in columns) + "\n" for row in rows)


def job_row(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a job by the fields of scontrol."""
    row = {name: fields.get(field, empty) for name, (field, empty) in _COLUMNS.items()}
    array = fields.get("ArrayJobId", row["jobid"])
    name = f"{array}_{row['arraytaskid']}" if "ArrayTaskId" in fields else row["jobid"]
    return {
        **row,
        **{letter: row[of] for letter, of in _LETTERS.items()},
        "arrayjobid": array,
        "F": array,
        "i": name,
    }


def program(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a program that prints these rows."""
    return _PROGRAM.format(python=sys.executable, root=str(ROOT), rows=json.dumps(list(rows)))


def write_program(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Make a file such a program."""
    path.write_text(program(rows))
    path.chmod(0o755)
