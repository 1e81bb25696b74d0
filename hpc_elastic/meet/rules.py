"""The rules of the rendezvous: the next step of a node, given its knowledge; the order of nodes. Pure.

Nothing here reads a clock, a file or a setting of its own: state, roster and time are arguments,
so every rule can be tested by itself and run in a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from zlib import crc32

from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.meet.liveness import (
    STALL_LEASES,
    WATCHERS,
    is_alive,
    long_lost,
    silent,
    surely_silent,
)
from hpc_elastic.meet.member_names import TERMINAL, Phase, Roster, absent, natural, outdated
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import MARK, is_newer, start_of
from hpc_elastic.record.journal import Epoch, RoundFormed
from hpc_elastic.record.state import RunState, has_ended, is_released, other_job
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings

_ROUNDING_S = 1e-6  # two sums of the same times may differ by less
READ_S = 0.005  # time that the first node gets for each node of the round before the next one acts
MAX_INTERVAL_S = 86400.0  # a day between two heartbeats; the kernel's waits end at some weeks
ANNOUNCERS = 3  # nodes that announce a start of the run at once; the others give them time
CHANCE = 8  # the same where the names are not known: about so many, so that one in 3,000 starts has none


class MeetingSettings(NamedTuple):
    """Sizes and timeouts of the rendezvous; all times in seconds."""

    min_nodes: int = 1
    max_nodes: int = 1
    join_timeout: float = agents(JobSettings.join_timeout)  # how long a node waits for enough others
    # how long enough nodes wait for more, if more may come
    last_call_timeout: float = agents(JobSettings.last_call_timeout)
    heartbeat_interval: float = agents(JobSettings.heartbeat_interval)
    lease: float = agents(JobSettings.lease)  # a member that does not beat for so long is lost
    leader_patience: float = 1.0  # the first node forms the round; later the others may
    may_outgrow: bool = False  # whether the user may want more than max_nodes: an array can get more tasks


class PeerView(NamedTuple):
    """The others of the newest round, as one agent sees them after a look."""

    next_turn_at: float = 0.0  # see `SharedRun.next_turn_at`
    lost: tuple[str, ...] = ()  # members that have vanished while the round runs
    common_step: int | None = None  # see `SharedRun.common_step`
    # the rest is looked at when this node's workers are gone
    everyone_stopped: bool = False  # all live members' workers are gone
    everyone_succeeded: bool = False
    vanished: bool = False  # a member is gone without having said so
    moved_on: bool = False  # a member waits for the next round


class Waited(NamedTuple):
    """The times of a joining node's own waiting, by its monotonic clock [s]."""

    since: float
    quorum_since: float | None = None  # enough nodes are in since then
    complete_since: float | None = None  # all nodes that can come are in since then
    rounds: int = 0  # how many rounds there were when these times began


class Wait(NamedTuple):
    """Look again when something changes, at the latest after the heartbeat interval."""

    joined: int
    missing: tuple[str, ...]


class Announce(NamedTuple):
    """Announce this start of the run: no node has, and it is this node's turn."""


class LookFirst(NamedTuple):
    """Look at the members: the last look is too old to act on."""


class FormRound(NamedTuple):
    """Publish the next round with these nodes, in this order."""

    node_ids: tuple[str, ...]


class Joined(NamedTuple):
    """This node is a member of the running round."""

    round: RoundFormed


class AskToJoin(NamedTuple):
    """A round runs without this node and has room: ask its members to stop and re-form."""


class Spare(NamedTuple):
    """A full round runs without this node: stand by, without a deadline."""


class Dismissed(NamedTuple):
    """A full round runs without this node, and no more nodes are to stand by."""

    wanted: int


class LeaveRun(NamedTuple):
    """No further round will be formed in this epoch."""


class Fenced(NamedTuple):
    """A newer start of the run exists."""


class TooFew(NamedTuple):
    """The minimum cannot be reached: the deadline has passed, or too many nodes are lost."""

    have: int
    missing: tuple[str, ...]
    timed_out: bool
    ended: bool = False  # no agent waits any longer, as the missing ones have ended


Standing = AskToJoin | Spare | Dismissed | Joined
JoinStep = Wait | Announce | LookFirst | FormRound | AskToJoin | Spare
Refusal = Dismissed | LeaveRun | Fenced | TooFew
JoinAction = JoinStep | Joined | Refusal


class Joining(NamedTuple):
    """Everything a joining node knows."""

    state: RunState
    roster: Roster
    me: str  # node_id
    epoch: Epoch
    settings: MeetingSettings
    announces: bool = True  # whether this node is among the first to announce a start
    looked_at: float | None = None  # when this node last looked at the members [s]; None: just now
    gathering: Gathering | None = None  # the conclusions from all this that were drawn before and still hold

    @property
    def target(self) -> int:
        """The most nodes of a round: the user's number, within the job's bounds."""
        low, high = self.settings.min_nodes, self.settings.max_nodes
        wanted = self.state.wanted
        if wanted is None:
            return high
        return max(low, wanted if self.settings.may_outgrow else min(high, wanted))


class Gathering:
    """The conclusions from the members of a view at one time, each drawn once and when it is asked for.

    It costs time in proportion to the number of nodes, and holds until more than heartbeats happens.

    Args:
        view: the knowledge of a joining node.
        now: that node's time [s].
        changes: how often the roster has changed by more than heartbeats.
    """

    def __init__(self, view: Joining, now: float, changes: int = 0) -> None:
        self._view = view
        self._now = now
        self._changes = changes
        lease, ages = view.settings.lease, [now - entry.changed_at for entry in view.roster.values()]
        limits = (lease, STALL_LEASES * lease)
        left = [limit - age for limit in limits for age in ages if age < limit]
        self._left_s = min(left, default=float("inf"))  # until the next lease runs out

    def holds_for(self, view: Joining, now: float, changes: int) -> bool:
        """Tell whether the same follows from a later view: no record, no phase and no lease has changed."""
        same = self._view
        unchanged = changes == self._changes and view.state is same.state and view.settings is same.settings
        return unchanged and 0 <= now - self._now < self._left_s - _ROUNDING_S

    @cached_property
    def outdated(self) -> frozenset[str]:
        """The ids of agents whose task has been started anew."""
        return outdated(self._view.roster)

    @cached_property
    def ready(self) -> list[str]:
        """The ids of the live nodes that wait for the next round, in rank order."""
        view, now = self._view, self._now
        wanted, gone = view.state.rounds + 1, view.state.left | self.outdated
        ids = (
            node_id
            for node_id, entry in view.roster.items()
            if entry.name.phase is Phase.JOINING
            and entry.name.round == wanted
            and node_id not in gone
            and (node_id == view.me or is_alive(entry, now, view.settings.lease))
        )
        return in_rank_order(view.state.expected, ids)

    @cached_property
    def turn(self) -> int | None:
        """How many of those that wait form the round before this node does; None if it does not wait."""
        ready, me = self.ready, self._view.me
        return _in_turn(self._view, ready).index(me) if me in ready else None

    @cached_property
    def coming(self) -> frozenset[str]:
        """The names of the nodes that may still come to the next round."""
        return _may_come(self._view, self.ready, self._now)

    @cached_property
    def surely_coming(self) -> frozenset[str]:
        """The same for a verdict that would end this start of the job."""
        return _may_come(self._view, self.ready, self._now, only_sure=True)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The names of those that may still come, in their order."""
        return tuple(sorted(self.coming, key=natural))

    @cached_property
    def is_complete(self) -> bool:
        """Whether waiting longer cannot bring more nodes into the round."""
        return _everybody_in(self._view, self)

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """The nodes of the next round if it begins now, in the order of their ranks."""
        last = self._view.state.round
        return seats(last, choose(last, self.ready, self._view.target))


def gathering(view: Joining, now: float) -> Gathering:
    """Return the conclusions from the members of a view at a time [s]."""
    return view.gathering if view.gathering is not None else Gathering(view, now)


def join(view: Joining, waited: Waited, now: float) -> JoinAction:
    """Choose the next step of a node that wants to be in the next round."""
    state = view.state
    view = view._replace(gathering=gathering(view, now))
    if state.epoch > view.epoch or view.me in gathering(view, now).outdated:
        return Fenced()
    if state.epoch < view.epoch:
        return _before_the_start(view, waited, now)
    if state.leaving:
        return LeaveRun()
    if state.running is not None:
        return _beside_a_round(view, state.running, now)
    action = _between_rounds(view, waited, now)
    if isinstance(action, FormRound | TooFew) and _is_old(view, waited, action, now):
        return LookFirst()
    return action


def announces_at_once(node: str, expected: tuple[str, ...], settings: MeetingSettings) -> bool:
    """Tell whether a node announces a start of the run without giving others time.

    A lock and a durable record for each of a thousand nodes take longer than all else that they do to meet.

    Args:
        node: its name.
        expected: the names of all nodes, in their order; empty: not known.
        settings: the sizes of the rendezvous.
    """
    if expected:
        return node in expected[:ANNOUNCERS]
    return crc32(node.encode(errors="surrogateescape")) % max(1, settings.min_nodes // CHANCE) == 0


def _is_old(view: Joining, waited: Waited, action: FormRound | TooFew, now: float) -> bool:
    """Tell whether this node's last look at the others is too old for a conclusion.

    A look from before a deadline does not show the nodes that came at the last moment.
    """
    if view.looked_at is None:
        return False
    is_at_deadline = isinstance(action, TooFew) and action.timed_out and not action.ended
    is_before_it = is_at_deadline and view.looked_at < waited.since + view.settings.join_timeout
    return is_before_it or now - view.looked_at >= view.settings.lease / 2


def _before_the_start(view: Joining, waited: Waited, now: float) -> JoinAction:
    """Let the first nodes announce the start; the others do it only if they do not.

    A run that ends while its next start begins, by a late record, has none; a released one has.
    """
    is_over = view.state.ending is not None and not is_released(view.state, view.epoch)
    if is_over and view.epoch.submission == view.state.epoch.submission:
        return LeaveRun()
    if now - waited.since >= view.settings.leader_patience or view.announces:
        return Announce()
    return Wait(0, ())


def _beside_a_round(view: Joining, running: RoundFormed, now: float) -> Standing:
    if any(member.node_id == view.me for member in running.members):
        return Joined(running)
    replaces = any(is_newer(view.me, than=member.node_id) for member in running.members)
    if replaces or len(running.members) < view.target:
        return AskToJoin() if view.state.drain is None else Spare()
    spares = view.state.spares
    is_settled = view.state.drain is None  # else places may become free
    if spares is not None and is_settled and view.me in joiners(view, now)[spares:]:
        return Dismissed(view.target)
    return Spare()


def _between_rounds(view: Joining, waited: Waited, now: float) -> JoinAction:
    settings, here = view.settings, gathering(view, now)
    ready = len(here.ready)
    enough = ready >= settings.min_nodes and _enough(view, waited, now)
    if enough and view.me in here.chosen and _is_turn_of(here.chosen, view, waited, now):
        return FormRound(here.chosen)
    if ready < settings.min_nodes and view.state.expected:
        coming = here.surely_coming
        if ready + len(coming) < settings.min_nodes:
            if never := absent(view.roster):
                return TooFew(ready + len(coming), tuple(never), timed_out=True, ended=True)
            return TooFew(ready + len(coming), _gone(view.state, here.ready, coming), timed_out=False)
    if ready < settings.min_nodes and now - waited.since >= settings.join_timeout:
        return TooFew(ready, here.missing, timed_out=True)
    return Wait(ready, here.missing)


def _gone(state: RunState, ready: Iterable[str], coming: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the nodes that were in the last round, or are known as lost, and are not here."""
    here = {node_of(node_id) for node_id in ready}
    members = {member.node for member in state.round.members} if state.round else set()
    return tuple(sorted((members | state.lost) - here - coming, key=natural))


def _enough(view: Joining, waited: Waited, now: float) -> bool:
    if gathering(view, now).is_complete:
        return True
    since = waited.quorum_since
    return since is not None and now - since >= view.settings.last_call_timeout


def _everybody_in(view: Joining, here: Gathering) -> bool:
    """Tell whether waiting longer cannot bring more nodes into the round."""
    if len(here.ready) >= view.target:
        return not _others_go_first(view, here)
    nobody_knows_who_comes = view.state.round is None and not view.state.expected
    return not nobody_knows_who_comes and not here.coming


def _others_go_first(view: Joining, here: Gathering) -> bool:
    """Tell whether a living member of the last round is still to come and would take a place."""
    last = view.state.round
    if last is None:
        return False
    places = {member.node: place for place, member in enumerate(last.members)}
    highest = max(places.get(node_of(node_id), len(places)) for node_id in here.chosen)
    return any(places.get(node, len(places)) < highest for node in here.coming)


def _is_turn_of(chosen: tuple[str, ...], view: Joining, waited: Waited, now: float) -> bool:
    """Tell whether a node forms the round: the first at once, each further one a while later.

    The first reads the contributions of all others, so that it needs longer for more of them.
    """
    turn, since = _in_turn(view, chosen).index(view.me), waited.complete_since
    patience = max(view.settings.leader_patience, READ_S * len(chosen))
    return turn == 0 or (since is not None and now - since >= turn * patience)


def _in_turn(view: Joining, node_ids: Iterable[str]) -> list[str]:
    """Return nodes in the order in which they may form the round: those that look at the others come first.

    These are the first ones of the last round. Before it they are the first ones by rank where the names
    are known, else those that announce a start at once.
    """
    last, ordered = view.state.round, by_claim(view.state.round, node_ids)
    if last is not None or view.state.expected:
        return ordered
    return sorted(ordered, key=lambda one: not announces_at_once(node_of(one), (), view.settings))


def may_be_first(view: Joining, expected: tuple[str, ...]) -> bool:
    """Tell whether this node may have to form the next round, before any look at the others.

    Args:
        view: its knowledge.
        expected: the names of all nodes, in their order; empty: not known.
    """
    state, me = view.state, node_of(view.me)
    last = state.round if state.epoch == view.epoch else None
    members = [(one.node, one.node_id in state.left) for one in last.members] if last else []
    if (me, False) in members:
        there = (node for node, has_left in members if not has_left and node not in state.lost)
        return me in islice(there, WATCHERS)
    return view.announces or (bool(expected) and me not in expected)


def look_interval(view: Joining, now: float) -> float:
    """Return the time between two looks at the members while this node joins [s].

    Only those that may have to form the round look each time; the others wait for its record.
    """
    if is_among_the_first(view, now):
        return 0.0
    return max(view.settings.heartbeat_interval, 0.01 * nodes_known(view))


def nodes_known(view: Joining) -> int:
    """Return of how many nodes a joining node knows, by name or by number."""
    return max(len(view.roster), len(view.state.expected), view.settings.min_nodes)


def is_among_the_first(view: Joining, now: float) -> bool:
    """Tell whether this node may have to form the next round, by its turn among the waiting nodes.

    Before the start of the run is announced no node waits, and none has a turn to look for.
    """
    if view.state.epoch < view.epoch:
        return False
    turn = gathering(view, now).turn
    if turn is None:  # not seen yet: where the names are known, this node knows that it is none of the first
        return view.announces and not view.state.expected
    return turn < WATCHERS


def wait_on(view: Joining, waited: Waited, now: float) -> Waited:
    """Return the waiting times after a look.

    The last call of a round begins when the round before it has ended: until then no member can come back.
    """
    if view.state.running is not None or view.state.rounds != waited.rounds:
        waited = waited._replace(quorum_since=None, complete_since=None, rounds=view.state.rounds)
    if view.state.running is not None:
        return waited
    here = gathering(view, now)
    quorum = len(here.ready) >= view.settings.min_nodes
    over = waited.quorum_since is not None and (now - waited.quorum_since >= view.settings.last_call_timeout)
    return waited._replace(
        quorum_since=_since(waited.quorum_since, now) if quorum else None,
        complete_since=_since(waited.complete_since, now) if quorum and (over or here.is_complete) else None,
    )


def _since(known: float | None, now: float) -> float:
    return now if known is None else known


def joiners(view: Joining, now: float) -> list[str]:
    """Return the ids of the live nodes that wait for the next round, in rank order."""
    return gathering(view, now).ready


def missing(view: Joining, now: float) -> tuple[str, ...]:
    """Return the names of the nodes that may still come to the next round.

    Before the first round of an epoch these are the nodes Slurm has given; later the members of the
    last round and all other live nodes. A member that this node has not seen yet, because the
    round was over too soon, may be alive.
    """
    return gathering(view, now).missing


def _may_come(view: Joining, ready: Iterable[str], now: float, *, only_sure: bool = False) -> frozenset[str]:
    """Return the names of the nodes that may still come to the next round.

    Between rounds there is one observer, so that a verdict that would end this start of the job needs
    more than one lease: that on the batch host does, and with `only_sure` that on anybody.
    """
    in_already = {node_of(node_id) for node_id in ready}
    lease, last = view.settings.lease, view.state.round
    roster = _returning(view)
    before = frozenset() if only_sure else long_lost(roster, view.state, now, lease)
    entries = tuple(entry for node_id, entry in roster.items() if node_id not in before | {view.me})
    surely = surely_silent(entries, now, lease)
    quiet = surely if only_sure else silent(entries, now, lease)
    gone = view.state.left | outdated(roster) | before
    present = (entry.name for node_id, entry in roster.items() if node_id not in gone)
    beating = (name for name in present if name.phase not in TERMINAL)
    alive = {
        name.node
        for name in beating
        if name.node_id not in (surely if name.node == view.state.batch_host else quiet)
    }
    known = gone.union(roster)
    unseen = {member.node for member in last.members if member.node_id not in known} if last else set()
    unheard = set() if last else set(view.state.expected) - {node_of(node_id) for node_id in quiet}
    new = unheard - set(absent(roster))
    return frozenset((alive | unseen | new) - in_already - (view.state.lost - alive))


def _returning(view: Joining) -> Roster:
    """Return the roster in which members that have succeeded in a round that failed are on their way back.

    Such a member waits for the others' workers. It reads of their failure at its next look, and joins;
    until then its name says that it has succeeded. It beats meanwhile, so it is lost only by its lease.
    A name from before the last round says as little about a member of it.
    """
    last = view.state.round
    if last is None or view.state.running is not None or view.state.leaving:
        return view.roster
    back = {
        member.node_id: entry._replace(name=entry.name._replace(phase=Phase.STOPPED))
        for member in last.members
        if (entry := view.roster.get(member.node_id)) is not None and entry.name.phase is Phase.SUCCEEDED
    }
    return {**view.roster, **back}


def all_in(running: RoundFormed, roster: Roster, phases: frozenset[Phase]) -> bool:
    """Tell whether every member of the round is known to be in one of these phases."""
    known = (roster.get(member.node_id) for member in running.members)
    return all(
        entry is not None
        and entry.name.phase in phases
        and (entry.name.round == running.number or entry.name.phase is Phase.LEFT)
        for entry in known
    )


def has_moved_on(formed: RoundFormed, roster: Roster) -> bool:
    """Tell whether a member of the newest round waits for the next one."""
    known = [entry.name for member in formed.members if (entry := roster.get(member.node_id)) is not None]
    return any(name.phase is Phase.JOINING and name.round > formed.number for name in known)


def is_proposer(formed: RoundFormed, node_id: str) -> bool:
    """Tell whether a member is one of the few that gather the steps of all members."""
    return any(member.node_id == node_id for member in formed.members[:WATCHERS])


def stop_step(node_ids: Iterable[str], told: Mapping[str, int]) -> int | None:
    """Return the step at which all ranks can stop, or None while a member has not told its own.

    Each node tells the first step at which all its ranks can still stop, so the highest of these is
    reached by all ranks and passed by none. -1 if no worker of the round asks whether to stop.
    """
    steps = [told.get(node_id) for node_id in node_ids]
    known = [step for step in steps if step is not None]
    return max(known) if known and len(known) == len(steps) else None


def sizes_text(settings: MeetingSettings) -> str:
    """Return for how many nodes an agent was started: ``MIN:MAX``; empty if others may differ."""
    return "" if settings.may_outgrow else f"{settings.min_nodes}:{settings.max_nodes}"


def refuse_stranger(
    state: RunState, epoch: Epoch, job_id: str, settings: MeetingSettings, place: str
) -> None:
    """Refuse to join agents of a run that are not this agent's.

    Two jobs that begin at the same moment in one fresh directory both take it for theirs, and so does a job
    of a script that was queued twice; the first record decides. A refused agent has started and written
    nothing yet. In array mode a run may have several arrays.

    Args:
        state: the run.
        epoch: the start that this agent belongs to.
        job_id: this agent's job; empty outside Slurm.
        settings: of this agent.
        place: the run directory.

    Raises:
        InputError: they belong to another job, or were started with another --nnodes.
    """
    other = "" if settings.may_outgrow else other_job(state, epoch, job_id)
    if other and not has_ended(state):
        raise RunDirError(
            f"job {other} has begun the run in it, this is job {job_id}; nothing was started",
            where=f"run directory {place}",
            fix="give each job a --run-dir of its own, for example with $SLURM_JOB_ID in its name",
        )
    own = sizes_text(settings)
    if state.epoch == epoch and own and state.sizes not in ("", own):
        raise InputError(
            f"this agent was started with {_flag(own)}, the others with {_flag(state.sizes)}",
            where="--nnodes",
            fix=f"give all agents of a run the same --nnodes; they meet in {place}",
        )


def _flag(sizes: str) -> str:
    """Return sizes as people give them: ``2:2`` is ``--nnodes 2``."""
    least, _, most = sizes.partition(":")
    return f"--nnodes {least if least == most else sizes}"


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
