"""What the batch script of a job, and Slurm, have printed last."""

from __future__ import annotations

import os

from hpc_elastic.paths import RunPaths
from hpc_elastic.store.plain_file import open_plain

_END = 65536  # bytes that are looked through


def size_of(paths: RunPaths, job_ref: str) -> int:
    """Return the size of the log of a job or of a task of an array [bytes], 0 if there is none."""
    try:
        return os.stat(_place(paths, job_ref)).st_size
    except OSError:
        return 0


def end_of(paths: RunPaths, job_ref: str, *, since: int = 0) -> str:
    """Return the end of the log of a job or of a task of an array, empty if it cannot be read.

    Args:
        paths: the run.
        job_ref: the job.
        since: where what is wanted begins [bytes]; earlier starts have written before that.
    """
    try:
        with os.fdopen(open_plain(_place(paths, job_ref)), "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - _END))
            return file.read(_END).decode(errors="replace")
    except OSError:
        return ""


def _place(paths: RunPaths, job_ref: str) -> str:
    return paths.batch_log.replace("%j", job_ref)
