"""Who is in the next round, and with which rank. Pure."""

from __future__ import annotations

from hpc_elastic.record.array_task import array_of
from hpc_elastic.record.journal import RoundFormed


def node_of(node_id: str) -> str:
    """Return the name of an agent's node."""
    return node_id.rpartition(".")[0]


def choose(last: RoundFormed | None, ready: list[str], target: int) -> list[str]:
    """Return the nodes of the next round, in rank order: those of the last round come first.

    A node that stood by takes a place that is free; it drives nobody out.
    """
    stay = {member.node: place for place, member in enumerate(last.members)} if last else {}
    newcomers_last = sorted(ready, key=lambda one: (array_of(one), stay.get(node_of(one), len(stay))))
    chosen = set(newcomers_last[:target])
    return [node_id for node_id in ready if node_id in chosen]


def seats(last: RoundFormed | None, chosen: list[str]) -> tuple[str, ...]:
    """Return the nodes in the order of their ranks.

    In a round of the same size everybody keeps the rank of the last round, and a node that replaces
    another takes its place. With another size the ranks follow the order of `chosen`, Slurm's.
    """
    if last is None or len(last.members) != len(chosen):
        return tuple(chosen)
    places = {member.node: place for place, member in enumerate(last.members)}
    order: list[str | None] = [None] * len(chosen)
    moving = []
    for node_id in chosen:
        place = places.get(node_of(node_id), len(chosen))
        if place < len(chosen) and order[place] is None:
            order[place] = node_id
        else:
            moving.append(node_id)
    free = iter(moving)
    return tuple(next(free) if node_id is None else node_id for node_id in order)
