"""A small file that tells of one job: written before sbatch is called, and again with the job's id."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, NamedTuple

from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.store import files
from hpc_elastic.typed_json import Like, Prose
from hpc_elastic.typed_json import read as read_typed

JobId = Annotated[str, Like(r"(?:[A-Za-z0-9][A-Za-z0-9_.;+-]{0,199})?", "the id of a job")]


class JobRecord(NamedTuple):
    """What such a file says."""

    token: Prose  # what the comment of the job starts with
    job_id: JobId = ""  # Slurm's id; empty as long as sbatch has not answered
    time: Prose = ""  # wall time for display


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
        record = read_typed(JobRecord, files.read(path) or b"")
    except DamagedError as error:
        raise RunDirError(
            f"{path} is damaged, which tells of a job: {error}",
            where="run_dir",
            fix=f"see with squeue --me that no job of the run waits or runs, then: rm {shlex.quote(path)}",
        ) from None
    return record
