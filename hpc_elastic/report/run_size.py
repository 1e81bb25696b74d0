"""How many nodes a run uses of those it has, when somebody has asked for a number. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.record.member_names import Phase, natural, parse_name
from hpc_elastic.record.state import RunState
from hpc_elastic.report.timeline import names_text
from hpc_elastic.text import count_text


def size_text(state: RunState, members: Iterable[str]) -> str:
    """Return the wanted size of a run and the nodes that stand by; empty if no size was asked for.

    Args:
        state: of the run.
        members: the listing of ``members/``. A node is believed to be there by its name alone.
    """
    if state.size is None or state.wanted is None:
        return ""
    running = {member.node for member in state.running.members} if state.running is not None else set()
    spare = _joining(state, members) - running
    held = len(running | spare | set(state.expected) - state.lost)
    if 0 < held < state.wanted:
        there = f"{held} {'is' if held == 1 else 'are'} there"
        return f"{count_text(state.wanted, 'node')} wanted ({state.size.detail}), {there}"
    of = f"of {count_text(held, 'node')}" if held else "node" if state.wanted == 1 else "nodes"
    text = f"{state.wanted} {of} ({state.size.detail})"
    if not running or not spare:
        return text
    names = sorted(spare, key=natural)
    return f"{text}; {names_text(tuple(names))} {'stands' if len(names) == 1 else 'stand'} by"


def _joining(state: RunState, members: Iterable[str]) -> set[str]:
    """Return the nodes of this start of the run that wait for a round."""
    names = [name for name in map(parse_name, members) if name is not None and name.epoch == state.epoch]
    return {name.node for name in names if name.phase is Phase.JOINING} - state.lost
