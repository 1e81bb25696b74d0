"""What sinfo says about nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpc_elastic.slurm.client.tables import Form

STATES = Form(("nodelist", "statecomplete", "reason"), is_long=True)
OFFERS = Form(("N", "P", "T", "f", "G"))  # name, partition, state, features, what else it has


def draining(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the reasons of the nodes that take no more jobs, by name, from rows of `STATES`."""
    return {name: "" if reason == "none" else reason for name, state, reason in rows if "drain" in state}


def is_down(rows: Iterable[Sequence[str]]) -> bool:
    """Return whether Slurm has given up one of the nodes, from rows of `STATES`."""
    return any("down" in state or "not_responding" in state for _, state, _ in rows)
