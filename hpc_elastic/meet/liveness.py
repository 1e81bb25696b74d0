"""The members that one observer takes for lost, and the turns of the observers. Pure.

No clock is compared with that of another node: a member is silent when its name has not changed for
a lease by the observer's own clock. The consequences of silence are decided here:

- One silent member is suspected. It is lost once a second observer suspects it too, or at once where
  no other observer is left.
- Most members silent at about the same time are the sign of a stalled file system. They get
  three leases; only then are they taken for lost.
- The first three members of a round observe all the time, two others in turns, in a round of any size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpc_elastic.meet.member_names import TERMINAL, Phase, Roster, Seen, Suspicion
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.state import RunState

WATCHERS = 3  # members that always watch the others; they also put agreements together
IN_TURN = 2  # further members that watch at any time
TURN_BEATS = 8  # heartbeats that a turn lasts at least
STALL_LEASES = 3  # leases for members that fell silent together
WITNESS_BEATS = 2  # heartbeats that an observer waits for a second one to agree
_TOGETHER = 2  # fewer than this many silent members are no sign of a stall


class View(NamedTuple):
    """One observer's view of the members of a running round."""

    me: str  # node_id of the observer; need not be a member
    members: tuple[str, ...]  # node_ids
    roster: Roster
    suspicions: frozenset[Suspicion]
    lease: float  # [s]
    heartbeat_interval: float  # [s]
    suspected_at: Mapping[Suspicion, float] | None = None  # since when it suspects [s]; None: lease's end


class LivenessVerdict(NamedTuple):
    """The conclusion of an observer."""

    lost: tuple[str, ...]  # node_ids of members that are lost
    suspected: tuple[Suspicion, ...]  # to be written down for the other observers


def is_alive(entry: Seen, now: float, lease: float) -> bool:
    """Tell whether a member that should beat has done so within the lease [s]."""
    return entry.name.phase not in TERMINAL and now - entry.changed_at < lease


def silent(entries: Iterable[Seen], now: float, lease: float) -> frozenset[str]:
    """Return the ids of the members that have not beaten for so long that it counts.

    Members that have said goodbye are not among them. If at least two, and most of those that were
    alive lately, have fallen silent together, the file system is taken to be stalled for them.

    Args:
        entries: the known members, without the observer itself.
        now: the observer's monotonic time [s].
        lease: [s].
    """
    ages = _ages(entries, now)
    quiet = {node_id for node_id, age in ages.items() if age >= lease}
    lately = {node_id for node_id in quiet if ages[node_id] < STALL_LEASES * lease}
    around = len(ages) - len(quiet) + len(lately)
    if len(lately) >= _TOGETHER and 2 * len(lately) > around:
        quiet -= lately
    return frozenset(quiet)


def surely_silent(entries: Iterable[Seen], now: float, lease: float) -> frozenset[str]:
    """Return the ids of the members that have been silent for longer than a stall is waited out.

    Args:
        entries: the known members, without the observer itself.
        now: the observer's monotonic time [s].
        lease: [s].
    """
    return frozenset(key for key, age in _ages(entries, now).items() if age >= STALL_LEASES * lease)


def long_lost(roster: Roster, state: RunState, now: float, lease: float) -> frozenset[str]:
    """Return the ids of the members on nodes that were lost before the last round and are silent still.

    Their silence is old: when others fall silent after them, that is no sign of a stall.
    """
    members = state.round.members if state.round is not None else ()
    lost = state.lost.difference(member.node for member in members)
    quiet = (node_id for node_id, seen in roster.items() if now - seen.changed_at >= lease)
    return frozenset(node_id for node_id in quiet if roster[node_id].name.node in lost)


def _ages(entries: Iterable[Seen], now: float) -> dict[str, float]:
    """Return since when [s] members have not beaten, without those that have said goodbye."""
    beating = (entry for entry in entries if entry.name.phase not in TERMINAL)
    return {entry.name.node_id: now - entry.changed_at for entry in beating}


def judge(view: View, now: float) -> LivenessVerdict:
    """Return which members of a running round are lost, and which are to be suspected.

    A member that has succeeded may leave. One that leaves while the round runs is lost at once.
    """
    peers = {
        node_id: view.roster[node_id]
        for node_id in view.members
        if node_id != view.me and node_id in view.roster
    }
    left = [node_id for node_id, entry in peers.items() if entry.name.phase is Phase.LEFT]
    quiet = silent(peers.values(), now, view.lease)
    others = [key for key in peers if key not in quiet and key not in left]
    alone = not others
    confirmed = [key for key in quiet if alone or _is_confirmed(view, peers[key], others, now)]
    open_cases = sorted(quiet.difference(confirmed))
    return LivenessVerdict(
        lost=tuple(node_id for node_id in view.members if node_id in {*left, *confirmed}),
        suspected=tuple(_suspicion(view, peers[node_id]) for node_id in open_cases),
    )


def _suspicion(view: View, entry: Seen) -> Suspicion:
    return Suspicion(entry.name.node_id, entry.name.epoch, entry.name.counter, view.me)


def _is_confirmed(view: View, entry: Seen, others: Collection[str], now: float) -> bool:
    """Tell whether a second observer agrees, or had the time to and did not object."""
    own = _suspicion(view, entry)
    if any(own._replace(by=other) in view.suspicions for other in others):
        return True
    at = view.suspected_at
    waited = now - (entry.changed_at + view.lease if at is None else at.get(own, now))
    return own in view.suspicions and waited >= WITNESS_BEATS * view.heartbeat_interval


def next_expiry(view: View, now: float) -> float:
    """Return when the first lease of a member runs out next, in the observer's time [s]; inf for none."""
    ends = (
        view.roster[node_id].changed_at + view.lease
        for node_id in view.members
        if node_id != view.me and node_id in view.roster and view.roster[node_id].name.phase not in TERMINAL
    )
    return min((end for end in ends if end > now), default=float("inf"))


def turn_beats(lease: float, heartbeat_interval: float) -> int:
    """Return how many heartbeats a turn lasts: longer than a lease, or no member could be judged in it."""
    return max(TURN_BEATS, int(lease / heartbeat_interval) + 4)


def is_on_watch(rank: int, world_size: int, beat: int, turn: int = TURN_BEATS) -> bool:
    """Tell whether a member watches the others at one of its heartbeats.

    How many watch at a time does not depend on the size of the world, so that the cost of watching
    grows with it and not with its square. Turns let others notice if the first ones vanish together.

    Args:
        rank: the member's place in the round.
        world_size: number of members.
        beat: the member's heartbeats since the round began.
        turn: heartbeats that a turn lasts.
    """
    if world_size == 1:
        return False  # no member to watch
    if rank < WATCHERS:
        return True
    others = world_size - WATCHERS
    first = beat // turn * IN_TURN
    return (rank - WATCHERS - first) % others < IN_TURN
