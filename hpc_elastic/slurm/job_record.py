"""A small file that tells of one job: written before sbatch is called, and again with the job's id."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

from hpc_elastic.errors import RunDirError
from hpc_elastic.store import files


class JobRecord(NamedTuple):
    """What such a file says."""

    token: str  # what the comment of the job starts with
    job_id: str = ""  # Slurm's id; empty as long as sbatch has not answered
    time: str = ""  # wall time for display


def encode(record: JobRecord) -> bytes:
    """Return the content of a file; an id that is not known yet is left out."""
    known = {"job_id": record.job_id} if record.job_id else {}
    return json.dumps({**known, "token": record.token, "time": record.time}).encode()


def read(path: str) -> JobRecord:
    """Return what a file says.

    Raises:
        RunDirError: it is damaged.
    """
    try:
        record = json.loads(files.read(path) or b"")
        return JobRecord(str(record["token"]), str(record.get("job_id", "")), str(record.get("time", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunDirError(
            f"{path} is damaged, which tells of a job",
            where="run_dir",
            fix=f"see with squeue --me that no job of the run waits or runs, then: rm {shlex.quote(path)}",
        ) from None
