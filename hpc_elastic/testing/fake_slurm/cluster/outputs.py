"""File names of batch scripts and tasks: ``slurm-%j.out``. Pure."""

from __future__ import annotations

import os.path
import re

from hpc_elastic.testing.fake_slurm.cluster.model import Job, Step, Task

_PATTERN = re.compile(r"%(\d*)([%AaJjNnstuxb])")
PER_TASK = ("t", "n", "N")


def fill(pattern: str, job: Job, user: str, step: Step | None = None, task: Task | None = None) -> str:
    """Return a file name; relative ones stand in the job's directory."""
    node = task.node if task is not None else (job.nodes[0] if job.nodes else "")
    index = step.nodes.index(node) if step is not None and node in step.nodes else 0
    values = {
        "%": "%",
        "A": str(job.array or job.id),
        "a": "4294967294" if job.task is None else str(job.task),
        "b": "4294967294" if job.task is None else str(job.task % 10),
        "j": str(job.id),
        "J": str(job.id) if step is None else f"{job.id}.{step.number}",
        "N": node,
        "n": str(index),
        "s": "batch" if step is None else str(step.number),
        "t": "0" if task is None else str(task.rank),
        "u": user,
        "x": job.request.name,
    }

    def value(match: re.Match[str]) -> str:
        text = values[match[2]]
        return text.zfill(min(int(match[1]), 10)) if match[1] and text.isdigit() else text

    return os.path.join(job.request.directory, _PATTERN.sub(value, pattern))


def of_script(job: Job, user: str) -> tuple[str, str, str]:
    """Return where a batch script reads and writes: stdin, stdout, stderr."""
    request = job.request
    default = "slurm-%A_%a.out" if job.task is not None else "slurm-%j.out"
    out = fill(request.output or default, job, user)
    return request.stdin, out, fill(request.error, job, user) if request.error else out


def is_per_task(pattern: str) -> bool:
    """Tell whether a pattern names a file for each task."""
    return any(match[2] in PER_TASK for match in _PATTERN.finditer(pattern))
