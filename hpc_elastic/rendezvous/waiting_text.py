"""What a node that waits for others tells people, and when. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.rendezvous import rules

FIRST_S = 2.0  # who waits no longer than this says nothing
EVERY_S = 30.0
_MOST_NAMES = 8


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
        view: what the node knows.
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
    absent = rules.missing(view, ready, now)
    names = f" ({_names(absent)})" if absent else ""
    here = _names([node_id.rpartition(".")[0] for node_id in ready])
    return (
        f"waiting for {_count(of - len(ready), 'more node')}{names}{f' in {place}' if place else ''} "
        f"({len(ready)} of {of} here: {here}), for at most {max(left_s, 0):.0f} s"
    )


def beside_text(view: rules.Joining) -> str:
    """Return how a node stands to the round that runs without it; empty if that is about to end."""
    running = view.state.running
    if running is None:
        return ""
    size = f"{len(running.members)} of {_count(view.target, 'node')}"
    if len(running.members) >= view.target:
        return f"standing by: round {running.number} is full ({size})"
    if view.state.drain is not None:
        return ""
    return f"round {running.number} runs with {size}; it is asked to take this one in"


def too_few_text(few: rules.TooFew, settings: rules.RendezvousSettings, place: str) -> str:
    """Return why the minimum cannot be reached.

    Args:
        few: who is there and who is not.
        settings: the minimum and how long it was waited for.
        place: where the nodes meet, for people.
    """
    need = settings.min_nodes
    if not few.timed_out:
        left = f"{_count(few.have, 'node')} {'is' if few.have == 1 else 'are'} left"
        return f"{left}, {need} are needed; lost: {', '.join(few.missing) or 'unknown'}"
    absent = f"missing: {', '.join(few.missing)}" if few.missing else f"nobody else came to {place}".rstrip()
    return f"{few.have} of {need} nodes joined within {settings.join_timeout:g} s; {absent}"


def unfit_text(unfit: Mapping[str, str]) -> str:
    """Return which of the nodes that are missing have failed their probe, and why; empty if none has."""
    told = [f"{node} ({unfit[node]})" for node in sorted(unfit)[:_MOST_NAMES]]
    return f"; unfit: {', '.join(told)}" if told else ""


def _names(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
