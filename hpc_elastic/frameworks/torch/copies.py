"""A copy of each rank's part of the state in its node's memory, made ahead of faults.

For states that no other rank holds: sharded ones (FSDP, tensor parallel), and those on GPUs. A rank copies
its part into one of two files in turns, which stay mapped, so one copy is whole at any moment. A copy is
sealed in the background: its checksum is computed, and its head is written last. A rank begins the next copy
when all ranks have sealed the last one, so there is always a step of which all ranks have a copy.

The files outlive the workers. Those of an agent that was killed are taken over by the next agent of the run
on the node (`hpc_elastic.start.scratch`).
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import pickle
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import DamagedError, HpcElasticError
from hpc_elastic.frameworks.torch.background import Background
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.rescued import check_room, one_at_a_time
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState, pickled

logger = logging.getLogger(__name__)
SHARE = 0.01  # of the time that copies may cost
TOKEN_BYTES = 8  # of the random number of a run, which copies of other runs do not have
_MAGIC = b"HPCECPY1"
_HEAD = struct.Struct("<8s8sQQQQQQQ")  # token, round, step, rank, ranks, place of the values, end, checksum
_TENSORS_AT = 4096  # where the tensors begin in a file
_ALIGNED = 64  # bytes: of the beginning of each tensor
_WORD = 8  # bytes that the checksum takes at once
_GUESS = 1e9  # bytes copied per second, as long as it was not measured
_EXCHANGE_S = 0.0005  # that ranks need to agree on the next copy, if none is late


class NotFiniteError(HpcElasticError):
    """A copy has parameters that are not finite."""


class Copied(NamedTuple):
    """A whole copy of one rank's part, as the head of its file tells it.

    Attributes:
        name: of its file.
        token: of the run.
        round: whose workers have made it.
        step: steps completed in it.
        rank: whose part it is.
        world_size: number of ranks of the round.
        size: of its content [bytes].
    """

    name: str
    token: str
    round: int
    step: int
    rank: int
    world_size: int
    size: int


class CopySet(NamedTuple):
    """The copies of all ranks of one step.

    Attributes:
        round: whose workers have made them.
        step: steps completed in them.
        world_size: number of ranks of the round.
    """

    round: int
    step: int
    world_size: int


class Piece(NamedTuple):
    """One tensor in a copy.

    Attributes:
        name: of the tensor.
        dtype: PyTorch's.
        shape: of the whole tensor.
        part: shape of this rank's part.
        at: where it begins in the file [bytes].
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    part: tuple[int, ...]
    at: int


class Content(NamedTuple):
    """The part of a copy that is no tensor.

    Attributes:
        pieces: its tensors.
        values: by name, leaves of the state that are no tensors.
        own: the values of this rank, pickled.
    """

    pieces: list[Piece]
    values: dict[str, Any]
    own: bytes


def found_copies(folder: str, prefix: str) -> list[Copied]:
    """Return the sealed copies in a node's memory.

    Args:
        folder: there.
        prefix: begins the names of the files of the run.
    """
    names = [name for name in os.listdir(folder) if name.startswith(prefix)]
    return [one for name in sorted(names) if (one := _head(os.path.join(folder, name))) is not None]


def _head(path: str) -> Copied | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_HEAD.size)
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, token, round_, step, rank, world, _, end, _ = _HEAD.unpack(data)
    if magic != _MAGIC:
        return None
    return Copied(os.path.basename(path), token.hex(), round_, step, rank, world, end)


def complete_sets(copies: Iterable[Copied], token: str) -> tuple[set[CopySet], set[CopySet]]:
    """Return the steps of which all ranks have a copy, and those of which only some have one.

    Args:
        copies: in the memory of all nodes.
        token: of the run; copies with another one do not count.
    """
    ranks: defaultdict[CopySet, set[int]] = defaultdict(set)
    for one in copies:
        if token and one.token == token:
            ranks[CopySet(one.round, one.step, one.world_size)].add(one.rank)
    whole = {key for key, there in ranks.items() if len(there) == key.world_size}
    return whole, ranks.keys() - whole


class Slot:
    """A file in memory that holds one copy; it stays mapped.

    Args:
        lib: PyTorch's modules.
        path: of the file.
    """

    def __init__(self, lib: Torch, path: str) -> None:
        self._lib = lib
        self.path = path
        self._memory: mmap.mmap | None = None
        self._bytes: Any = None  # the same as a tensor

    def reserve(self, size: int) -> None:
        """Take the memory for a copy, so that writing it cannot fail; a copy in the file is lost.

        Raises:
            OSError: there is no room for it.
        """
        if self._memory is not None and len(self._memory) >= size and self._is_there():
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            os.pwrite(descriptor, bytes(_HEAD.size), 0)
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError:
                os.ftruncate(descriptor, 0)
                raise
            self._map(descriptor)
        finally:
            os.close(descriptor)

    def _is_there(self) -> bool:
        """Tell whether the file still has its name: others may have wiped the folder."""
        return os.path.exists(self.path)

    def _map(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._bytes = self._lib.torch.frombuffer(self._memory, dtype=self._lib.torch.uint8)

    def _mapped(self) -> mmap.mmap:
        """Return the file's memory.

        Raises:
            DamagedError: it is too short for a copy, or not there.
        """
        if self._memory is None or len(self._memory) < _TENSORS_AT:
            raise DamagedError(f"it is gone, or cut off: {self.path}")
        return self._memory

    def part(self, begin: int, end: int) -> Any:
        """Return bytes of the file as a tensor."""
        return self._bytes[begin:end]

    def view(self, piece: Piece) -> Any:
        """Return a tensor of the copy; its memory is the file."""
        size = math.prod(piece.part) * piece.dtype.itemsize
        return self.part(piece.at, piece.at + size).view(piece.dtype).view(piece.part)

    def write(self, saved: Mapping[str, Any], own: bytes) -> tuple[Content, int, int]:
        """Copy tensors and values; return the content, where the values begin, and the end.

        Args:
            saved: by name, tensors of which this rank's part is copied, and other leaves.
            own: the values of this rank, pickled.

        Raises:
            OSError: there is no room.
        """
        content, at = _laid_out(self._lib, saved, own)
        values = pickle.dumps(content)
        values += bytes(-len(values) % _WORD)
        self.reserve(at + len(values))
        memory = self._mapped()
        memory[: len(_MAGIC)] = bytes(len(_MAGIC))
        with self._lib.torch.no_grad():
            for piece in content.pieces:
                if math.prod(piece.part):
                    self.view(piece).copy_(part_of(saved[piece.name]))
        memory[at : at + len(values)] = values
        return content, at, at + len(values)

    def checksum(self, end: int) -> int:
        """Return the checksum of all behind the head."""
        torch = self._lib.torch
        return int(self.part(_TENSORS_AT, end).view(torch.int64).sum()) % 2**64

    def seal(self, copied: Copied, values_at: int) -> None:
        """Make the copy count."""
        checksum = self.checksum(copied.size)
        facts = (copied.round, copied.step, copied.rank, copied.world_size, values_at, copied.size, checksum)
        head = _HEAD.pack(_MAGIC, bytes.fromhex(copied.token), *facts)
        memory = self._mapped()
        memory[len(_MAGIC) : _HEAD.size] = head[len(_MAGIC) :]
        memory[: len(_MAGIC)] = head[: len(_MAGIC)]

    def open(self) -> None:
        """Map the file of a copy, to be read.

        Raises:
            OSError: it is gone.
            ValueError: it is empty.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._map(descriptor)
        finally:
            os.close(descriptor)

    def to_send(self, size: int) -> Any:
        """Return the beginning of the file as a tensor; zeros if it is not there."""
        if self._memory is None or len(self._memory) < size:
            return self._lib.torch.zeros(size, dtype=self._lib.torch.uint8)
        return self.part(0, size)

    def to_receive(self, size: int) -> Any:
        """Return memory of this process for a copy from another node, as a tensor."""
        self._memory = mmap.mmap(-1, size)
        self._bytes = self._lib.torch.frombuffer(self._memory, dtype=self._lib.torch.uint8)
        return self._bytes

    def content(self) -> Content:
        """Return the content of the mapped copy.

        Raises:
            DamagedError: it is torn.
        """
        memory = self._mapped()
        magic, *_, values_at, end, checksum = _HEAD.unpack_from(memory)
        is_whole = magic == _MAGIC and _TENSORS_AT <= values_at <= end <= len(memory) and not end % _WORD
        if not is_whole or self.checksum(end) != checksum:
            raise DamagedError(f"its checksum does not fit: {self.path}")
        found: Content = pickle.loads(memory[values_at:end])  # noqa: S301 - of this user's workers alone
        return found

    def remove(self) -> None:
        """Remove the file."""
        self._memory = self._bytes = None
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def part_of(value: Any) -> Any:
    """Return this rank's part of a tensor."""
    part = value.to_local() if hasattr(value, "to_local") else value
    return part.detach()


def _laid_out(lib: Torch, saved: Mapping[str, Any], own: bytes) -> tuple[Content, int]:
    """Return the places of all tensors in a file, and where they end."""
    content, at = Content([], {}, own), _TENSORS_AT
    for name, value in saved.items():
        if not isinstance(value, lib.torch.Tensor):
            content.values[name] = value
            continue
        part = part_of(value)
        content.pieces.append(Piece(name, part.dtype, tuple(value.shape), tuple(part.shape), at))
        at += -(-part.numel() * part.element_size() // _ALIGNED) * _ALIGNED
    return content, at


def steps_between(cost_s: float, step_s: float, share: float = SHARE) -> int:
    """Return the steps from one copy to the next.

    Args:
        cost_s: the time that a copy takes [s].
        step_s: the time that a step takes [s].
        share: of the time that copies may cost.
    """
    return max(1, math.ceil(cost_s / max(share * step_s, 1e-9)))


class CopyStart(NamedTuple):
    """The beginning of a round, for the copies that it makes.

    Attributes:
        token: of the run; empty: none are made.
        round: of the workers.
        step: steps done.
        on_node: the ranks of this node.
        kept: name of this rank's copy that the round has begun from; empty: none.
    """

    token: str
    round: int
    step: int
    on_node: Collection[int]
    kept: str = ""


class MemoryCopies:
    """Copies this rank's part of the state into memory, at an interval that costs a hundredth of the time.

    All ranks agree before each copy: on the interval, by the slowest of them, and that none has failed.

    Args:
        lib: PyTorch's modules.
        ranks: the process groups.
        folder: in the node's memory; belongs to the agent.
        prefix: begins the names of the files.
        share: of the time that copies may cost.
    """

    def __init__(self, lib: Torch, ranks: RankGroups, folder: str, prefix: str, share: float = SHARE) -> None:
        self._lib, self._ranks = lib, ranks
        self.folder, self.prefix = folder, prefix
        self._share = share
        self._clock: Clock = SystemClock()
        self._background = Background("hpc_elastic copy")
        self._slots = [Slot(lib, os.path.join(folder, f"{prefix}{ranks.rank}-{turn}")) for turn in (0, 1)]
        self._start = CopyStart("", 0, 0, ())
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
        turns = [os.path.basename(slot.path) for slot in self._slots]
        self._turn = 1 - turns.index(start.kept) if start.kept in turns else 0

    def stop(self) -> None:
        """Make no more copies; those that are there stay."""
        self._is_over = True

    def saved(self, step: int) -> None:
        """Remove copies of ranks that are on other nodes now, which a durable checkpoint has made useless."""
        for one in found_copies(self.folder, self.prefix):
            if one.rank not in self._start.on_node and one.step <= step:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, one.name))

    def reached(self, step: int, state: State, *, is_rescued: bool) -> None:
        """Copy the state after a step, if it is time.

        Args:
            step: steps done.
            state: of the training.
            is_rescued: this rank keeps its state when another one fails; no copy is needed if all ranks do.
        """
        if self._is_over or step < self._next:
            return
        if step == self._start.step + 1:  # the first step may take longer than others
            self._next, self._since = step + 1, (step, self._clock.monotonic())
            return
        error = self._background.wait()
        if isinstance(error, Exception):
            self._problem = error
        train = self._seen(state)
        if not self._agreed(step, is_needed=self._is_reserved or not is_rescued) or train is None:
            return
        began = self._clock.monotonic()
        if self._is_reserved:
            self._copy(step, train)
            self._cost_s = self._clock.monotonic() - began + _EXCHANGE_S
        else:
            self._is_reserved = True
            size = self._size
            self._background.start(lambda: self._reserve(size))
        self._since = (step, self._clock.monotonic())

    def _seen(self, state: State) -> TrainState | None:
        """Return the objects of the state; note the size of the first copy, from which its cost follows."""
        try:
            train = TrainState(self._lib, state)
            if not self._is_reserved:
                saved, own = train.parts()
                content, end = _laid_out(self._lib, saved, pickled(self._lib, own))
                self._size = end + 2 * len(pickle.dumps(content))  # the values may grow
                self._cost_s = self._size / _GUESS + _EXCHANGE_S
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._problem = error
            return None
        return train

    def _agreed(self, step: int, *, is_needed: bool) -> bool:
        """Tell the other ranks how it stands, and plan the next copy; return whether to go on."""
        begun, since = self._since
        step_s = (self._clock.monotonic() - since) / max(1, step - begun)
        fatal = self._problem is not None and not isinstance(self._problem, NotFiniteError)
        mine = [is_needed, self._problem is not None, fatal, self._cost_s, -step_s]
        needed, failed, fatal_of_any, cost_s, least = self._ranks.greatest([float(one) for one in mine])
        if not needed or fatal_of_any:
            self._give_up()
            return False
        if failed:
            logger.info(
                "a copy of the state in memory does not count: %s", self._problem or "of another rank"
            )
        elif self._written is not None:
            self.step, self._turn = self._written, 1 - self._turn
        self._problem = self._written = None
        self._next = step + steps_between(cost_s, -least, self._share)
        return True

    def _give_up(self) -> None:
        self.stop()
        if self._problem is not None:
            logger.warning("no copies of the state are kept in this node's memory: %s", self._problem)
        for slot in self._slots:
            if _head(slot.path) is None:
                slot.remove()

    def _reserve(self, size: int) -> None:
        """Take the memory for this rank's copies (thread).

        Raises:
            NoRoomError: the copies of this node's ranks would take too much of it.
            OSError: there is no room.
        """
        with one_at_a_time(self.folder):
            paths = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
            held = sum(os.stat(path).st_blocks * 512 for path in paths if f"/{self.prefix}" in path)
            check_room(self.folder, len(self._slots) * size * len(self._start.on_node), held)
            kept = self._start.kept
            for slot in self._slots:
                if os.path.basename(slot.path) != kept:  # that one is needed until there is another
                    slot.reserve(size)

    def _copy(self, step: int, train: TrainState) -> None:
        slot, start = self._slots[self._turn], self._start
        try:
            saved, own = train.parts()
            content, values_at, end = slot.write(saved, pickled(self._lib, own))
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._problem = error
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
        for piece in checked:
            if not bool(self._lib.torch.isfinite(slot.view(piece)).all()):
                raise NotFiniteError(f"{piece.name} is not finite after step {copied.step}")
        slot.seal(copied, values_at)


def _may_be_checked(piece: Piece) -> bool:
    return bool(piece.dtype.is_floating_point) and piece.dtype.itemsize > 1  # the smallest kinds have no test
