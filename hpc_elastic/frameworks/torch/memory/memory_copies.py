"""A copy of each rank's part of the state in its node's memory, made ahead of faults.

For states that no other rank holds: sharded ones (FSDP, tensor parallel), and those on GPUs. Where every rank
keeps its state at a fault, copies are made more rarely: they stand in for a state that cannot be kept, as
between the step of an optimizer and the end of the loop's step. A rank copies
its part into one of two files in turns, which stay mapped, so one copy is whole at any moment. A copy is
sealed in the background. A rank begins the next copy when all ranks have sealed the last one, so there is
always a step of which all ranks have a copy.

Each rank may also send its copy to one rank of the next node when it is sealed, in a thread and over a
process group of their own, a piece at a time; then it waits for that, too. The other rank writes it into one
of two files in turns, and its head last. So the copies of a node that is lost, or of a transfer that a fault
cuts off, are whole in the other file.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import DamagedError, HpcElasticError
from hpc_elastic.frameworks.torch.background import Background
from hpc_elastic.frameworks.torch.memory.copies import (
    TENSORS_AT,
    Copied,
    Piece,
    Slot,
    check_room,
    copied_as,
    found_copies,
    head_at,
    laid_out,
    one_at_a_time,
    remove,
    slot_name,
)
from hpc_elastic.frameworks.torch.memory.layout import without_collections
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState, pickled
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.memory_files import COPY_HEAD

logger = logging.getLogger(__name__)
SHARE = 0.0075  # of the time that copies may block; measured, all of their work takes a hundredth then
BESIDE = 0.1  # of that share, where all ranks keep their state at a fault
_GUESS = 1e9  # bytes copied per second, as long as it was not measured
_EXCHANGE_S = 0.0005  # that ranks need to agree on the next copy, if none is late
_END_S = 5.0  # for the checksum of the last copy, and the piece that is under way when the training ends


class NotFiniteError(HpcElasticError):
    """A copy has parameters that are not finite."""


def steps_between(cost_s: float, step_s: float, share: float = SHARE) -> int:
    """Return the steps from one copy to the next, given the times of a copy and a step [s]."""
    return max(1, math.ceil(cost_s / max(share * step_s, 1e-9)))


class CopyStart(NamedTuple):
    """The beginning of a round, for the copies that it makes."""

    token: str  # of the run; empty: none are made
    round: int  # of the workers
    step: int  # steps done
    nodes: Sequence[Sequence[int]]  # the ranks of each node
    on_node: Collection[int]  # the ranks of this node
    kept: Collection[str] = ()  # names of the copies in this node's memory that the round has begun from


class MemoryCopies:
    """Copies this rank's part of the state into memory, at an interval that costs a hundredth of the time.

    All ranks agree before each copy: on the interval, by the slowest of them, and that none has failed.

    Args:
        folder: in the node's memory; belongs to the agent.
        replicas: sends the copies to other nodes; None: they stay here alone.
    """

    def __init__(
        self, lib: Torch, ranks: RankGroups, folder: str, prefix: str, replicas: Replicas | None = None
    ) -> None:
        self._lib, self._ranks, self._replicas = lib, ranks, replicas
        self.folder, self.prefix = folder, prefix
        self._share = SHARE
        self._clock: Clock = SystemClock()
        self._background = Background("hpc_elastic copy")
        self._slots = [
            Slot(lib, os.path.join(folder, slot_name(prefix, ranks.rank, turn))) for turn in (0, 1)
        ]
        self._start = CopyStart("", 0, 0, (), ())
        self._is_over = True
        self._next = 0  # step
        self._turn = 0  # the slot that is written next
        self._written: int | None = None  # step of the copy that not all are known to have sealed
        self._is_reserved = False
        self._problem: Exception | None = None  # of this rank since the ranks have agreed last
        self._size = 0  # of a copy [bytes]
        self._cost_s = 0.0  # of the last copy
        self._since = (0, 0.0)  # step, and by the clock
        self.step: int | None = None  # of the newest copy that all ranks have sealed

    def began(self, start: CopyStart) -> None:
        """Begin a round."""
        self._start = start
        self._is_over = not start.token
        self._next = start.step + 1
        self._is_reserved = False
        self._written = self.step = None
        self._turn = int(os.path.basename(self._slots[0].path) in start.kept)
        if self._replicas is not None:
            self._replicas.began(start.nodes, start.kept)

    def stop(self) -> None:
        """Make no more copies; those that are there stay."""
        self._is_over = True
        if self._replicas is not None:
            self._background.wait(_END_S)  # then the other ranks hear that this one has stopped
            self._replicas.stop()

    def saved(self, step: int) -> None:
        """Remove copies that are written no more, which a durable checkpoint has made useless.

        They are of ranks that are on other nodes now.
        """
        here = self._start.on_node
        second = set[int]() if self._replicas is None else self._replicas.on(here)
        copies = [one for one in found_copies(self.folder, self.prefix) if one.step <= step]
        old = (one.name for one in copies if one.rank not in (second if one.is_replica else here))
        remove(self.folder, old)

    def reached(self, step: int, state: State, *, is_rescued: bool) -> None:
        """Copy the state after a step, if it is time: more rarely if all ranks keep theirs at a fault."""
        if self._is_over or step < self._next:
            return
        if step == self._start.step + 1:  # the first step may take longer than others
            self._next, self._since = step + 1, (step, self._clock.monotonic())
            return
        is_busy = self._background.is_busy
        error = None if is_busy else self._background.wait()
        if isinstance(error, Exception):
            self._problem = error
        train = self._seen(state)
        if not self._agreed(step, is_rescued=is_rescued, is_busy=is_busy) or train is None:
            return
        began = self._clock.monotonic()
        if self._is_reserved:
            self._copy(step, train)
            self._cost_s = self._clock.monotonic() - began + _EXCHANGE_S
        else:
            self._is_reserved, self._next = True, step + 1  # a fault may come before an interval is over
            size = self._size
            self._background.start(lambda: self._reserve(size))
        self._since = (step, self._clock.monotonic())

    def _seen(self, state: State) -> TrainState | None:
        """Return the objects of the state; note the size of the first copy, from which its cost follows."""
        try:
            train = TrainState(self._lib, state)
            if not self._is_reserved:
                with without_collections():
                    saved, own = train.parts()
                    content, end = laid_out(self._lib, saved, pickled(self._lib, own))
                    self._size = end + 2 * len(pickle.dumps(content))  # the values may grow
                self._cost_s = self._size / _GUESS + _EXCHANGE_S
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._problem = error
            return None
        return train

    def _agreed(self, step: int, *, is_rescued: bool, is_busy: bool) -> bool:
        """Tell the other ranks how it stands, and plan the next copy; return whether to go on."""
        begun, since = self._since
        step_s = (self._clock.monotonic() - since) / max(1, step - begun)
        fatal = self._problem is not None and not isinstance(self._problem, NotFiniteError)
        is_sending, not_sent = (False, False) if self._replicas is None else self._replicas.look()
        at_work = is_busy or is_sending
        mine = [not is_rescued, self._problem is not None, fatal, at_work, not_sent, self._cost_s, -step_s]
        found = self._ranks.greatest([float(one) for one in mine])
        alone, failed, fatal_of_any, any_is_busy, any_not_sent, cost_s, least = found
        share = self._share * (1.0 if alone else BESIDE)
        if fatal_of_any:
            self._give_up()
            return False
        if any_not_sent and self._replicas is not None:
            self._replicas.give_up()
        if any_is_busy:  # the next copy could be the only whole one, and the loop would wait
            self._next = step + steps_between(_EXCHANGE_S, -least, share)
            return False
        if failed:
            logger.info(
                "a copy of the state in memory does not count: %s", self._problem or "of another rank"
            )
        elif self._written is not None:
            self._count(self._written)
        self._problem = self._written = None
        self._next = step + steps_between(cost_s, -least, share)
        return True

    def _count(self, step: int) -> None:
        """Take note that all ranks have a copy of a step."""
        is_first, self.step, self._turn = self.step is None, step, 1 - self._turn
        if self._replicas is not None:
            self._replicas.next_turn()
        if is_first:
            self.saved(step)  # those of earlier rounds are of no use from now on

    def _give_up(self) -> None:
        self._is_over = True
        if self._problem is not None:
            logger.warning("no copies of the state are kept in this node's memory: %s", self._problem)
        for slot in self._slots:
            if head_at(slot.path) is None:
                slot.remove()

    def _reserve(self, size: int) -> None:
        """Take the memory for this rank's copies (thread).

        Raises:
            NoRoomError: the copies of this node's ranks would take too much of it.
            OSError: there is no room.
        """
        with one_at_a_time(self.folder):
            held = taken(self.folder, self.prefix)
            check_room(self.folder, len(self._slots) * size * len(self._start.on_node), held)
            for slot in self._slots:
                if os.path.basename(slot.path) not in self._start.kept:  # needed until there is another
                    slot.reserve(size)
        if self._replicas is not None:
            self._replicas.reserve(size)

    def _copy(self, step: int, train: TrainState) -> None:
        slot, start = self._slots[self._turn], self._start
        try:
            saved, own = train.parts()
            content, values_at, end = slot.write(saved, pickled(self._lib, own))
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._problem = error
            self._pass_on(None)
            return
        name = os.path.basename(slot.path)
        copied = Copied(name, start.token, start.round, step, self._ranks.rank, self._ranks.size, end)
        module = self._lib.torch.nn.Module
        names = tuple(f"{entry.name}." for entry in train.entries if isinstance(entry.value, module))
        own_pieces = (piece for piece in content.pieces if piece.name.startswith(names))
        checked = [one for one in own_pieces if one.dtype.is_floating_point and one.dtype.itemsize > 1]
        self._written = step
        self._background.start(lambda: self._seal(slot, copied, values_at, checked))

    def _seal(self, slot: Slot, copied: Copied, values_at: int, checked: Sequence[Piece]) -> None:
        """Make a copy count, unless it is of no use (thread).

        Raises:
            NotFiniteError: it has parameters that are not finite.
        """
        sealed = None
        try:
            for piece in checked:
                if not bool(self._lib.torch.isfinite(slot.view(piece)).all()):
                    raise NotFiniteError(f"{piece.name} is not finite after step {copied.step}")
            slot.seal(copied, values_at)
            sealed = slot
        finally:
            self._pass_on(sealed)

    def _pass_on(self, slot: Slot | None) -> None:
        """Send a copy to another node; all ranks do, also one that has none."""
        if self._replicas is not None:
            self._replicas.send(slot)


PIECE = 1 << 26  # bytes that are sent at once


def holders(nodes: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return, by rank, the rank on the next node that holds its second copy; with one node there is none."""
    if len(nodes) < 2:  # noqa: PLR2004 - the number of nodes that a second copy needs
        return {}
    pairs = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
    return {rank: after[place % len(after)] for node, after in pairs for place, rank in enumerate(node)}


class Replicas:
    """Sends the copies of this rank to another node, and keeps those of ranks that send theirs."""

    def __init__(self, lib: Torch, ranks: RankGroups, folder: str, prefix: str) -> None:
        self._lib, self._ranks = lib, ranks
        self._folder, self._prefix = folder, prefix
        self._background = Background("hpc_elastic replica", end_s=_END_S)
        self._nodes: Sequence[Sequence[int]] = ()
        self._kept: Collection[str] = ()
        self._holders: dict[int, int] = {}  # by rank; empty: copies are not sent
        self._holder = -1  # of this rank's copies
        self._held: dict[int, list[Slot]] = {}  # by the rank whose copies they are
        self._turns: dict[int, int] = {}  # the slot that is written next
        self._is_over = False
        self._problem: BaseException | None = None

    def began(self, nodes: Sequence[Sequence[int]], kept: Collection[str]) -> None:
        """Begin a round."""
        self._nodes, self._kept, self._holders = nodes, kept, holders(nodes)
        self._is_over, self._problem = False, None
        self._holder = self._holders.get(self._ranks.rank, -1)
        own = [rank for rank, holder in self._holders.items() if holder == self._ranks.rank]
        self._held = {rank: [self._slot(rank, turn) for turn in (0, 1)] for rank in own}
        first = {rank: os.path.basename(slots[0].path) for rank, slots in self._held.items()}
        self._turns = {rank: int(name in kept) for rank, name in first.items()}

    def _slot(self, rank: int, turn: int) -> Slot:
        name = slot_name(self._prefix, rank, turn, is_replica=True)
        return Slot(self._lib, os.path.join(self._folder, name))

    @property
    def is_on(self) -> bool:
        """Whether copies are sent; the same on all ranks."""
        return bool(self._holders)

    def on(self, node: Collection[int]) -> set[int]:
        """Return the ranks whose second copies are on the node of some ranks."""
        return {rank for rank, holder in self._holders.items() if holder in node}

    def reserve(self, size: int) -> None:
        """Take the memory for the copies of other ranks, given the size [bytes] of this one's (thread)."""
        if not self.is_on:
            if self._ranks.rank == 0:
                logger.warning("copies of the state have no second copy: all ranks are on one node")
            return
        sizes: list[int] = self._ranks.gathered(size, self._ranks.group_of_replicas)
        node = next(ranks for ranks in self._nodes if self._ranks.rank in ranks)
        try:
            with one_at_a_time(self._folder):
                held = taken(self._folder, self._prefix)
                wanted = sum(sizes[rank] for rank in [*node, *self.on(node)])
                check_room(self._folder, 2 * wanted, held)
                for rank, slots in self._held.items():
                    for slot in slots:
                        if os.path.basename(slot.path) not in self._kept:
                            slot.reserve(sizes[rank])
        except (OSError, HpcElasticError) as error:
            self._problem = error

    def look(self) -> tuple[bool, bool]:
        """Return whether a transfer is under way, and whether one has failed on this rank."""
        if not self.is_on:
            return False, False
        if self._background.is_busy:
            return True, False
        self._problem = self._problem or self._background.wait()
        return False, self._problem is not None

    def give_up(self) -> None:
        """Send no more copies: a transfer has failed on some rank."""
        why = self._problem or "it has failed on another rank"
        logger.warning("copies of the state have no second copy on another node any more: %s", why)
        self._holders, self._is_over = {}, True
        for slots in self._held.values():
            for slot in slots:
                if head_at(slot.path) is None:
                    slot.remove()

    def next_turn(self) -> None:
        """Take note that all ranks have sent their copies: the next ones replace those before them."""
        self._turns = {rank: 1 - turn for rank, turn in self._turns.items()}

    def stop(self) -> None:
        """End the transfer under way after its piece."""
        self._is_over = True
        self._background.wait(_END_S)

    def send(self, slot: Slot | None) -> None:
        """Send a copy, None: there is none that counts, and receive those of other ranks, in a thread."""
        if self.is_on:
            self._background.start(lambda: self._exchange(slot))

    def _exchange(self, slot: Slot | None) -> None:
        """Pass copies on; all ranks do so at the same time.

        Raises:
            DamagedError: one has come that is not whole.
            RuntimeError: another rank is gone, or answers no more.
        """
        torch = self._lib.torch
        head = bytes(COPY_HEAD.size) if slot is None or self._is_over else slot.head()
        heads = {rank: torch.zeros(COPY_HEAD.size, dtype=torch.uint8) for rank in self._held}
        self._pass(torch.frombuffer(bytearray(head), dtype=torch.uint8), heads)
        told = {rank: bytes(one.tolist()) for rank, one in heads.items()}
        ends = {rank: one.size for rank, data in told.items() if (one := copied_as("", data)) is not None}
        places = {rank: self._place(rank, end) for rank, end in ends.items()}
        mine = copied_as("", head)
        self._pass_pieces(slot, 0 if mine is None else mine.size, ends, places)
        for rank, place in places.items():
            if place is not None and ends[rank]:
                place.accept(told[rank])

    def _place(self, rank: int, size: int) -> Slot | None:
        """Return the file for a rank's copy; None: there is no room for it, and it is thrown away."""
        slot = self._held[rank][self._turns[rank]]
        try:
            slot.reserve(size)
            slot.unseal()
        except (OSError, DamagedError) as error:
            self._problem = error
            return None
        return slot

    def _pass_pieces(
        self, slot: Slot | None, end: int, ends: dict[int, int], places: Mapping[int, Slot | None]
    ) -> None:
        """Send and receive the content of copies; a rank that stops says so before each piece.

        Args:
            slot: this rank's copy.
            end: of it; 0: nothing is sent.
            ends: by rank, the end of a copy that comes; set to 0 if its rank has stopped.
            places: by rank, where it is written.
        """
        torch, at = self._lib.torch, TENSORS_AT
        while end > at or any(one > at for one in ends.values()):
            goes_on = not self._is_over
            signs = {rank: torch.zeros(1) for rank, one in ends.items() if one > at}
            self._pass(torch.tensor([float(goes_on)]) if end > at else None, signs)
            end = end if goes_on else 0
            for rank, sign in signs.items():
                ends[rank] = ends[rank] if sign.item() else 0
            pieces = {
                rank: self._piece(places[rank], at, min(one, at + PIECE))
                for rank, one in ends.items()
                if one > at
            }
            own = slot.part(at, min(end, at + PIECE)) if slot is not None and end > at else None
            self._pass(own, pieces)
            at += PIECE

    def _piece(self, slot: Slot | None, begin: int, end: int) -> Any:
        empty = self._lib.torch.empty
        return empty(end - begin, dtype=self._lib.torch.uint8) if slot is None else slot.part(begin, end)

    def _pass(self, own: Any | None, coming: Mapping[int, Any]) -> None:
        """Send a tensor to the rank that holds this one's copies, and receive those of others."""
        dist, group = self._ranks.distributed, self._ranks.group_of_replicas
        works = [dist.irecv(one, src=rank, group=group) for rank, one in coming.items()]
        if own is not None:
            works.append(dist.isend(own, dst=self._holder, group=group))
        for work in works:
            work.wait()


def taken(folder: str, prefix: str) -> int:
    """Return the memory that the copies of a run take on this node [bytes]."""
    sizes = 0
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with suppress(FileNotFoundError):
                sizes += os.stat(os.path.join(folder, name)).st_blocks * 512
    return sizes
