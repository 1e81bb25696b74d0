"""Who is there: the names in ``members/``, and when this node last saw each one change. Pure.

A member advances a counter in its own name. An observer never looks at another node's clock: a
member is alive while its name keeps changing by the observer's own monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from hpc_elastic.rendezvous.journal import Epoch


class Phase(str, Enum):
    """What a member is doing, as its name tells."""

    JOINING = "joining"  # no workers; wants the next round
    RUNNING = "running"
    STOPPED = "stopped"  # workers gone after a drain or a failure
    SUCCEEDED = "succeeded"  # all workers ended well; terminal
    LEFT = "left"  # gone on purpose; terminal

    @property
    def is_terminal(self) -> bool:
        """Whether the member needs no heartbeat any more to count."""
        return self in (Phase.SUCCEEDED, Phase.LEFT)


class MemberName(NamedTuple):
    """The facts in a member's file name."""

    node_id: str  # <node>.<pid>
    epoch: Epoch
    phase: Phase
    round: int  # joining: the round it wants; else the round it is or was in
    counter: int

    @property
    def node(self) -> str:
        """The node's name."""
        return self.node_id.rpartition(".")[0]

    def text(self) -> str:
        """Return the file name."""
        parts = (self.node_id, self.epoch.text(), self.phase.value, str(self.round), str(self.counter))
        return "+".join(parts)


_NAME = re.compile(r"(?P<id>[^+/]+)\+(\d+)-(\d+)-(\d+)\+([a-z]+)\+(\d+)\+(\d+)")


def parse_name(text: str) -> MemberName | None:
    """Return the facts in a file name, or None for a foreign name."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    node_id, submission, restart, relaunch, phase, number, counter = found.groups()
    if phase not in Phase._value2member_map_:
        return None
    epoch = Epoch(int(submission), int(restart), int(relaunch))
    return MemberName(node_id, epoch, Phase(phase), int(number), int(counter))


class Seen(NamedTuple):
    """A member as one observer knows it."""

    name: MemberName
    changed_at: float  # observer's monotonic time of the last change [s]


Roster = Mapping[str, Seen]


def observe(roster: Roster, names: Iterable[str], epoch: Epoch, now: float) -> dict[str, Seen]:
    """Return the roster after one listing.

    A listing taken during a rename may show both names of a member or neither: the higher counter
    counts, and a member that is not listed keeps what was known of it (it ages, that is all).

    Args:
        roster: what was known.
        names: the listing of ``members/``.
        epoch: only members of this epoch count.
        now: the observer's monotonic time [s].
    """
    seen = {node_id: entry for node_id, entry in roster.items() if entry.name.epoch == epoch}
    for text in names:
        name = parse_name(text)
        if name is None or name.epoch != epoch:
            continue
        known = seen.get(name.node_id)
        if known is None or name.counter > known.name.counter:
            seen[name.node_id] = Seen(name, now)
    return seen


def forgive(roster: Roster, now: float) -> dict[str, Seen]:
    """Return the roster as if everybody had just been seen: the observer itself was blind."""
    return {node_id: entry._replace(changed_at=now) for node_id, entry in roster.items()}


def is_alive(entry: Seen, now: float, lease: float) -> bool:
    """Tell whether a member that should beat has done so within the lease [s]."""
    return not entry.name.phase.is_terminal and now - entry.changed_at < lease


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key under which ``node2`` comes before ``node10``."""
    parts = re.split(r"([0-9]+)", name)
    numbers_count = ((int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts))
    return (*numbers_count, (-1, name))  # the name itself tells 1 from 01
