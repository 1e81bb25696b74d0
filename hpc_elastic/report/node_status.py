"""The bad nodes of a run, for its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpc_elastic.rendezvous.journal import NodeUnfit, Record, RoundFormed
from hpc_elastic.rendezvous.roster import natural
from hpc_elastic.rendezvous.state import RunState

_EMPTY = ("", "None", "(null)")


def node_facts(
    state: RunState, job: Mapping[str, str], records: Iterable[Record] = ()
) -> list[tuple[str, str]]:
    """Return labels and texts about nodes that stay out of a run, or did in an earlier start of it.

    Args:
        state: the run.
        job: the fields of its job as Slurm tells them; empty if it does not.
        records: of the run.
    """
    facts = [("unfit", f"{node}: {state.unfit[node]}") for node in sorted(state.unfit, key=natural)]
    earlier = _unfit_before(records, state)
    facts += [
        ("unfit", f"{node}, in an earlier start: {earlier[node]}") for node in sorted(earlier, key=natural)
    ]
    excluded = job.get("ExcNodeList", "")
    return (
        facts if excluded in _EMPTY else [*facts, ("excluded", f"{excluded} (hpc-elastic nodes tells why)")]
    )


def _unfit_before(records: Iterable[Record], state: RunState) -> dict[str, str]:
    """Return the nodes that were unfit in earlier starts of this submission, and in no round since."""
    found: dict[str, str] = {}
    for record in records:
        entry = record.entry
        if isinstance(entry, NodeUnfit) and entry.epoch.submission == state.epoch.submission:
            found[entry.node] = entry.reason
        elif isinstance(entry, RoundFormed):
            for member in entry.members:
                found.pop(member.node, None)
    return {node: reason for node, reason in found.items() if node not in state.unfit}
