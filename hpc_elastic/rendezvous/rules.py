"""The rules of the rendezvous: what a node does next, given what it knows. Pure.

Nothing here reads a clock, a file or a setting of its own: state, roster and time are arguments,
so every rule can be tested by itself and run in a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpc_elastic.rendezvous.journal import Epoch, RoundFormed
from hpc_elastic.rendezvous.roster import Phase, Roster, Seen, is_alive, natural
from hpc_elastic.rendezvous.state import RunState

PROPOSERS = 3  # members that watch closely and put agreements together; more would be in the way


class RendezvousSettings(NamedTuple):
    """Sizes and timeouts of the rendezvous; all times in seconds."""

    min_nodes: int = 1
    max_nodes: int = 1
    join_timeout: float = 600.0  # how long a node waits for enough others
    last_call_timeout: float = 30.0  # how long enough nodes wait for more, if more may come
    heartbeat_interval: float = 1.0
    lease: float = 4.0  # a member that does not beat for so long is lost
    leader_patience: float = 1.0  # the first node forms the round; later the others may


class Waited(NamedTuple):
    """What a joining node knows of its own waiting, by its monotonic clock [s]."""

    since: float
    quorum_since: float | None = None  # enough nodes are in since then
    complete_since: float | None = None  # everybody who can come is in since then


class Wait(NamedTuple):
    """Look again when something changes, at the latest after the heartbeat interval."""

    joined: int
    missing: tuple[str, ...]


class Form(NamedTuple):
    """Publish the next round with these nodes, in this order."""

    node_ids: tuple[str, ...]


class Joined(NamedTuple):
    """This node is a member of the running round."""

    round: RoundFormed


class AskToJoin(NamedTuple):
    """A round runs without this node and has room: ask its members to stop and re-form."""


class Spare(NamedTuple):
    """A full round runs without this node: stand by, without a deadline."""


class Leave(NamedTuple):
    """No further round will be formed in this epoch."""


class Fenced(NamedTuple):
    """A newer start of the run exists."""


class TooFew(NamedTuple):
    """The minimum cannot be reached: the deadline has passed, or too many nodes are lost."""

    have: int
    missing: tuple[str, ...]
    timed_out: bool


JoinAction = Wait | Form | Joined | AskToJoin | Spare | Leave | Fenced | TooFew


class Joining(NamedTuple):
    """Everything a joining node knows."""

    state: RunState
    roster: Roster
    me: str  # node_id
    epoch: Epoch
    settings: RendezvousSettings


def join(view: Joining, waited: Waited, now: float) -> JoinAction:
    """Choose the next step of a node that wants to be in the next round."""
    state = view.state
    if state.epoch > view.epoch:
        return Fenced()
    if state.leaving:
        return Leave()
    if state.running is not None:
        return _beside_a_round(view, state.running)
    return _between_rounds(view, waited, now)


def _beside_a_round(view: Joining, running: RoundFormed) -> JoinAction:
    if any(member.node_id == view.me for member in running.members):
        return Joined(running)
    if view.state.drain is None and len(running.members) < view.settings.max_nodes:
        return AskToJoin()
    return Spare()


def _between_rounds(view: Joining, waited: Waited, now: float) -> JoinAction:
    settings = view.settings
    ready = joiners(view, now)
    absent = missing(view, ready, now)
    if len(ready) >= settings.min_nodes and _enough(view, waited, ready, now):
        chosen = ready[: settings.max_nodes]
        if view.me == chosen[0] or _leader_is_late(waited, settings, now):
            return Form(tuple(chosen))
    if len(ready) + len(absent) < settings.min_nodes and view.state.expected:
        return TooFew(len(ready), _gone(view.state, ready), timed_out=False)
    if len(ready) < settings.min_nodes and now - waited.since >= settings.join_timeout:
        return TooFew(len(ready), absent, timed_out=True)
    return Wait(len(ready), absent)


def _gone(state: RunState, ready: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the nodes that were in the last round, or are known as lost, and are not here."""
    here = {node_id.rpartition(".")[0] for node_id in ready}
    members = {member.node for member in state.round.members} if state.round else set()
    return tuple(sorted((members | state.lost) - here, key=natural))


def _enough(view: Joining, waited: Waited, ready: list[str], now: float) -> bool:
    if _everybody_in(view, ready, now):
        return True
    since = waited.quorum_since
    return since is not None and now - since >= view.settings.last_call_timeout


def _everybody_in(view: Joining, ready: list[str], now: float) -> bool:
    """Tell whether waiting longer cannot bring more nodes into the round."""
    if len(ready) >= view.settings.max_nodes:
        return True
    nobody_knows_who_comes = view.state.round is None and not view.state.expected
    return not nobody_knows_who_comes and not missing(view, ready, now)


def _leader_is_late(waited: Waited, settings: RendezvousSettings, now: float) -> bool:
    since = waited.complete_since
    return since is not None and now - since >= settings.leader_patience


def wait_on(view: Joining, waited: Waited, now: float) -> Waited:
    """Return the waiting times brought up to date with what is known now."""
    ready = joiners(view, now)
    quorum = len(ready) >= view.settings.min_nodes
    full = _everybody_in(view, ready, now)
    over = waited.quorum_since is not None and (now - waited.quorum_since >= view.settings.last_call_timeout)
    return waited._replace(
        quorum_since=_since(waited.quorum_since, now) if quorum else None,
        complete_since=_since(waited.complete_since, now) if quorum and (full or over) else None,
    )


def _since(known: float | None, now: float) -> float:
    return now if known is None else known


def joiners(view: Joining, now: float) -> list[str]:
    """Return the ids of the live nodes that wait for the next round, in rank order."""
    wanted = view.state.rounds + 1
    entries = [
        entry
        for entry in view.roster.values()
        if entry.name.phase is Phase.JOINING
        and entry.name.round == wanted
        and (entry.name.node_id == view.me or is_alive(entry, now, view.settings.lease))
    ]
    return [entry.name.node_id for entry in sorted(entries, key=lambda entry: _rank(view.state, entry))]


def _rank(state: RunState, entry: Seen) -> tuple[object, ...]:
    """Order nodes as Slurm does where it told, else by name with numbers as numbers."""
    name = entry.name
    known = state.expected.index(name.node) if name.node in state.expected else len(state.expected)
    return (known, natural(name.node), name.node_id)


def missing(view: Joining, ready: Iterable[str], now: float) -> tuple[str, ...]:
    """Return the names of the nodes that may still come to the next round.

    Before the first round of an epoch these are the nodes Slurm has given; later the members of the
    last round and everybody else who is alive.
    """
    in_already = {node_id.rpartition(".")[0] for node_id in ready}
    alive = {entry.name.node for entry in view.roster.values() if is_alive(entry, now, view.settings.lease)}
    first = view.state.round is None
    may_come = alive | set(view.state.expected) if first else alive
    return tuple(sorted(may_come - in_already - (view.state.lost - alive), key=natural))


def lost_members(running: RoundFormed, roster: Roster, settings: RendezvousSettings, now: float) -> list[str]:
    """Return the node names of members whose lease has run out, or who left while the round runs."""
    lost = []
    for member in running.members:
        seen = roster.get(member.node_id)
        if seen is None or seen.name.phase is Phase.SUCCEEDED:
            continue
        if not is_alive(seen, now, settings.lease):
            lost.append(member.node)
    return lost


def watch_every(group_rank: int) -> int:
    """Return every how many heartbeats a member looks at its peers.

    The first three look each time, the others now and then in case all three are lost at once: the
    cost of watching grows with the number of nodes, not with its square.
    """
    return 1 if group_rank < PROPOSERS else 5


def all_in(running: RoundFormed, roster: Roster, phases: frozenset[Phase]) -> bool:
    """Tell whether every member of the round is known to be in one of these phases."""
    known = (roster.get(member.node_id) for member in running.members)
    return all(
        entry is not None
        and entry.name.phase in phases
        and (entry.name.round == running.number or entry.name.phase is Phase.LEFT)
        for entry in known
    )


def is_proposer(formed: RoundFormed, node_id: str) -> bool:
    """Tell whether a member is one of the few that gather what all members have told."""
    return any(member.node_id == node_id for member in formed.members[:PROPOSERS])


def stop_step(node_ids: Iterable[str], told: Mapping[str, int]) -> int | None:
    """Return the step at which all ranks can stop, or None while a member has not told its own.

    Each node tells the first step at which all its ranks can still stop, so the highest of these is
    reached by everybody and passed by nobody. -1 if no worker of the round asks whether to stop.
    """
    steps = [told.get(node_id) for node_id in node_ids]
    known = [step for step in steps if step is not None]
    return max(known) if known and len(known) == len(steps) else None
