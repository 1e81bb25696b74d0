"""The lines of a node that waits for others, and their times. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpc_elastic.meet import rules
from hpc_elastic.meet.rules import node_of
from hpc_elastic.text import MOST_NAMES, are_text, count_text, few_text

FIRST_S = 2.0  # a shorter wait prints nothing
EVERY_S = 30.0


def is_due(since: float, told_at: float | None, now: float) -> bool:
    """Tell whether a line about waiting is due: after 2 s, then every 30 s.

    Args:
        since: when the waiting began [s].
        told_at: when the last line was shown [s]; None if none was.
        now: time by the same clock [s].
    """
    return now - since >= FIRST_S if told_at is None else now - told_at >= EVERY_S


def waiting_text(view: rules.Joining, waited: rules.Waited, now: float, place: str) -> str:
    """Return for whom a node waits, where and for how long; empty if another node tells that.

    Where Slurm has named the nodes, all lines end in one place: there the first node speaks for all.

    Args:
        view: the node's knowledge.
        waited: how long it has waited.
        now: the same clock's time [s].
        place: where the nodes meet, for people.
    """
    settings, state = view.settings, view.state
    ready = rules.joiners(view, now)
    if view.me not in ready or (state.expected and ready[0] != view.me):
        return ""
    if len(ready) < settings.min_nodes:
        of, left_s = settings.min_nodes, waited.since + settings.join_timeout - now
    else:
        of, left_s = view.target, (waited.quorum_since or now) + settings.last_call_timeout - now
    if len(ready) >= of:
        return ""
    absent = rules.missing(view, now)
    names = f" ({few_text(absent)})" if absent else ""
    here = few_text([node_of(node_id) for node_id in ready])
    return (
        f"waiting for {count_text(of - len(ready), 'more node')}{names}{f' in {place}' if place else ''} "
        f"({len(ready)} of {of} here: {here}), {_times(now - waited.since, left_s)}"
    )


def barrier_text(others: list[str], waited_s: float, left_s: float) -> str:
    """Return for whom a node waits whose workers have ended.

    Args:
        others: names of the nodes whose workers have not.
        waited_s: since when [s].
        left_s: how much longer at most [s].
    """
    times = _times(waited_s, left_s)
    return f"all workers here have ended; waiting for those of {few_text(others)}, {times}"


def _times(waited_s: float, left_s: float) -> str:
    """Return the time of waiting so far and its limit, in words [s]."""
    return f"{waited_s:.0f} s so far, for at most {max(left_s, 0):.0f} s more"


def beside_text(view: rules.Joining) -> str:
    """Return how a node stands to the round that runs without it; empty if that is about to end."""
    running = view.state.running
    if running is None:
        return ""
    if len(running.members) > view.target:
        return ""  # fewer are wanted, so that it ends
    size = f"{len(running.members)} of {count_text(view.target, 'node')}"
    if len(running.members) >= view.target:
        return f"standing by: round {running.number} is full ({size})"
    if view.state.drain is not None:
        return ""
    return f"round {running.number} runs with {size}; it is asked to take this one in"


def too_few_text(
    few: rules.TooFew,
    settings: rules.MeetingSettings,
    place: str,
    unfit: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return why the minimum cannot be reached.

    Args:
        few: the nodes that are there and those that are missing.
        settings: the minimum and how long it was waited for.
        place: where the nodes meet, for people.
        unfit: nodes that stay out, and why.
    """
    need = settings.min_nodes
    if not few.timed_out:
        left = f"{are_text(few.have, 'node')} left"
        lost = ", ".join(name for name in few.missing if name not in unfit)
        gone = f"; lost: {lost or 'unknown'}" if lost or not unfit else ""
        return f"{left}, {need} are needed{gone}{_unfit_text(unfit)}"
    missing = f"missing: {', '.join(few.missing)}" if few.missing else f"no other came to {place}".rstrip()
    until = ", and no other agent runs" if few.ended else f" within {settings.join_timeout:g} s"
    return f"{few.have} of {need} nodes joined{until}; {missing}{_unfit_text(unfit)}"


def _unfit_text(unfit: Mapping[str, str]) -> str:
    """Return which nodes stay out, and why; empty if none does."""
    told = [f"{node} ({unfit[node]})" for node in sorted(unfit)[:MOST_NAMES]]
    return f"; unfit: {', '.join(told)}" if told else ""
