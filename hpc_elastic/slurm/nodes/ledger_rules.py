"""Which nodes are suspect, and how many of them a job can do without. Pure.

Each event has a severity that halves with every half-life; the sum over a node's events is its score.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client.answers import ListedNode
from hpc_elastic.store.node_events import Fault, NodeEvent

SEVERITY: Mapping[Fault, float] = {
    Fault.UNFIT: 1.0,
    Fault.NODE_LOSS: 1.0,
    Fault.ABSENT: 0.6,
    Fault.WEDGE: 2.0,
    Fault.HANG: 0.4,  # alone it proves little: the second one within a while does
    Fault.CRASH_LOOP: 0.4,
    Fault.SLOW: 0.0,  # for people: it never leaves a node out
    Fault.SUSPECTED: 4.0,
    Fault.FORGIVEN: 0.0,
}
_NEGLIGIBLE = 10  # half-lives after which an event is not looked at


class Rules(NamedTuple):
    """When a node is suspect."""

    half_life: float = 86400.0  # of an event's severity [s]
    threshold: float = 0.5  # a node with at least this score is suspect
    margin: float = 0.1  # part of the wanted nodes that must be there beyond them

    def oldest(self, now: float) -> float:
        """Return since when events count [s since the epoch]."""
        return now - _NEGLIGIBLE * self.half_life


RULES = Rules()


class NodeStanding(NamedTuple):
    """The known facts of one node."""

    host: str
    score: float
    is_suspect: bool
    last: NodeEvent  # the newest event; that it was slow only if there is no other
    events: int  # that count
    until: float | None = None  # when it is no longer suspect if nothing happens [s since the epoch]


def standings(events: Iterable[NodeEvent], now: float, rules: Rules = RULES) -> tuple[NodeStanding, ...]:
    """Return the known facts of the nodes, the worst first.

    Args:
        events: of any nodes, in any order.
        now: wall time [s since the epoch]; events from the future count as of now.
        rules: severity over time.
    """
    of_host: dict[str, list[NodeEvent]] = {}
    for event in sorted(events, key=lambda event: event.at):
        of_host.setdefault(event.host, []).append(event)
    found = [_standing(host, mine, now, rules) for host, mine in of_host.items()]
    return tuple(sorted(found, key=lambda one: (-one.score, natural(one.host))))


def counted(events: Sequence[NodeEvent]) -> Sequence[NodeEvent]:
    """Return the events of one node, oldest first, that came after the newest pardon."""
    pardons = [at for at, event in enumerate(events) if event.fault is Fault.FORGIVEN]
    return events[pardons[-1] + 1 :] if pardons else events


def _standing(host: str, events: Sequence[NodeEvent], now: float, rules: Rules) -> NodeStanding:
    mine = counted(events)
    score = sum(SEVERITY[event.fault] * 0.5 ** (max(now - event.at, 0) / rules.half_life) for event in mine)
    is_suspect = score >= rules.threshold
    until = now + rules.half_life * math.log2(score / rules.threshold) if is_suspect else None
    last = ([event for event in events if event.fault is not Fault.SLOW] or events)[-1]
    return NodeStanding(host, score, is_suspect, last, len(mine), until)


class WantedNodes(NamedTuple):
    """The needs of a job in nodes."""

    least: int  # nodes; fewer than this and the margin are never left
    gpus: int = 0  # on each node
    features: frozenset[str] | None = frozenset()  # all of these; None: more than can be judged here
    never: Collection[str] = ()  # nodes that the job asks for by name, or leaves out already


class Exclusion(NamedTuple):
    """Which nodes a job does without."""

    nodes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # suspects that it cannot do without
    left: int = 0  # nodes that are left for it


def exclude(
    bad: Sequence[str], nodes: Iterable[ListedNode], wanted: WantedNodes, rules: Rules = RULES
) -> Exclusion:
    """Choose the nodes that a job does without: as many of the bad ones as leave it enough.

    Args:
        bad: names, the worst first.
        nodes: those of the job's partitions; a name that Slurm does not know would have it refuse the job.
        wanted: the needs of the job.
        rules: the margin.
    """
    known = {node.name: node for node in nodes}
    mine = [host for host in bad if host in known and host not in wanted.never]
    fits = {name for name, node in known.items() if _fits(node, wanted)}
    usable = {name for name in fits if known[name].is_up}
    back = len(fits) - wanted.least  # with those that are down: they may come back while the job waits
    beyond = len(usable) - wanted.least - math.floor(wanted.least * rules.margin)
    spare = 0 if wanted.features is None else beyond
    chosen, kept = [], []
    for host in mine:
        if host not in fits:  # no start misses it
            chosen.append(host)
        elif back > 0 and (spare > 0 or host not in usable):
            chosen.append(host)
            back -= 1
            spare -= host in usable
        else:
            kept.append(host)
    return Exclusion(tuple(sorted(chosen, key=natural)), tuple(kept), len(usable.difference(chosen)))


def _fits(node: ListedNode, wanted: WantedNodes) -> bool:
    if node.name in wanted.never:
        return False
    return (wanted.features or frozenset()) <= node.features and node.gpus >= wanted.gpus
