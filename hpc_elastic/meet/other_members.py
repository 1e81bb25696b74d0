"""Agents that meet in one directory and do not belong together. Pure."""

from __future__ import annotations

from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.meet.rules import RendezvousSettings
from hpc_elastic.record.state import RunState


def sizes_text(settings: RendezvousSettings) -> str:
    """Return for how many nodes an agent was started: ``MIN:MAX``; empty if others may differ."""
    return "" if settings.may_outgrow else f"{settings.min_nodes}:{settings.max_nodes}"


def refuse_stranger(state: RunState, job_id: str, settings: RendezvousSettings, place: str) -> None:
    """Refuse to join agents of the same start of a run that are not this agent's.

    Two jobs that begin at the same moment in one fresh directory both take it for theirs; the first
    record decides. Nothing has been started or told yet by who is refused. In array mode a run may have
    several arrays.

    Args:
        state: the run; its epoch is that of this agent.
        job_id: this agent's job; empty outside Slurm.
        settings: of this agent.
        place: the run directory.

    Raises:
        InputError: they belong to another job, or were started with another --nnodes.
    """
    if job_id and state.job_id not in ("", job_id) and not settings.may_outgrow:
        raise RunDirError(
            f"job {state.job_id} has just begun a run in it, this is job {job_id}; nothing was started",
            where=f"run directory {place}",
            fix="give each job a --run-dir of its own, for example with $SLURM_JOB_ID in its name",
        )
    own = sizes_text(settings)
    if own and state.sizes not in ("", own):
        raise InputError(
            f"this agent was started with {_flag(own)}, the others with {_flag(state.sizes)}",
            where="--nnodes",
            fix=f"give all agents of a run the same --nnodes; they meet in {place}",
        )


def _flag(sizes: str) -> str:
    """Return sizes as people give them: ``2:2`` is ``--nnodes 2``."""
    least, _, most = sizes.partition(":")
    return f"--nnodes {least if least == most else sizes}"
