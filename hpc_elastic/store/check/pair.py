"""Whether several nodes see one directory, tried by one process on each of them at the same time.

The processes find each other through the directory alone: each tells by a name that it is there. The
one with the lowest rank among those it sees leads; the others answer it. Everything is a name in one
small directory, which all list again and again, because runs rest on listings, too:

    here+<rank>+<node>                      I am here; the content says on which mount
    ping+<leader>+<k>                       who sees this name?
    pong+<leader>+<k>+<rank>+<wall ms>      I do, and my clock says so much
    locked+<leader>                         I hold the lock: try it
    tried+<leader>+<rank>+<answer>          held, free, or the name of the error
    released+<leader>                       I let go: take it
    got+<leader>+<rank>+<answer>            the lock after so many ms, never, or the name of the error
    end+<leader>, bye+<leader>+<rank>       that was all

Each wait is bounded, so a node that dies on the way is named and not waited for again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import DamagedError, StoreError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store import files
from hpc_elastic.store.check import probe
from hpc_elastic.store.mount import UNKNOWN, Mount, listing_staleness, mount_at
from hpc_elastic.typed_json import decode, parse

T = TypeVar("T")
PREFIX = ".hpc_elastic-doctor-"
PINGS = 5
HELD, FREE, NEVER = "held", "free", "never"
_LOCK = "lock"
_POLL_S = 0.005
_POLL_PER_NODE_S = 0.001  # so that many nodes list no more often together
_SLOW_S = 3.0  # when a name takes so long to be seen, one is enough


class PairMember(NamedTuple):
    """One of the processes."""

    rank: int  # 0 is the first node
    node: str


class PairLimits(NamedTuple):
    """How long each wait may take [s]."""

    meet: float = 30.0  # until all are there; they start one after the other
    step: float = 15.0  # until all have answered
    get: float = 5.0  # until a released lock is had


_LONGEST_CACHE_S = 60.0  # the check does not wait for a longer one


def limits_on(mount: Mount) -> PairLimits:
    """Return limits that leave time for a name to be seen there, and for the answer to it."""
    stale_s = min(listing_staleness(mount), _LONGEST_CACHE_S)
    return PairLimits(PairLimits().meet + stale_s, PairLimits().step + 2 * stale_s)


class PeerFindings(NamedTuple):
    """The leader's findings about another node."""

    rank: int
    node: str
    mount: Mount
    delay_s: float | None = None  # until a name is seen there [s]
    clock_s: float | None = None  # its wall clock less the leader's [s]
    tried: str = ""  # its try at the lock that the leader held: `HELD`, `FREE`, or an error
    got: str = ""  # after the release: how long it took [ms], `NEVER`, or an error
    silent_at: str = ""  # the question that it did not answer any more


class PairProbe(NamedTuple):
    """One node's view of the others in a directory."""

    path: str
    me: PairMember
    mount: Mount
    number_of_nodes: int  # that should be there
    peers: tuple[PeerFindings, ...]  # those that are, by rank; only the leader knows more than their mounts
    lock_error: str = ""  # why the leader could not take the lock
    error: str = ""  # why this node could not go on

    @property
    def leads(self) -> bool:
        """Whether this node has the lowest rank of those it sees."""
        return all(self.me.rank < peer.rank for peer in self.peers)


def probe_pair(
    path: str,
    me: PairMember,
    number_of_nodes: int,
    meeting: str,
    *,
    limits: PairLimits | None = None,
    clock: Clock | None = None,
) -> PairProbe:
    """Meet the other nodes in a directory and try it out with them.

    Args:
        path: the directory, the same words on all nodes; must exist.
        me: this process.
        number_of_nodes: how many take part, each with another rank.
        meeting: names this meeting; all its nodes give the same, and no other meeting ever does.
        limits: how long to wait for others; `limits_on` the mount by default.
        clock: measures the waits.

    Returns:
        This node's view. It never waits much longer than the limits, and leaves nothing behind.
    """
    mount = mount_at(path)
    limits = limits or limits_on(mount)
    there = _Meeting(os.path.join(path, PREFIX + meeting), number_of_nodes, limits, clock)
    found = PairProbe(path, me, mount, number_of_nodes, ())
    try:
        there.enter(me, mount)
        found = found._replace(peers=there.meet(me))
        if found.leads:
            return _lead(there, found)
        return found._replace(error=_follow(there, found))
    except (OSError, StoreError) as error:
        return found._replace(error=str(error))


class _Meeting:
    """The directory in which the nodes meet."""

    def __init__(self, directory: str, number_of_nodes: int, limits: PairLimits, clock: Clock | None) -> None:
        self.directory = directory
        self.limits = limits
        self.clock = clock or SystemClock()
        self._wanted = number_of_nodes
        self._poll_s = max(_POLL_S, _POLL_PER_NODE_S * number_of_nodes)

    def enter(self, me: PairMember, mount: Mount) -> None:
        """Say that this node is here.

        Raises:
            StoreError: the directory of the meeting belongs to another user.
        """
        try:
            os.mkdir(self.directory, 0o700)
        except FileExistsError:
            if os.lstat(self.directory).st_uid != os.geteuid():
                raise StoreError(f"{self.directory} belongs to another user") from None
        name = f"here+{me.rank}+{me.node.replace('+', '_')}"
        files.replace(os.path.join(self.directory, name), json.dumps(mount).encode(), durable=False)

    def names(self) -> list[str]:
        """Return the names that are there now."""
        return files.list_names(self.directory)

    def tell(self, *words: object) -> None:
        """Publish a name; after the end of the meeting no node reads it."""
        try:
            files.touch_name(self.directory, "+".join(map(str, words)))
        except FileNotFoundError:
            pass

    def said(self, *words: object) -> list[list[str]]:
        """Return the words that follow these in all names that begin with them."""
        start = "+".join([*map(str, words), ""])
        return [name[len(start) :].split("+", 1) for name in self.names() if name.startswith(start)]

    def until(self, look: Callable[[], T], limit_s: float) -> T:
        """Look until a result is true; return that of the last look, also when time is up."""
        deadline = self.clock.monotonic() + limit_s
        while not (seen := look()) and self.clock.monotonic() < deadline:
            self.clock.sleep(self._poll_s)
        return seen

    def meet(self, me: PairMember) -> tuple[PeerFindings, ...]:
        """Wait for all nodes; return those that came."""
        self.until(lambda: len(self.said("here")) >= self._wanted, self.limits.meet)
        others = [PairMember(int(rank), node) for rank, node in self.said("here") if int(rank) != me.rank]
        return tuple(PeerFindings(*each, self._mount_of(each)) for each in sorted(others))

    def _mount_of(self, member: PairMember) -> Mount:
        data = files.read(os.path.join(self.directory, f"here+{member.rank}+{member.node}"))
        try:
            return decode(Mount, parse(data or b""))
        except DamagedError:
            return UNKNOWN

    def open_lock(self) -> probe.OpenFile:
        """Open the lock file."""
        return probe.OpenFile(os.path.join(self.directory, _LOCK), os.O_RDWR | os.O_CREAT)

    def end(self) -> None:
        """Take the meeting away."""
        probe.remove(self.directory)


# The leader


def _lead(there: _Meeting, found: PairProbe) -> PairProbe:
    try:
        peers = {peer.rank: peer for peer in found.peers}
        if peers:
            _ping(there, found.me.rank, peers)
            error = _try_lock(there, found.me.rank, peers)
            found = found._replace(peers=tuple(peers.values()), lock_error=error)
            there.tell("end", found.me.rank)
            _gather(there, ("bye", found.me.rank), peers, "")
        return found
    finally:
        there.end()


def _gather(
    there: _Meeting, question: tuple[object, ...], peers: dict[int, PeerFindings], what: str
) -> dict[int, tuple[float, str]]:
    """Collect the answers of all nodes that still answer; note the others.

    Args:
        there: the meeting.
        question: how the names of the answers begin; rank and answer follow.
        peers: all others; a node that falls silent is marked in it.
        what: the request to them, for people.

    Returns:
        For each rank when its answer was seen [s after the question] and the answer.
    """
    asked_at = there.clock.monotonic()
    expected = {rank for rank, peer in peers.items() if not peer.silent_at}
    answers: dict[int, tuple[float, str]] = {}

    def all_answered() -> bool:
        for rank, *rest in there.said(*question):
            answers.setdefault(int(rank), (there.clock.monotonic() - asked_at, "".join(rest)))
        return expected <= answers.keys()

    there.until(all_answered, there.limits.step)
    for rank in expected - answers.keys():
        peers[rank] = peers[rank]._replace(silent_at=what or "its end")
    return answers


def _ping(there: _Meeting, me: int, peers: dict[int, PeerFindings]) -> None:
    """Measure how long a name takes to be seen: half of the way there and back; and the clocks."""
    delays: dict[int, list[float]] = {rank: [] for rank in peers}
    for number in range(PINGS):
        sent = there.clock.wall()
        there.tell("ping", me, number)
        answers = _gather(there, (f"pong+{me}+{number}",), peers, "the question whether it sees a name")
        for rank, (taken_s, wall_ms) in answers.items():
            delays[rank].append(taken_s / 2)
            clock_s = int(wall_ms) / 1e3 - (sent + taken_s / 2)
            peers[rank] = peers[rank]._replace(clock_s=clock_s)
        if any(taken_s > _SLOW_S for taken_s, _ in answers.values()):
            break
    for rank, measured in delays.items():
        if measured:
            peers[rank] = peers[rank]._replace(delay_s=sorted(measured)[len(measured) // 2])


def _try_lock(there: _Meeting, me: int, peers: dict[int, PeerFindings]) -> str:
    """Hold the lock while the others try it, then let them have it; return why that is impossible."""
    try:
        with closing(there.open_lock()) as file:
            if not probe.try_lock(file.fd):
                return "a free lock cannot be acquired"
            there.tell("locked", me)
            for rank, (_, answer) in _gather(there, ("tried", me), peers, "the try at the lock").items():
                peers[rank] = peers[rank]._replace(tried=answer)
    except OSError as error:
        return error.strerror or str(error)
    there.tell("released", me)
    for rank, (_, answer) in _gather(there, ("got", me), peers, "taking the released lock").items():
        peers[rank] = peers[rank]._replace(got=answer)
    return ""


# The others


def _follow(there: _Meeting, found: PairProbe) -> str:
    """Answer the leader until it says that this was all; return the error."""
    leader = found.peers[0]
    answered: set[str] = set()
    orders = tuple(f"{word}+{leader.rank}" for word in ("ping", "locked", "released"))

    def next_order() -> str:
        """Return the new request, `end` at the end, and nothing while there is none."""
        names = there.names()
        if not names or f"end+{leader.rank}" in names:  # taken away already
            return "end"
        fresh = [name for name in names if name.startswith(orders) and name not in answered]
        return min(fresh, key=lambda name: (orders.index("+".join(name.split("+")[:2])), name), default="")

    patience_s = there.limits.meet + there.limits.step  # the leader may wait so long for others
    while order := there.until(next_order, patience_s):
        if order == "end":
            there.tell("bye", leader.rank, found.me.rank)
            return ""
        answered.add(order)
        _answer(there, found.me.rank, order)
    there.end()
    return f"{leader.node}, which led the check, fell silent"


def _answer(there: _Meeting, me: int, order: str) -> None:
    word, leader, *rest = order.split("+")
    if word == "ping":
        there.tell("pong", leader, rest[0], me, int(there.clock.wall() * 1e3))
    elif word == "locked":
        there.tell("tried", leader, me, _try_once(there))
    else:
        there.tell("got", leader, me, _get(there))


def _try_once(there: _Meeting) -> str:
    try:
        with closing(there.open_lock()) as file:
            return FREE if probe.try_lock(file.fd) else HELD
    except OSError as error:
        return _name_of(error)


def _get(there: _Meeting) -> str:
    """Take the lock for a moment, as others want it too; return how long that took."""
    before = there.clock.monotonic()
    try:
        with closing(there.open_lock()) as file:
            if not there.until(lambda: probe.try_lock(file.fd), there.limits.get):
                return NEVER
            return str(int((there.clock.monotonic() - before) * 1e3))
    except OSError as error:
        return _name_of(error)


def _name_of(error: OSError) -> str:
    """Return an error as a word that can stand in a file name."""
    return errno.errorcode.get(error.errno or 0, "EIO")
