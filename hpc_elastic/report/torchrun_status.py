"""A run whose agents are torchrun's: what its records tell, and what they cannot. Pure.

Torchrun's agents meet here and do no more: each says that it wants the next round, is in one, or has
left. Why a round ended and how the workers did stays with torchrun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.record.member_names import MemberName, Phase, natural
from hpc_elastic.record.state import RunState
from hpc_elastic.report.timeline import names_text, span_text
from hpc_elastic.text import count_text

NOT_RECORDED = (
    "torchrun, whose agents only meet here: restarts, checkpoints, logs and how the workers ended are "
    "not recorded; torchrun's own output has them"
)
_WORDS = {
    Phase.JOINING: "waits for a round",
    Phase.RUNNING: "is in round {round}",
    Phase.STOPPED: "has stopped its workers",
    Phase.SUCCEEDED: "has left after round {round}",
    Phase.LEFT: "has left after round {round}",
    Phase.ABSENT: "has ended before it came",
}


class Mark(NamedTuple):
    """A node as its own file name tells of it."""

    name: MemberName
    at: float | None = None  # of its last sign of life, by the file server [s since the epoch]; None: gone


def newest_marks(marks: Iterable[Mark], state: RunState) -> list[Mark]:
    """Return the newest mark of each node in this start of the run, in the order of their names."""
    found: dict[str, Mark] = {}
    for mark in marks:
        known = found.get(mark.name.node)
        is_newer = known is None or (mark.at or 0.0) >= (known.at or 0.0)
        if mark.name.epoch >= state.epoch and is_newer:
            found[mark.name.node] = mark
    return [found[node] for node in sorted(found, key=natural)]


def have_left(marks: Sequence[Mark]) -> bool:
    """Tell whether there were agents and all have gone by themselves."""
    return bool(marks) and all(mark.name.phase.is_terminal for mark in marks)


def headline(state: RunState, marks: Sequence[Mark]) -> str:
    """Return where the run stands, as far as that is recorded."""
    formed = state.round
    nodes = names_text(tuple(mark.name.node for mark in marks))
    if formed is not None:
        nodes = names_text(tuple(member.node for member in formed.members))
    if have_left(marks):
        after = f" after round {formed.number}" if formed is not None else " before there was a round"
        return f"all agents have left{after} ({nodes}); how their workers ended is not recorded here"
    if state.running is not None:
        count = count_text(len(state.running.members), "node")
        return f"running round {state.running.number} on {count}: {nodes}"
    after = f" after round {formed.number}" if formed is not None else ""
    return f"the agents meet for the next round{after} ({nodes})" if nodes else "no agent is there"


def member_texts(marks: Sequence[Mark], now_s: float) -> list[str]:
    """Return what each node does, one line each.

    Args:
        marks: of the nodes.
        now_s: wall time [s since the epoch].
    """
    texts = []
    for mark in marks:
        text = f"{mark.name.node} {_WORDS[mark.name.phase].format(round=mark.name.round)}"
        if mark.at is not None:
            seen = "" if mark.name.phase.is_terminal else "last sign of life "
            text += f", {seen}{span_text(now_s - mark.at)} ago"
        texts.append(text)
    return texts
