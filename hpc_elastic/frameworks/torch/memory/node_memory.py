"""The states of a run in the memory of its nodes, and the choice of the state to begin from.

A round begins from the newest whole state: one that a rank has kept when another one has failed, the copies
of all ranks of one step, or the newest checkpoint in files. A state in memory counts only for the round after
the one that has kept it: a record beside the checkpoints names the newest round, and the state that it has
begun from. So a node that has stood by for some rounds brings no old state back. The record also has a random
number, so that a run which was removed and begun anew believes nothing of the old one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from hpc_elastic.errors import DamagedError, HpcElasticError, InputError
from hpc_elastic.frameworks.torch.memory.copies import (
    TOKEN_BYTES,
    Content,
    Copied,
    CopySet,
    MemorySource,
    Rescued,
    Slot,
    complete_sets,
    found_copies,
    found_in,
    part_of,
)
from hpc_elastic.frameworks.torch.memory.layout import without_collections
from hpc_elastic.frameworks.torch.memory.memory_copies import CopyStart, MemoryCopies, Replicas
from hpc_elastic.frameworks.torch.memory.rescue import Rescue, new_rescue, tell_not_kept
from hpc_elastic.frameworks.torch.rank_groups import RankGroups, own_parameter
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState
from hpc_elastic.frameworks.torch.trees import WHERE
from hpc_elastic.ids import Env, copy_prefix
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import went_back_since
from hpc_elastic.record.journal import Cause, Record, RoundEnded
from hpc_elastic.record.run_log import read_records
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.typed_json import Count, read

logger = logging.getLogger(__name__)
BEGAN = "began.json"
FILE, RESCUED, MEMORY, REPLICA = "file", MemorySource.kind, "memory", "replica"  # the source of a state
_KILLED = -9
_MOST_RECOVERED = 1000  # rounds that the record names
_SENT = 1 << 28  # bytes that are sent at once
_Kept = TypeVar("_Kept", Rescued, CopySet)


class Began(NamedTuple):
    """The state that the workers of a round have begun from.

    Attributes:
        round: the newest one that has begun.
        from_round: that has kept the state which it began from; None: it began from a checkpoint.
        from_step: steps completed in that state.
        token: random, the same for all rounds of the run.
        recovered: the newest rounds whose state in memory the next one has begun from.
        source: of that state: ``rescued``, ``memory``, ``replica`` (of a rank at least) or ``file``.
    """

    round: Count
    from_round: Count | None = None
    from_step: Count | None = None
    token: str = ""
    recovered: tuple[Count, ...] = ()
    source: str = FILE


def write_began(folder: str, began: Began) -> None:
    """Record the state that a round begins from.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    files.replace(os.path.join(folder, BEGAN), json.dumps(began._asdict()).encode() + b"\n")


def read_began(folder: str) -> Began | None:
    """Return the record of the newest round; None without one."""
    try:
        return read(Began, read_plain(os.path.join(folder, BEGAN)))
    except (OSError, DamagedError):
        return None


class NodeStates(NamedTuple):
    """The states in the memory of one rank's node."""

    folder: str  # there; no other node has one of this name. Empty: nothing is kept there
    rescued: Sequence[Rescued] = ()  # states that ranks have kept when others had failed
    copies: Sequence[Copied] = ()  # of single ranks


class RoundStart(NamedTuple):
    """The start of a round, which all ranks make together."""

    round: int  # of the workers
    checkpoints: str  # the folder of the checkpoints
    file_step: int  # of the newest checkpoint
    run_dir: str  # of the run
    whole_step: Callable[[], int]  # of the newest whole checkpoint; all ranks call it


class _Choice(NamedTuple):
    """The findings of rank 0."""

    states: list[Rescued | CopySet]  # that may be begun from, the best one first
    began: Began  # the record of the round that begins, so far
    before: int | None  # the newest round before it; None: none is known


def fit(states: Iterable[_Kept], began: Began | None, *, is_suspect: bool) -> list[_Kept]:
    """Return the states that a round may begin from, the best one first.

    `is_suspect`: the newest round, whose record is given, has failed in a way that its state may cause.
    """
    if began is None:
        return []
    again = (began.from_round, began.from_step)
    found = [
        one
        for one in states
        if one.round == began.round or ((one.round, one.step) == again and not is_suspect)
    ]
    return sorted(found, key=_rank_of, reverse=True)


def _rank_of(state: Rescued | CopySet) -> tuple[int, int, int]:
    """Return the sort key of a state: the newest is the best; of two as new, that of the first rank."""
    return state.step, state.round, -state.rank if isinstance(state, Rescued) else -state.world_size


def is_suspect(records: Iterable[Record], round_: int) -> bool:
    """Tell whether a round has failed in a way that the state it began from may be the cause of.

    A lost node, or a worker that was killed from outside, says nothing of the state.
    """
    ends = [one.entry for one in records if isinstance(one.entry, RoundEnded) and one.entry.number == round_]
    return any(
        end.cause is Cause.HANG
        or (end.cause is Cause.CRASH and (end.failure or {}).get("exitcode") != _KILLED)
        for end in ends
    )


def _tell_passed_over(states: Iterable[Rescued | CopySet], began: Began, step: int) -> None:
    """Tell that the state which the newest round has begun from is newer than the one that counts now."""
    again = (began.from_round, began.from_step)
    if any((one.round, one.step) == again and one.step > step for one in states):
        words = (
            "the state of step %d that round %d has kept in memory is passed over: the workers have failed "
            "again before they have made a step from it; the state of step %d counts"
        )
        logger.warning(words, again[1], again[0], step)


class UnfitCopyError(InputError):
    """A copy is of a state that is cut into other parts."""


class CopySource:
    """The copies of all ranks of one step; a rank gets its own from another node if it is there.

    All ranks make one, together.

    Raises:
        DamagedError: the copy of a rank cannot be read.
    """

    def __init__(
        self, lib: Torch, ranks: RankGroups, chosen: CopySet, offers: Sequence[Sequence[Copied]], folder: str
    ) -> None:
        self._lib, self._ranks, self.state = lib, ranks, chosen
        self.name = f"the copy of step {chosen.step} that round {chosen.round} has kept in memory"
        sources = [_holder(rank, chosen, offers)[1] for rank in range(ranks.size)]
        self.kind = REPLICA if any(one.is_replica for one in sources) else MEMORY
        mine = offers[ranks.rank]  # the copies of the step on this node are needed until there are newer ones
        self.kept = {one.name for one in mine if (one.round, one.step, one.world_size) == chosen}
        self._slot, problem = self._found(chosen, offers, folder), ""
        self._content = Content([], {}, b"")
        try:
            self._content = self._slot.content()
        except DamagedError as error:
            problem = str(error)
        problems = ranks.all_told(problem)
        if any(problems):
            rank = next(rank for rank, one in enumerate(problems) if one)
            raise DamagedError(f"{self.name} cannot be read on rank {rank}: {problems[rank]}")

    def _found(self, chosen: CopySet, offers: Sequence[Sequence[Copied]], folder: str) -> Slot:
        """Return this rank's copy, mapped, after all ranks have sent those that others need."""
        own = Slot(self._lib, "")
        for rank in range(self._ranks.size):
            holder, copied = _holder(rank, chosen, offers)
            slot = Slot(self._lib, os.path.join(folder, copied.name))
            if self._ranks.rank == holder:
                with suppress(OSError, ValueError):  # the rank whose copy it is finds it damaged
                    slot.open()
            if self._ranks.rank == rank:
                own = slot
            if rank != holder:
                self._move(slot, copied.size, holder, rank)
        return own

    def _move(self, slot: Slot, size: int, holder: int, rank: int) -> None:
        """Have one rank send a copy to another one, if this rank is one of both."""
        dist, group = self._ranks.distributed, self._ranks.group
        if self._ranks.rank == holder:
            for part in slot.to_send(size).split(_SENT):
                dist.send(part, dst=rank, group=group)
        elif self._ranks.rank == rank:
            for part in slot.to_receive(size).split(_SENT):
                dist.recv(part, src=holder, group=group)

    def stored(self) -> Mapping[str, Any]:
        """Return size and dtype of each tensor, and the other values."""
        return self._content.described(self._lib)

    def owns(self) -> bytes | list[bytes]:
        """Return the values of this rank."""
        return self._content.own

    def fill(self, loaded: dict[str, Any]) -> None:
        """Give tensors, by name, the content of the copy.

        Raises:
            UnfitCopyError: they are cut into other parts on some rank; nothing is changed.
        """
        torch = self._lib.torch
        pieces = {piece.name: piece for piece in self._content.pieces}
        parts = {name: part_of(one) for name, one in loaded.items() if isinstance(one, torch.Tensor)}
        others = [name for name, part in parts.items() if tuple(part.shape) != pieces[name].part]
        found = next(filter(None, self._ranks.all_told(others[:1])), None)
        if found is not None:
            raise UnfitCopyError(
                f"{self.name} is cut into other parts: {found[0]}",
                where=WHERE,
                fix="none is needed: the newest checkpoint counts",
            )
        with torch.no_grad():
            for name, part in parts.items():
                part.copy_(self._slot.view(pieces[name]))
        loaded.update({name: self._content.values[name] for name in loaded if name not in parts})


Source = MemorySource | CopySource


def _holder(rank: int, chosen: CopySet, offers: Sequence[Sequence[Copied]]) -> tuple[int, Copied]:
    """Return the rank in whose node's memory a rank's copy is, itself if possible, and the copy."""
    for other in (rank, *range(len(offers))):
        for one in offers[other]:
            if (one.round, one.step, one.world_size, one.rank) == (*chosen, rank):
                return other, one
    raise DamagedError(f"rank {rank} has no copy of step {chosen.step}")


class NodeMemory:
    """The states of this rank in its node's memory: kept at a fault, and copied ahead of one.

    Args:
        rescue: whether the state is kept when another rank fails.
        copies: whether it is copied ahead where it cannot be kept then; with second copies on other nodes
            if the ranks have a process group for them.
    """

    def __init__(
        self, lib: Torch, ranks: RankGroups, environ: Mapping[str, str], *, rescue: bool, copies: bool
    ) -> None:
        self._lib, self._ranks = lib, ranks
        self.rescue: Rescue | None = new_rescue(lib, ranks, environ) if rescue else None
        self.copies: MemoryCopies | None = None
        self._compares = rescue and ranks.size > 1
        self._steps = 0  # since the round has begun
        self._first_keeps = False  # the state at a fault, and no other rank
        self.recovered: tuple[int, ...] = ()  # the rounds whose fault has lost next to nothing
        self._folder = ""
        channel, run_dir = environ.get(Env.CHANNEL), environ.get(Env.RUN_DIR)
        if channel and run_dir:
            folder = os.path.dirname(channel)
            prefix = copy_prefix(RunPaths(run_dir).root, environ.get(Env.NODE, ""))
            self._folder = folder if os.path.isdir(folder) else ""
            if copies and self._folder:
                sends = ranks.group_of_replicas is not None
                replicas = Replicas(lib, ranks, folder, prefix) if sends else None
                self.copies = MemoryCopies(lib, ranks, folder, prefix, replicas)

    def reached(self, step: int, state: State) -> None:
        """Take note that a step is complete."""
        self._steps += 1
        if self._compares and self._steps == 1:
            self._compare(state)
        if self.rescue is not None:
            self.rescue.reached(step, state)
        if self._compares and self._steps > 1 and self._steps & (self._steps - 1) == 0:
            self._compare(state)  # a fault meanwhile finds this step noted, as a fault after it would
        if self.copies is not None:
            is_rescued = self.rescue is not None and self.rescue.is_able and not self._first_keeps
            self.copies.reached(step, state, is_rescued=is_rescued)

    def _compare(self, state: State) -> None:
        """Keep no state of one rank for all if they differ; all ranks call it.

        That is after 1, 2, 4, 8 ... steps: ranks may be equal for a moment, and begin to differ late. Where
        buffers alone differ, and DDP gives all ranks those of rank 0 before they are used, that one keeps it.
        """
        found = list[tuple[str, Any, bool | None]]()
        with without_collections():
            with suppress(HpcElasticError):  # the state is refused where it is used
                found = [*TrainState(self._lib, state).replicated()]
            tensors, sent = [one[:2] for one in found if not one[2]], [one[:2] for one in found if one[2]]
            differing = own_parameter(self._lib, self._ranks, tensors)
            if differing or (not self._first_keeps and own_parameter(self._lib, self._ranks, sent)):
                self.differs(differing)

    def differs(self, name: str) -> None:
        """Keep no state of one rank for all, as they differ; all ranks call it, a thread may.

        Args:
            name: of a tensor that differs; empty: buffers alone that are sent by rank 0, which keeps it then.
        """
        self._first_keeps, self._compares = True, self._compares and not name
        if self.rescue is None or not self.rescue.is_able:
            return
        if name:
            self.rescue.stop()
            is_news = self._ranks.rank == 0 and self.copies is None
            tell_not_kept(f"{name} differs between ranks, and no rank holds the whole state", is_news=is_news)
        elif self._ranks.rank:
            self.rescue.leave_it()

    def saved(self, step: int) -> None:
        """Take note that a checkpoint is durable."""
        with suppress(OSError):  # the folder was wiped; or older states stay, which do not count
            if self.rescue is not None:
                self.rescue.saved(step)
            if self.copies is not None:
                self.copies.saved(step)

    def stop(self) -> None:
        """Keep nothing from now on; all ranks call it."""
        self._compares = False
        if self.rescue is not None:
            self.rescue.stop()
        if self.copies is not None:
            self.copies.stop()

    def find(self, start: RoundStart, use: Callable[[Source], None] = lambda _: None) -> Source | None:
        """Return the newest state in memory that can be read and used. None: the newest checkpoint counts.

        All ranks choose the same one, and the choice is recorded.

        Args:
            start: of the round.
            use: loads it; by default that is done later, with the objects.

        Raises:
            InputError: it is of another model.
        """
        offers: list[NodeStates] = self._ranks.all_told(self._offer())
        chosen: _Choice = self._ranks.told(_choice(offers, start) if self._ranks.rank == 0 else None)
        file_step = start.file_step
        for one in chosen.states:
            if one.step <= file_step:
                file_step = start.whole_step()
            if one.step <= file_step:
                break
            source = self._opened(one, offers)
            if source is None:
                continue
            began = chosen.began._replace(from_round=one.round, from_step=one.step, source=source.kind)
            if one.round == chosen.before:
                began = began._replace(recovered=(*began.recovered, one.round)[-_MOST_RECOVERED:])
            if self._is_recorded(start.checkpoints, began) and _is_used(source, use):
                self._began(began, source, offers, one.step)
                return source
        began = chosen.began
        if not self._is_recorded(start.checkpoints, began):
            began = began._replace(token="")
        self._began(began, None, offers, start.whole_step())
        return None

    def _offer(self) -> NodeStates:
        if not self._folder:
            return NodeStates("")
        rescued = found_in(self._folder) if self.rescue is not None else []
        copies = found_copies(self._folder, self.copies.prefix) if self.copies is not None else []
        return NodeStates(self._folder, rescued, copies)

    def _opened(self, one: Rescued | CopySet, offers: Sequence[NodeStates]) -> Source | None:
        try:
            if isinstance(one, Rescued):
                holder = next(rank for rank, offer in enumerate(offers) if one in offer.rescued)
                return MemorySource(self._lib, self._ranks, one, holder, self._folder or None)
            copies = [offer.copies for offer in offers]
            return CopySource(self._lib, self._ranks, one, copies, self._folder)
        except DamagedError as error:
            logger.warning("%s; an older state counts", error)
            return None

    def _is_recorded(self, folder: str, began: Began) -> bool:
        is_recorded = False
        if self._ranks.rank == 0:
            try:
                write_began(folder, began)
                is_recorded = True
            except OSError as error:
                words = "the state that this round begins from cannot be recorded, so the newest checkpoint"
                logger.warning("%s counts: %s", words, error)
        return bool(self._ranks.told(is_recorded))

    def _began(self, began: Began, source: Source | None, offers: Sequence[NodeStates], step: int) -> None:
        self.recovered = began.recovered
        if self.rescue is not None:
            self.rescue.began(source.state if isinstance(source, MemorySource) else None)
        if self.copies is not None:
            folders = [offer.folder for offer in offers]
            nodes = [
                [rank for rank, one in enumerate(folders) if one == folder]
                for folder in dict.fromkeys(folders)
            ]
            on_node = next(ranks for ranks in nodes if self._ranks.rank in ranks)
            kept = set[str]() if source is None else source.kept
            token = began.token if all(folders) else ""  # all ranks make copies, or none does
            self.copies.began(CopyStart(token, began.round, step, nodes, on_node, kept))


def _is_used(source: Source, use: Callable[[Source], None]) -> bool:
    try:
        use(source)
    except UnfitCopyError as error:
        logger.warning("%s; an older state counts", error)
        return False
    return True


def _choice(offers: Sequence[NodeStates], start: RoundStart) -> _Choice:
    """Return the states that the round may begin from, and its record so far (rank 0)."""
    began = read_began(start.checkpoints)
    if began is not None and began.round > start.round:
        began = None  # of a run that was removed: rounds are counted up
    run, records = RunPaths(start.run_dir), list[Record]()
    with suppress(OSError):
        if began is not None and went_back_since(run, began.round):  # newer states are those that were left
            began = began._replace(round=start.round, from_round=None)
    with suppress(OSError, HpcElasticError):
        records = read_records(run)
    suspect = began is not None and is_suspect(records, began.round)
    token = began.token if began is not None else ""
    whole, partial = complete_sets((one for offer in offers for one in offer.copies), token)
    rescued = {one for offer in offers for one in offer.rescued}
    ours = {one for one in whole if one.world_size == len(offers)}
    found: list[Rescued | CopySet] = [
        *fit(rescued, began, is_suspect=suspect),
        *fit(ours, began, is_suspect=suspect),
    ]
    found.sort(key=_rank_of, reverse=True)
    newest = max([start.file_step, *(one.step for one in found[:1])])
    if began is not None and suspect:
        _tell_passed_over([*rescued, *ours], began, newest)
    for one in fit((whole - ours) | partial, began, is_suspect=suspect)[:1]:
        if one.step > newest == start.file_step:
            why = "some ranks have lost it" if one in partial else f"there are {len(offers)} now"
            words = "the copy of step %d in memory is of %d ranks, and %s; the newest checkpoint counts"
            logger.warning(words, one.step, one.world_size, why)
    token = token or os.urandom(TOKEN_BYTES).hex()
    recovered = began.recovered if began is not None else ()
    before = began.round if began is not None else None
    return _Choice(found, Began(start.round, token=token, recovered=recovered), before)
