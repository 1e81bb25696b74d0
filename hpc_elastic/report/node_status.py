"""The bad nodes of a run, for its status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpc_elastic.errors import InputError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.record.journal import EpochStarted, NodeUnfit, Record, RoundEnded, RoundFormed, bad_node
from hpc_elastic.record.node_faults import slow_text
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client import parse

_EMPTY = ("", "None", "(null)")


def node_facts(
    state: RunState,
    job: Mapping[str, str],
    records: Iterable[Record] = (),
    forgiven: Collection[str] = (),
) -> list[tuple[str, str]]:
    """Return labels and texts about nodes that stay out of a run or did in an earlier start, or are slow.

    Args:
        state: the run.
        job: the fields of its job as Slurm tells them; empty if it does not.
        records: of the run.
        forgiven: the nodes that nothing is held against any more.
    """
    facts = [("unfit", f"{node}: {state.unfit[node]}") for node in sorted(state.unfit, key=natural)]
    facts += [("slow", f"{node}: {slow_text(state.slow[node])}") for node in sorted(state.slow, key=natural)]
    earlier = _unfit_before(records, state)
    facts += [
        ("unfit", f"{node}, in an earlier start: {earlier[node]}") for node in sorted(earlier, key=natural)
    ]
    excluded = job.get("ExcNodeList", "")
    return facts if excluded in _EMPTY else [*facts, *_excluded(excluded, job, forgiven)]


def _excluded(excluded: str, job: Mapping[str, str], forgiven: Collection[str]) -> list[tuple[str, str]]:
    """Return the nodes that the job leaves out, and apart from them those that were forgiven since."""
    names = _hosts(excluded)
    back = tuple(name for name in names if name in forgiven)
    left = tuple(name for name in names if name not in forgiven)
    told = excluded if not back else ",".join(left)
    facts = [("excluded", f"{told} (hpc-elastic nodes tells why)")] if left else []
    if back:
        rest = f"scontrol update JobId={job.get('JobId', 'JOB')} ExcNodeList={','.join(left)}"
        waits = job.get("JobState") == "PENDING"
        then = f"to let this job have them: {rest}" if waits else "a requeue of the job lets it have them"
        facts.append(("excluded", f"{','.join(back)}: forgiven since; {then}"))
    return facts


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return parse.expand(text)
    except InputError:
        return (text,)


def _unfit_before(records: Iterable[Record], state: RunState) -> dict[str, str]:
    """Return the nodes that were unfit in earlier starts of this submission, and in no round since."""
    found: dict[str, str] = {}
    submission = 0
    for record in records:
        entry = record.entry
        if isinstance(entry, EpochStarted) and entry.epoch.submission > submission:
            submission, found = entry.epoch.submission, {}
        elif isinstance(entry, NodeUnfit):
            found[entry.node] = entry.reason
        elif isinstance(entry, RoundEnded) and (bad := bad_node(entry.word)):
            found[bad.node] = bad.reason
        elif found and isinstance(entry, RoundFormed):
            for member in entry.members:
                found.pop(member.node, None)
    return {node: reason for node, reason in found.items() if node not in state.unfit}
