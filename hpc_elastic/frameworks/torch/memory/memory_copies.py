"""A copy of each rank's part of the state in its node's memory, made ahead of faults.

For states that no other rank holds: sharded ones (FSDP, tensor parallel), and those on GPUs. Where every rank
keeps its state at a fault, copies are made more rarely: they stand in for a state that cannot be kept, as
between the step of an optimizer and the end of the loop's step. A rank copies
its part into one of two files in turns, which stay mapped, so one copy is whole at any moment. A copy is
sealed in the background. A rank begins the next copy when all ranks have sealed the last one, so there is
always a step of which all ranks have a copy. With second copies on other nodes it also waits for those.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Collection, Sequence
from contextlib import suppress

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.frameworks.torch.background import Background
from hpc_elastic.frameworks.torch.memory.copies import (
    Copied,
    Piece,
    Slot,
    found_copies,
    head_at,
    laid_out,
    slot_name,
)
from hpc_elastic.frameworks.torch.memory.replicas import Replicas, taken
from hpc_elastic.frameworks.torch.memory.rescued import check_room, one_at_a_time
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState, pickled
from hpc_elastic.named_tuple import NamedTuple

logger = logging.getLogger(__name__)
SHARE = 0.0075  # of the time that copies may block; measured, all of their work takes a hundredth then
BESIDE = 0.1  # of that share, where all ranks keep their state at a fault
_GUESS = 1e9  # bytes copied per second, as long as it was not measured
_EXCHANGE_S = 0.0005  # that ranks need to agree on the next copy, if none is late
_END_S = 5.0  # for the checksum of the last copy


class NotFiniteError(HpcElasticError):
    """A copy has parameters that are not finite."""


def steps_between(cost_s: float, step_s: float, share: float = SHARE) -> int:
    """Return the steps from one copy to the next.

    Args:
        cost_s: the time that a copy takes [s].
        step_s: the time that a step takes [s].
        share: of the time that copies may cost.
    """
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
        for one in found_copies(self.folder, self.prefix):
            if one.rank not in (second if one.is_replica else here) and one.step <= step:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, one.name))

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
        checked = [
            piece for piece in content.pieces if piece.name.startswith(names) and _may_be_checked(piece)
        ]
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


def _may_be_checked(piece: Piece) -> bool:
    return bool(piece.dtype.is_floating_point) and piece.dtype.itemsize > 1  # the smallest kinds have no test
