"""The bad nodes of a run, for its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.rendezvous.state import RunState

_EMPTY = ("", "None", "(null)")


def node_facts(state: RunState, job: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return labels and texts about nodes that stay out of a run.

    Args:
        state: the run.
        job: the fields of its job as Slurm tells them; empty if it does not.
    """
    facts = [("unfit", f"{node}: {reason}") for node, reason in sorted(state.unfit.items())]
    excluded = job.get("ExcNodeList", "")
    return (
        facts if excluded in _EMPTY else [*facts, ("excluded", f"{excluded} (hpc-elastic nodes tells why)")]
    )
