"""One agent's own mark among the members, and its view of the others."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count

from hpc_elastic.clock import Clock
from hpc_elastic.errors import DamagedError, RendezvousStateError, RunDirError, StoreError
from hpc_elastic.meet.member_names import (
    TERMINAL,
    MemberName,
    Phase,
    Roster,
    Seen,
    Suspicion,
    are_beats,
    forgive,
    is_news,
    moved,
    newest_record,
    parse_name,
    parse_suspicion,
    suspicions_in,
)
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import is_newer, start_of
from hpc_elastic.record.journal import MEMBERS, Epoch, Member, Port
from hpc_elastic.store.protocol import Store
from hpc_elastic.typed_json import decode, parse

NODES = "nodes"
RUN_ID = "run_id.json"  # among them where the agents are not ours, but torchrun's
STEPS = "steps"


class NodeFacts(NamedTuple):
    """The contribution of a node to a round."""

    member: Member
    host: str  # name of the machine, to tell whether two nodes share one
    addr: str  # address under which workers on other nodes reach this one


class Offer(NamedTuple):
    """A node as its own file describes it; `port` is free on that node when it joins."""

    member: Member
    host: str
    addr: str
    port: Port


def _offer_name(node_id: str, round_number: int) -> str:
    return f"{node_id}.{round_number}.json"


class Membership:
    """Beats for this agent and watches the others."""

    def __init__(
        self, store: Store, clock: Clock, facts: NodeFacts, epoch: Epoch, settings: MeetingSettings
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self.facts = facts
        self.node_id = facts.member.node_id  # this agent's id in the roster
        self._task = start_of(self.node_id)  # None: it is no array task's
        self.epoch = epoch
        self.roster: Roster = {}
        self.changes = 0  # how often the roster has changed by more than heartbeats
        self._offered = ""  # name of this agent's own offer
        self._listed: set[str] = set()  # names of the last look: these are no news
        self.suspicions: frozenset[Suspicion] = frozenset()
        self.suspected_at: dict[Suspicion, float] = {}  # when this agent told its own [s]
        self.newest_record = 0  # number of the newest journal record that anybody tells of
        self.known = 0  # number of the newest journal record this agent has read; told with each beat
        self.tell_steps: Callable[[], str] = str  # the steps of the ranks, told with each beat
        self._name: MemberName | None = None
        self._text = ""  # the same as its file name
        self._steps: dict[tuple[int, str], int] = {}  # told, by round and node id; a told step stays
        self._beat_at = float("-inf")
        self._was_blind = False  # since the last look

    def offer(self, round_number: int, port: int) -> None:
        """Publish this node's contribution to a round.

        Each round has a file of its own: one that replaces another can be hidden by it for half a
        minute from a client of NFS that has read the other.
        """
        member = self.facts.member
        offer = [list(member), self.facts.host, self.facts.addr, port]
        name = _offer_name(self.node_id, round_number)
        self._store.put(NODES, name, json.dumps(offer).encode())
        if self._offered not in ("", name):
            self._store.unmark(NODES, self._offered)
        self._offered = name

    def read_offer(self, node_id: str, round_number: int) -> Offer | None:
        """Return another node's contribution to a round, or None if it cannot be read yet."""
        data = self._store.get(NODES, _offer_name(node_id, round_number))
        if not data:
            return None
        try:
            return decode(Offer, parse(data))
        except DamagedError as error:
            name = _offer_name(node_id, round_number)
            raise RendezvousStateError(f"{NODES}/{name}, the offer of a node, is damaged: {error}") from None

    def set_phase(self, phase: Phase, round_number: int) -> None:
        """Publish this agent's phase; counts as a heartbeat."""
        old = self._name
        counter = 0 if old is None else old.counter + 1
        steps = self.tell_steps() if phase is Phase.RUNNING else ""
        new = MemberName(self.node_id, self.epoch, phase, round_number, counter, self.known, steps)
        text = new.text()
        self._store.mark(MEMBERS, text, instead_of=self._text or None)
        self._name, self._text = new, text
        now = self._clock.monotonic()
        self._was_blind = self._was_blind or self._was_away(now)  # this beat hides it from the next look
        self._beat_at = now

    def ensure_phase(self, phase: Phase, round_number: int) -> None:
        """Publish this agent's phase unless it is the published one."""
        name = self._name
        if name is None or (name.phase, name.round) != (phase, round_number):
            self.set_phase(phase, round_number)

    def leave(self, round_number: int) -> None:
        """Publish that this agent is gone on purpose, unless its published phase is final already."""
        if self._name is None or self._name.phase not in TERMINAL:
            self.set_phase(Phase.LEFT, round_number)

    def beat_if_due(self) -> None:
        """Advance this agent's counter once per heartbeat interval."""
        name = self._name
        due = self._beat_at + self._settings.heartbeat_interval
        if name is not None and self._clock.monotonic() >= due:
            self.set_phase(name.phase, name.round)

    def look(self, *, steps: bool = False) -> Roster:
        """List the members and return the roster.

        An observer that could not look for most of a lease (it was stopped, or its own I/O stalled)
        was blind: it starts all leases anew instead of passing verdicts.

        Args:
            steps: list the told steps, too.
        """
        before = self._clock.monotonic()
        names = self._store.list(MEMBERS)
        now = self._clock.monotonic()
        if steps:
            self._note_steps(self._store.list(STEPS))
        half = self._settings.lease / 2
        listed = set(names)
        new, self._listed = listed - self._listed, listed
        found = moved(self.roster, new, self.epoch, now)
        if self._name is not None:  # a stale listing may not show the own name yet
            found[self.node_id] = Seen(self._name, now)
        is_blind = now - before > half or self._was_away(before) or self._was_blind
        if is_blind or not are_beats(self.roster, found, self._settings.lease):
            self.changes += 1
        roster = {**self.roster, **found}
        if is_blind:
            roster = forgive(roster, now)
            self.suspected_at.clear()
            self._was_blind = False
        self.roster = roster
        self.suspicions = suspicions_in(names, self.epoch)
        self.newest_record = max(self.newest_record, newest_record(new, found))
        return roster

    def tell_news(self) -> None:
        """Beat at once, so that observers of the members learn of a new journal record."""
        name = self._name
        if name is not None and name.phase is not Phase.LEFT:
            self.set_phase(name.phase, name.round)

    def suspect(self, suspicion: Suspicion) -> None:
        """Tell the other observers that a member is silent by this agent's clock.

        If another one has taken the mark away, the time to object starts anew. A file system that
        takes no new names stops no heartbeat: the mark is tried again at the next look.
        """
        if suspicion in self.suspicions:
            self.suspected_at.setdefault(suspicion, self._clock.monotonic())
            return
        with suppress(StoreError):
            self._store.mark(MEMBERS, suspicion.text())
            self.suspected_at[suspicion] = self._clock.monotonic()

    def object_to_refuted(self) -> None:
        """Take away the suspicions of members that have beaten since, from any observer."""
        for suspicion in self.suspicions:
            seen = self.roster.get(suspicion.node_id)
            if seen is not None and seen.name.counter > suspicion.counter:
                with suppress(StoreError):
                    self._store.unmark(MEMBERS, suspicion.text())

    def keep_suspected(self, node_ids: Collection[str]) -> None:
        """Forget the times of all other suspicions: only a lasting suspicion makes a member lost."""
        kept = {one: at for one, at in self.suspected_at.items() if one.node_id in node_ids}
        self.suspected_at = kept

    def forgive(self) -> None:
        """Start all leases anew: this observer could not see."""
        self.changes += 1
        self.roster = forgive(self.roster, self._clock.monotonic())

    def _was_away(self, now: float) -> bool:
        """Tell whether this agent itself has not beaten for most of a lease."""
        return now - self._beat_at > self._settings.lease / 2 + self._settings.heartbeat_interval

    def next_beat_at(self) -> float:
        """Return the monotonic time of the next heartbeat [s]."""
        return self._beat_at + self._settings.heartbeat_interval

    def remove_older(self) -> None:
        """Take away the names that earlier epochs have left behind."""
        for text in self._store.list(MEMBERS):
            name = parse_name(text) or parse_suspicion(text)
            if is_news(text) or (name is not None and name.epoch < self.epoch):
                self._store.unmark(MEMBERS, text)

    def remove_outdated(self) -> None:
        """Take away the names that earlier starts of this agent's task have left behind, if it is one's."""
        mine = self._task
        names = [name for name in self._listed if f"@{mine.task}-" in name] if mine is not None else []
        for text in names:
            name = parse_name(text)
            if name is not None and is_newer(self.node_id, than=name.node_id):
                with suppress(StoreError):
                    self._store.unmark(MEMBERS, text)

    def tell_step(self, round_number: int, step: int) -> None:
        """Tell the first step at which this node's ranks can all stop; -1 if none of them says."""
        name = f"{round_number}+{self.node_id}+{step}"
        self._store.mark(STEPS, name)
        self._note_steps([name])

    def told_steps(self, round_number: int) -> dict[str, int]:
        """Return the steps told for a round, by node id, as far as the looks have shown them."""
        return {node_id: step for (number, node_id), step in self._steps.items() if number == round_number}

    def _note_steps(self, names: Iterable[str]) -> None:
        for name in names:
            number, _, rest = name.partition("+")
            node_id, _, step = rest.rpartition("+")
            if number.isdecimal() and step.removeprefix("-").isdecimal():  # else the name is none of ours
                self._steps[int(number), node_id] = int(step)


def claim_node_name(wanted: str, run_dir: str) -> tuple[str, int]:
    """Return a name, and a file descriptor that keeps it for this process: the kernel lets go of both.

    Args:
        wanted: the name, if no agent on this host has it in the run; else a number follows.
        run_dir: the directory of the run.

    Raises:
        RunDirError: no name can be claimed on this host.
    """
    import socket  # noqa: PLC0415 - not needed below Slurm

    run = f"{os.geteuid()}/{zlib.crc32(os.path.realpath(run_dir).encode()):08x}"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for name in _names(wanted):
        try:
            claim.bind(f"\0hpc_elastic/{run}/{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                claim.close()
                raise RunDirError(
                    f"the node name {name!r} cannot be claimed: {error.strerror}",
                    where=f"run directory {run_dir}",
                    fix="give each agent a --node-rank",
                ) from error
        else:
            return name, claim.detach()
    raise RuntimeError("numbers have come to an end")


def _names(wanted: str) -> Iterator[str]:
    return chain([wanted], (f"{wanted}-{number}" for number in count(2)))
