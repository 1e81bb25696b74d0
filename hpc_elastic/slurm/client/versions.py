"""Which Slurm this is, which ones this package is tested with, and what they limit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

TESTED = ((22, 5), (24, 11), (26, 5))
"""Releases that the tests on a real Slurm run with: `scripts/test --slurm all`."""

_LIMITS_ITS_OWN_REQUEUES = (24, 5)


def release(said: str) -> tuple[int, int] | None:
    """Return the release in the output of ``sbatch --version``, ``slurm 24.11.5``; None if it tells none."""
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def text(of: tuple[int, int]) -> str:
    """Return a release as Slurm writes it: ``24.11``, ``22.05``."""
    return f"{of[0]}.{of[1]:02}"


def tested_text(of: tuple[int, int]) -> str:
    """Return what the tests say about a release."""
    known = ", ".join(map(text, TESTED))
    if of in TESTED:
        return "hpc_elastic is tested with it"
    where = "older than" if of < TESTED[0] else "newer than" if of > TESTED[-1] else "between"
    return f"{where} the releases that hpc_elastic is tested with: {known}"


def requeue_limit(of: tuple[int, int], config: Mapping[str, str]) -> int | None:
    """Return how often Slurm itself requeues a job whose script ends within its preemption grace.

    After that it holds the job (``launch_failure_limit_exceeded_requeued_held``). Requeues by
    ``scontrol requeue`` do not count, nor do those of jobs that stay until Slurm ends them.

    Args:
        of: the release.
        config: of ``scontrol show config``.

    Returns:
        The limit; None if this release never requeues such a job, or does not tell.
    """
    most = config.get("MaxBatchRequeue", "")
    return int(most) if of >= _LIMITS_ITS_OWN_REQUEUES and most.isdecimal() else None
