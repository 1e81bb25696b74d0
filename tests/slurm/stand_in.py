"""Stand-ins for Slurm's commands: small programs on PATH that keep one job's fields in a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.slurm.forms import ROOT

_PROGRAM = """#!{python} -IS
import json, os, sys
sys.path.insert(0, {root!r})
from tests.slurm.forms import job_row, printed
home = {home!r}
words = sys.argv[1:]
name = os.path.basename(sys.argv[0])
with open(os.path.join(home, "calls"), "a") as calls:
    calls.write(" ".join([name, *words]) + "\\n")
with open(os.path.join(home, "job.json")) as file:
    job = json.load(file)
failures = job.pop("failures", {{}})
of_one = any(word.startswith("--jobs") for word in words)
key = words[0] if name == "scontrol" else "show" if of_one else name
if failures.get(key, 0):
    failures[key] -= 1
    with open(os.path.join(home, "job.json"), "w") as file:
        json.dump({{**job, "failures": failures}}, file)
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
refusals_file = os.path.join(home, "refusals")
if os.path.exists(refusals_file):
    with open(refusals_file) as file:
        refusals = json.load(file)
    if key in refusals:
        sys.exit(refusals[key])
if not job:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
if words[:2] == ["show", "config"]:
    print("PreemptType = " + job.get("PreemptType", "preempt/partition_prio"))
    print("KillWait = " + job.get("KillWait", "30 sec"))
elif words[:2] == ["show", "partition"]:
    print("PartitionName=" + words[-1] + " PreemptMode=" + job.get("PreemptMode", "REQUEUE"))
elif name == "squeue":
    rows = [job]
    if not of_one and os.path.exists(os.path.join(home, "tasks")):
        with open(os.path.join(home, "tasks")) as file:
            rows = json.load(file)
    sys.stdout.write(printed(words, [job_row(row) for row in rows]))
elif words[:1] in (["requeue"], ["requeuehold"]):
    job.update(JobState="COMPLETING", Restarts=str(int(job["Restarts"]) + 1))
elif name == "scancel":
    job.update(JobState="CANCELLED")
with open(os.path.join(home, "job.json"), "w") as file:
    json.dump({{**job, "failures": failures}}, file)
"""


def _is_question(line: str) -> bool:
    return " show " in line or line.startswith("squeue")


class FakeJob:
    """One job as `squeue`, `scontrol` and `scancel` in `bin` know it.

    Args:
        home: an empty directory.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.bin = home / "bin"
        self.bin.mkdir(parents=True)
        for name in ("scontrol", "scancel", "squeue"):
            program = self.bin / name
            program.write_text(_PROGRAM.format(python=sys.executable, home=str(home), root=str(ROOT)))
            program.chmod(0o755)
        self.set()

    def set(self, **fields: str) -> None:
        """Set the job's fields; the others are those of a running job of two nodes."""
        usual = {"JobId": "7", "JobState": "RUNNING", "Reason": "None", "Restarts": "0", "Requeue": "1"}
        usual |= {"NumNodes": "2", "PreemptTime": "None", "EndTime": "2026-11-21T08:00:00"}
        self._write({**usual, **fields})

    def set_tasks(self, *tasks: dict[str, str]) -> None:
        """Set the fields of all tasks of an array, for whoever asks for all jobs of the user."""
        (self._home / "tasks").write_text(json.dumps(tasks))

    def forget(self) -> None:
        """Let Slurm not know the job any more."""
        self._write({})

    def fail(self, **times: int) -> None:
        """Let the next calls of a sub-command (``show``, ``requeue``) or command fail."""
        self._write({**self._read(), "failures": times})

    def refuse(self, command: str, words: str) -> None:
        """Let every call of a sub-command be refused in these words."""
        (self._home / "refusals").write_text(json.dumps({command: words}))

    def remove(self) -> None:
        """Take Slurm's commands away."""
        for program in self.bin.iterdir():
            program.unlink()

    @property
    def environ(self) -> dict[str, str]:
        """An environment in which these commands are found, and no others."""
        return {**os.environ, "PATH": str(self.bin)}

    @property
    def calls(self) -> list[str]:
        """The commands that were run, without questions."""
        return [line for line in self._lines() if not _is_question(line)]

    @property
    def questions(self) -> list[str]:
        """What was asked about the job."""
        return [line for line in self._lines() if _is_question(line)]

    def _lines(self) -> list[str]:
        path = self._home / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def _read(self) -> dict[str, object]:
        fields: dict[str, object] = json.loads((self._home / "job.json").read_text())
        return fields

    def _write(self, fields: dict[str, object] | dict[str, str]) -> None:
        (self._home / "job.json").write_text(json.dumps(fields))
