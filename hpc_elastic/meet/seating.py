"""The order of nodes: the members of the next round, and their ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.meet.member_names import natural
from hpc_elastic.record.array_task import MARK, start_of
from hpc_elastic.record.journal import RoundFormed


def node_of(node_id: str) -> str:
    """Return the name of an agent's node."""
    return node_id.rpartition(".")[0]


def in_rank_order(expected: tuple[str, ...], node_ids: Iterable[str]) -> list[str]:
    """Order nodes as Slurm does where it told, else by name with numbers as numbers."""
    places = {node: place for place, node in enumerate(expected)}
    ranked = ((node_of(node_id), node_id) for node_id in node_ids)
    keyed = sorted((places.get(node, len(places)), natural(node), node_id) for node, node_id in ranked)
    return [node_id for _, _, node_id in keyed]


def choose(last: RoundFormed | None, ready: list[str], target: int) -> list[str]:
    """Return the nodes of the next round, in rank order: those of the last round come first.

    A node that stood by takes a place that is free; it takes no other node's place.
    """
    chosen = set(by_claim(last, ready)[:target])
    return [node_id for node_id in ready if node_id in chosen]


def by_claim(last: RoundFormed | None, node_ids: Iterable[str]) -> list[str]:
    """Return nodes in the order of their claims to a place: first those of the last round, by their ranks."""
    stay = {member.node: place for place, member in enumerate(last.members)} if last else {}
    return sorted(node_ids, key=lambda one: (_array_of(one), stay.get(node_of(one), len(stay))))


def _array_of(node_id: str) -> int:
    """Return the number of the array of an agent, 0 if it is no array task's: older arrays stay longest."""
    start = start_of(node_id) if MARK in node_id else None
    return int(start.array) if start is not None else 0


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
