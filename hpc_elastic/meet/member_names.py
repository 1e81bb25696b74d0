"""The members: the names in ``members/``, and the time at which this node saw each one change. Pure.

A member advances a counter in its own name. An observer never looks at another node's clock: a
member is alive while its name keeps changing by the observer's own monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import MARK, start_of
from hpc_elastic.record.journal import NEWS, Epoch

_WORD = -1  # sorts words before numbers
_NO_STEP = "_"  # in place of a rank's step
_MOST_RANKS = 32  # whose steps are in a name
_TOO_LARGE = 10**18


class Phase(str, Enum):
    """The phase of a member, as its name has it."""

    JOINING = "joining"  # no workers; wants the next round
    RUNNING = "running"
    STOPPED = "stopped"  # workers gone after a drain or a failure
    SUCCEEDED = "succeeded"  # all workers ended well; terminal
    LEFT = "left"  # gone on purpose; terminal
    ABSENT = "absent"  # ended before it told its name: the job script's epilog tells it; terminal


TERMINAL = (Phase.SUCCEEDED, Phase.LEFT, Phase.ABSENT)  # phases of members that need no heartbeat any more
GONE = (Phase.STOPPED, Phase.SUCCEEDED)  # phases of members whose workers are gone


class MemberName(NamedTuple):
    """The facts in a member's file name."""

    node_id: str  # <node>.<pid>
    epoch: Epoch
    phase: Phase
    round: int  # joining: the round it wants; else the round it is or was in
    counter: int
    known: int = 0  # number of the newest journal record it has read
    steps: str = ""  # the steps of its running ranks, see `steps_text`; empty: they report none

    @property
    def node(self) -> str:
        """The node's name."""
        return self.node_id.rpartition(".")[0]

    def text(self) -> str:
        """Return the file name."""
        numbers = (str(self.round), str(self.counter), str(self.known))
        steps = (self.steps,) if self.steps else ()
        return "+".join((self.node_id, _epoch_text(self.epoch), self.phase.value, *numbers, *steps))

    @property
    def rank_steps(self) -> tuple[int | None, ...]:
        """The newest step of each of its ranks, None for one that has done none; empty: they report none."""
        least, _, ahead = self.steps.partition("-")
        return tuple(None if mark == _NO_STEP else int(least) + int(mark) for mark in ahead)


def steps_text(steps: Sequence[int | None]) -> str:
    """Return the newest steps of ranks as one word: the least one, and how far each rank is ahead of it.

    A rank that is ten or more steps ahead is shown nine ahead.

    Args:
        steps: by local rank; None: no step yet.
    """
    told = [step for step in steps if step is not None]
    if not told or not 0 <= min(told) < _TOO_LARGE:
        return ""
    least = min(told)
    marks = (_NO_STEP if step is None else str(min(step - least, 9)) for step in steps[:_MOST_RANKS])
    return f"{least}-{''.join(marks)}"


class Seen(NamedTuple):
    """A member as one observer knows it."""

    name: MemberName
    changed_at: float  # observer's monotonic time of the last change [s]


Roster = Mapping[str, Seen]


def outdated(node_ids: Iterable[str]) -> frozenset[str]:
    """Return the ids of agents whose array task has been started anew, by the ids that are known."""
    tagged = (node_id for node_id in node_ids if MARK in node_id)
    starts = [(node_id, start) for node_id in tagged if (start := start_of(node_id)) is not None]
    newest: dict[str, tuple[int, ...]] = {}
    for _, start in starts:
        newest[start.task] = max(newest.get(start.task, start[1:]), start[1:])
    return frozenset(node_id for node_id, start in starts if start[1:] < newest[start.task])


class Suspicion(NamedTuple):
    """An observer's mark, in a file name: by its clock a member has not beaten for a lease."""

    node_id: str
    epoch: Epoch
    counter: int  # of the member when it was last seen; a higher one refutes the suspicion
    by: str  # node_id of the observer

    def text(self) -> str:
        """Return the file name."""
        epoch = _epoch_text(self.epoch)
        return "+".join((self.node_id, epoch, "suspected", str(self.counter), "by", self.by))


_N = "[0-9]{1,18}"  # no longer number is written by anybody
_EPOCH = rf"({_N}-{_N}-{_N}-{_N})"
_NAME = re.compile(rf"([^+/]+)\+{_EPOCH}\+([a-z]+)\+({_N})\+({_N})\+({_N})(?:\+({_N}-[0-9_]{{1,32}}))?")
_SUSPICION = re.compile(rf"([^+/]+)\+{_EPOCH}\+suspected\+({_N})\+by\+([^+/]+)")
_PHASES = {phase.value: phase for phase in Phase}
_NEWS = re.compile(rf"{re.escape(NEWS)}({_N})")


def parse_name(text: str) -> MemberName | None:
    """Return the facts in a file name, or None for a foreign name."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    node_id, epoch, word, round_number, counter, known, steps = found.groups()
    phase = _PHASES.get(word)
    if phase is None:
        return None
    number, count, record = int(round_number), int(counter), int(known)
    return MemberName(node_id, _epoch_of(epoch), phase, number, count, record, steps or "")


def parse_suspicion(text: str) -> Suspicion | None:
    """Return the suspicion in a file name, or None for any other name."""
    found = _SUSPICION.fullmatch(text)
    if found is None:
        return None
    node_id, epoch, counter, by = found.groups()
    return Suspicion(node_id, _epoch_of(epoch), int(counter), by)


@lru_cache(maxsize=64)
def _epoch_of(text: str) -> Epoch:
    return Epoch(*map(int, text.split("-")))


@lru_cache(maxsize=64)
def _epoch_text(epoch: Epoch) -> str:
    return epoch.text()


def suspicions_in(names: Iterable[str], epoch: Epoch) -> frozenset[Suspicion]:
    """Return the suspicions of an epoch in a listing."""
    found = [parse_suspicion(name) for name in names if "+suspected+" in name]
    return frozenset(suspicion for suspicion in found if suspicion and suspicion.epoch == epoch)


def is_news(name: str) -> bool:
    """Tell whether a name tells of a record."""
    return _NEWS.fullmatch(name) is not None


def newest_record(names: Iterable[str], roster: Roster) -> int:
    """Return the highest number of a journal record in the names; 0 if there is none."""
    news = (_NEWS.fullmatch(name) for name in names if name.startswith(NEWS))
    told = [int(found[1]) for found in news if found]
    return max((*told, *[entry.name.known for entry in roster.values()]), default=0)


def observe(roster: Roster, names: Iterable[str], epoch: Epoch, now: float) -> dict[str, Seen]:
    """Return the roster after one listing.

    A listing taken during a rename may show both names of a member or neither: the higher counter
    counts, and a member that is not listed keeps its entry (it ages, that is all).

    Args:
        roster: the entries so far.
        names: the listing of ``members/``.
        epoch: only members of this epoch count.
        now: the observer's monotonic time [s].
    """
    seen = {node_id: entry for node_id, entry in roster.items() if entry.name.epoch == epoch}
    return {**seen, **moved(seen, names, epoch, now)}


def moved(roster: Roster, names: Iterable[str], epoch: Epoch, now: float) -> dict[str, Seen]:
    """Return the entries that `observe` changes in a roster of this epoch alone."""
    found: dict[str, Seen] = {}
    for text in names:
        name = parse_name(text)
        if name is None or name.epoch != epoch:
            continue
        known = found.get(name.node_id) or roster.get(name.node_id)
        if known is None or name.counter > known.name.counter:
            found[name.node_id] = Seen(name, now)
    return found


def are_beats(roster: Roster, found: Mapping[str, Seen], lease: float) -> bool:
    """Tell whether changed members have only beaten, within the lease [s]: nothing follows from that."""
    return all(
        (old := roster.get(node_id)) is not None
        and (old.name.phase, old.name.round) == (new.name.phase, new.name.round)
        and new.changed_at - old.changed_at < lease
        for node_id, new in found.items()
    )


def absent(roster: Roster) -> list[str]:
    """Return the nodes whose agents have ended before they told their names, in their order."""
    nodes = {entry.name.node for entry in roster.values() if entry.name.phase is Phase.ABSENT}
    return sorted(nodes, key=natural)


def forgive(roster: Roster, now: float) -> dict[str, Seen]:
    """Return the roster as if everybody had just been seen: the observer itself was blind."""
    return {node_id: entry._replace(changed_at=now) for node_id, entry in roster.items()}


@lru_cache(maxsize=8192)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key under which ``node2`` comes before ``node10``."""
    parts = re.split(r"([0-9]+)", name)
    numbers_count = ((int(part), "") if index % 2 else (_WORD, part) for index, part in enumerate(parts))
    return (*numbers_count, (_WORD, name))  # the name itself tells 1 from 01
