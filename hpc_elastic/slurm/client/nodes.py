"""What sinfo says about nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.slurm.client.tables import Form

STATES = Form(("nodelist", "statecomplete", "reason"), is_long=True)
OFFERS = Form(("N", "P", "T", "f", "G"))  # name, partition, state, features, what else it has


def draining(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the reasons of the nodes that take no more jobs, by name, from rows of `STATES`."""
    return {name: "" if reason == "none" else reason for name, state, reason in rows if "drain" in state}


def is_down(rows: Iterable[Sequence[str]]) -> bool:
    """Return whether Slurm has given up one of the nodes, from rows of `STATES`."""
    return any("down" in state or "not_responding" in state for _, state, _ in rows)


class NodeState(NamedTuple):
    """What Slurm says about a node that a job has lost.

    Attributes:
        words: its state in sinfo's words, such as ``idle`` or ``down+not_responding``.
        reason: for which it is down or drained, empty without.
        up_since: since when it and its slurmd are up [s since the epoch]; None if Slurm does not know.
        in_job: whether the job has it still.
    """

    words: str
    reason: str
    up_since: float | None
    in_job: bool


def taken_away(state: NodeState, lost_at: float) -> str | None:
    """Return how Slurm was told to take a node away, None if it was lost by itself.

    The node has answered all the time, and nevertheless Slurm runs nothing of the job there any more: it was
    set down by hand, or given up by the job (``scontrol update NumNodes=``). A node that fails does not
    answer, or has started anew since.

    Args:
        state: what Slurm says.
        lost_at: when its agent was found to be gone [s since the epoch].
    """
    words = state.words.lower()
    is_silent = "not_responding" in words or "unknown" in words or "*" in words
    if is_silent or state.up_since is None or state.up_since >= lost_at:
        return None
    if "down" in words or "power" in words:
        return f"it was set down in Slurm ({state.reason})" if state.reason else "it was set down in Slurm"
    return None if state.in_job else "Slurm took it from the job though it was up"


def states_of(rows: Iterable[Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of each node by name, from rows of `STATES`."""
    return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}
