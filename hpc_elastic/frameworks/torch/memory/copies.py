"""The files of states in nodes' memory, and the steps of which all ranks have a copy.

A copy is one rank's part of the state; a state that a rank has kept as another one had failed is the whole of
it, in a file of the same kind. The head has the checksum of all behind it and one of itself, and is written
last: so a torn or damaged file is found. The files outlive the workers. Those of an agent that was killed are
taken over by the next agent of the run on the node (`hpc_elastic.start.scratch`).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import pickle
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from hpc_elastic.errors import DamagedError, InputError
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, pickled, unpickled
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.control_group import free_memory
from hpc_elastic.record.memory_files import (
    COPY_HEAD,
    COPY_MAGIC,
    OWN,
    RESCUED,
    StateHead,
    own_file,
    own_in,
    state_head,
)
from hpc_elastic.store.plain_file import open_plain

TOKEN_BYTES = 8  # of the random number of a run, which copies of other runs do not have
TENSORS_AT = 4096  # where the tensors begin in a file
_REPLICA = "-replica"  # ends the name of a copy that is of a rank on another node
_ALIGNED = 64  # bytes: of the beginning of each tensor


class Copied(NamedTuple):
    """A whole copy of one rank's part, as the head of its file tells it."""

    name: str  # of its file
    token: str  # of the run
    round: int  # whose workers have made it
    step: int  # steps completed in it
    rank: int  # whose part it is
    world_size: int  # number of ranks of the round
    size: int  # of its content [bytes]

    @property
    def is_replica(self) -> bool:
        """Whether it is on another node than its rank was."""
        return self.name.endswith(_REPLICA)


class CopySet(NamedTuple):
    """The copies of all ranks of one step."""

    round: int  # whose workers have made them
    step: int  # steps completed in them
    world_size: int  # number of ranks of the round


class Piece(NamedTuple):
    """One tensor in a copy."""

    name: str  # of the tensor
    dtype: Any  # PyTorch's
    shape: tuple[int, ...]  # of the whole tensor
    part: tuple[int, ...]  # shape of this rank's part
    at: int  # where it begins in the file [bytes]

    @property
    def size(self) -> int:
        """Size of this rank's part [bytes]."""
        return math.prod(self.part) * int(self.dtype.itemsize)


class Content(NamedTuple):
    """The part of a copy that is no tensor."""

    pieces: list[Piece]  # its tensors
    values: dict[str, Any]  # by name, leaves of the state that are no tensors
    own: bytes  # the values of this rank, pickled

    def described(self, lib: Torch) -> dict[str, Any]:
        """Return the tensors without their content, and the values."""
        torch = lib.torch
        tensors = {one.name: torch.empty(one.shape, dtype=one.dtype, device="meta") for one in self.pieces}
        return {**tensors, **self.values}


def slot_name(prefix: str, rank: int, turn: int, *, is_replica: bool = False) -> str:
    """Return the name of a rank's file of `turn` 0 or 1; a replica is on another node than the rank."""
    return f"{prefix}{rank}-{turn}{_REPLICA if is_replica else ''}"


def found_copies(folder: str, prefix: str) -> list[Copied]:
    """Return the sealed copies in a node's memory."""
    names = [name for name in os.listdir(folder) if name.startswith(prefix)]
    return [one for name in sorted(names) if (one := head_at(os.path.join(folder, name))) is not None]


def head_at(path: str) -> Copied | None:
    """Return the sealed copy in a file of this user's; None without one."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return None
    try:
        return copied_as(os.path.basename(path), os.pread(descriptor, COPY_HEAD.size, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def copied_as(name: str, head: bytes) -> Copied | None:
    """Return the sealed copy whose file begins with a head; None: it is none."""
    found = state_head(head)
    if found is None:
        return None
    return Copied(name, found.token.hex(), found.round, found.step, found.rank, found.world_size, found.end)


def complete_sets(copies: Iterable[Copied], token: str) -> tuple[set[CopySet], set[CopySet]]:
    """Return the steps of which all ranks have a copy, and those of which only some have one.

    Copies with another token than that of the run do not count.
    """
    ranks: defaultdict[CopySet, set[int]] = defaultdict(set)
    for one in copies:
        if token and one.token == token:
            ranks[CopySet(one.round, one.step, one.world_size)].add(one.rank)
    whole = {key for key, there in ranks.items() if len(there) == key.world_size}
    return whole, ranks.keys() - whole


class Slot:
    """A file in memory that holds one copy; it stays mapped."""

    def __init__(self, lib: Torch, path: str) -> None:
        self._lib = lib
        self.path = path
        self._memory: mmap.mmap | None = None
        self._bytes: Any = None  # the same as a tensor

    def reserve(self, size: int) -> None:
        """Take the memory for a copy, so that writing it cannot fail; a copy in the file is lost.

        Raises:
            OSError: there is no room for it, or the file is another user's.
        """
        is_mapped = self._memory is not None and len(self._memory) >= size
        if is_mapped and os.path.exists(self.path):  # others may have wiped the folder
            return
        descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(descriptor, bytes(COPY_HEAD.size), 0)
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError:
                os.ftruncate(descriptor, 0)
                raise
            self._map(descriptor)
        finally:
            os.close(descriptor)

    def _map(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._bytes = self._lib.torch.frombuffer(self._memory, dtype=self._lib.torch.uint8)

    def _mapped(self) -> mmap.mmap:
        """Return the file's memory.

        Raises:
            DamagedError: it is too short for a copy, or not there.
        """
        if self._memory is None or len(self._memory) < TENSORS_AT:
            raise DamagedError(f"it is gone, or cut off: {self.path}")
        return self._memory

    def part(self, begin: int, end: int) -> Any:
        """Return bytes of the file as a tensor."""
        return self._bytes[begin:end]

    def data(self, piece: Piece) -> Any:
        """Return the bytes of a tensor of the copy, which can be sent for any dtype."""
        return self.part(piece.at, piece.at + piece.size)

    def view(self, piece: Piece) -> Any:
        """Return a tensor of the copy; its memory is the file."""
        return self.data(piece).view(piece.dtype).view(piece.part)

    def write(self, saved: Mapping[str, Any], own: bytes) -> tuple[Content, int, int]:
        """Copy tensors and values; return the content, where the values begin, and the end.

        Raises:
            OSError: there is no room.
        """
        content, at = laid_out(self._lib, saved, own)
        values = pickle.dumps(content)
        self.reserve(at + len(values))
        self.unseal()
        memory = self._mapped()
        with self._lib.torch.no_grad():
            for piece in content.pieces:
                if math.prod(piece.part):
                    self.view(piece).copy_(part_of(saved[piece.name]))
        memory[at : at + len(values)] = values
        return content, at, at + len(values)

    def unseal(self) -> None:
        """Have the copy in the mapped file count no more."""
        self._mapped()[: len(COPY_MAGIC)] = bytes(len(COPY_MAGIC))

    def head(self) -> bytes:
        """Return the head of the copy in the mapped file."""
        return self._mapped()[: COPY_HEAD.size]

    def copied(self) -> Copied | None:
        """Return the sealed copy in the mapped file; None: there is none."""
        return copied_as(os.path.basename(self.path), self.head())

    def checksum(self, end: int) -> int:
        """Return the checksum of all behind the head."""
        with memoryview(self._mapped()) as memory, memory[TENSORS_AT:end] as content:
            return zlib.crc32(content)

    def seal(self, copied: Copied, values_at: int) -> None:
        """Make the copy count."""
        facts = (copied.round, copied.step, copied.rank, copied.world_size, values_at, copied.size)
        self._set_head(StateHead(bytes.fromhex(copied.token), *facts, self.checksum(copied.size)).packed())

    def accept(self, head: bytes) -> None:
        """Make a copy count that another rank has sent.

        Raises:
            DamagedError: the content in this file is another one.
        """
        found = state_head(head)
        if found is None or self.checksum(found.end) != found.checksum:
            raise DamagedError(f"its checksum does not fit: {self.path}")
        self._set_head(head)

    def _set_head(self, head: bytes) -> None:
        memory = self._mapped()
        memory[len(COPY_MAGIC) : COPY_HEAD.size] = head[len(COPY_MAGIC) :]
        memory[: len(COPY_MAGIC)] = head[: len(COPY_MAGIC)]

    def open(self) -> None:
        """Map the file of a copy, to be read.

        Raises:
            OSError: it is gone, or another user's.
            ValueError: it is empty.
        """
        descriptor = open_plain(self.path, os.O_RDWR)
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
        head = state_head(memory[: COPY_HEAD.size])
        is_whole = head is not None and TENSORS_AT <= head.values_at <= head.end <= len(memory)
        if head is None or not is_whole or self.checksum(head.end) != head.checksum:
            raise DamagedError(f"its checksum does not fit: {self.path}")
        found: Content = pickle.loads(memory[head.values_at : head.end])  # noqa: S301 - of this user alone, as `open` or the sender has checked
        return found

    def remove(self) -> None:
        """Remove the file."""
        self._memory = self._bytes = None
        remove("", [self.path])


def part_of(value: Any) -> Any:
    """Return this rank's part of a tensor."""
    part = value.to_local() if hasattr(value, "to_local") else value
    return part.detach()


def laid_out(lib: Torch, saved: Mapping[str, Any], own: bytes) -> tuple[Content, int]:
    """Return the places of all tensors in a file, and where they end."""
    content, at = Content([], {}, own), TENSORS_AT
    for name, value in saved.items():
        if not isinstance(value, lib.torch.Tensor):
            content.values[name] = value
            continue
        part = part_of(value)
        content.pieces.append(Piece(name, part.dtype, tuple(value.shape), tuple(part.shape), at))
        at += -(-part.numel() * part.element_size() // _ALIGNED) * _ALIGNED
    return content, at


_LOCK = "rescue.lock"
PRIVATE = ".part"  # ends the name of a file that is being written
_SHARE = 0.5  # of the free memory that a state may take


class NoRoomError(InputError):
    """A state is larger than the memory that is free for it."""


class Rescued(NamedTuple):
    """A state in a node's memory, as the name of its file tells it."""

    round: int  # whose workers have kept it
    step: int  # steps completed in it
    rank: int  # that has kept it
    world_size: int  # number of ranks of the round
    is_alike: bool = True  # the values of single ranks were the same on all ranks

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"rescued-{self.round}-{self.step}-{self.rank}-{self.world_size}-{int(self.is_alike)}"


def found_in(folder: str) -> list[Rescued]:
    """Return the states in a node's memory."""
    return [
        Rescued(int(match[1]), int(match[2]), int(match[3]), int(match[4]), is_alike=match[5] == "1")
        for name in os.listdir(folder)
        if (match := RESCUED.fullmatch(name))
    ]


def remove_others(folder: str, keep: Rescued | None) -> None:
    """Remove all states but `keep`, if there is one, and the values of ranks that belong to them."""
    for name in os.listdir(folder):
        own = OWN.fullmatch(name)
        is_kept = keep is not None and (name == keep.file_name or (own and int(own[1]) == keep.round))
        if not is_kept and (own or RESCUED.fullmatch(name.removesuffix(PRIVATE))):
            remove(folder, [name])


def remove_up_to(folder: str, step: int) -> None:
    """Remove the states that a checkpoint has made useless."""
    remove(folder, (one.file_name for one in found_in(folder) if one.step <= step))


def remove(folder: str, names: Iterable[str]) -> None:
    """Remove files of a folder that are there still."""
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


class OwnFile:
    """The values of one rank after its newest step, which outlive the rank.

    Files in turns: those of the steps before are always whole.

    Args:
        files: how many: one more than the steps of which a state may still be kept.
    """

    def __init__(self, folder: str, round_: int, rank: int, files: int = 2) -> None:
        self._paths = [os.path.join(folder, f"own-{round_}-{rank}-{turn}") for turn in range(files)]
        self._descriptors: list[int] = []
        self._newest = (0, 0)  # step, and the place of its file

    def write(self, step: int, data: bytes) -> None:
        """Replace the oldest one.

        Raises:
            OSError: there is no room for it.
        """
        if not self._descriptors:
            self._descriptors = [open_plain(path, os.O_RDWR | os.O_CREAT) for path in self._paths]
        before, turn = self._newest
        turn = turn if step == before else (turn + 1) % len(self._paths)
        self._newest = step, turn
        content = own_file(step, data)
        if os.pwrite(self._descriptors[turn], content, 0) != len(content):
            raise OSError(f"no room for {len(content)} bytes: {self._paths[turn]}")


def owns_in(folder: str, state: Rescued) -> dict[int, bytes]:
    """Return the values of single ranks that belong to a state, by rank, from files of this user's."""
    found: dict[int, bytes] = {}
    for name in os.listdir(folder):
        match = OWN.fullmatch(name)
        if match is None or int(match[1]) != state.round:
            continue
        try:
            descriptor = open_plain(os.path.join(folder, name))
        except OSError:  # another user's; then the rank's values are lost
            continue
        with open(descriptor, "rb") as file:
            content = file.read()
        own = own_in(content)
        if own is not None and own[0] == state.step:
            found[int(match[2])] = own[1]
    return found


def check_room(folder: str, size: int, held: int = 0) -> None:
    """Refuse a state that would take more than half of the memory which is free, or more than the folder has.

    Sizes are in bytes; `held` is the part of it that is there already.

    Raises:
        NoRoomError: it would.
        OSError: the folder is gone.
    """
    free = min(shutil.disk_usage(folder).free + held, int(_SHARE * (free_memory() + held)))
    if size > free:
        raise NoRoomError(
            f"it has {size} bytes, and this node has {free} bytes of memory for it",
            where=folder,
            fix="raise the limit of memory of the job, or of /dev/shm",
        )


@contextmanager
def one_at_a_time(folder: str) -> Iterator[None]:
    """Wait until no other process of this node keeps a state; one that is killed lets the next go on."""
    descriptor = open_plain(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class MemorySource:
    """A state in the memory of one node, which its rank sends to all others; all ranks make one.

    Raises:
        DamagedError: it cannot be read.
    """

    kind = "rescued"

    def __init__(
        self, lib: Torch, ranks: RankGroups, state: Rescued, holder: int, folder: str | None
    ) -> None:
        self._lib, self._ranks, self._holder = lib, ranks, holder
        self.state, self.kept = state, set[str]()
        self.name = f"the state of step {state.step} that rank {state.rank} of round {state.round} has kept"
        self._slot = Slot(lib, os.path.join(folder or "", state.file_name))
        is_holder = ranks.rank == holder and folder is not None
        told: tuple[Content, str] = ranks.told(self._read() if is_holder else None, by=holder)
        self._content, problem = told
        if problem:
            raise DamagedError(f"{self.name} cannot be read: {problem}")
        mine = {} if state.is_alike or folder is None else owns_in(folder, state)
        self._rests = {rank: rest for rests in ranks.all_told(mine) for rank, rest in rests.items()}
        lost = [str(rank) for rank in range(state.world_size) if rank not in self._rests]
        if lost and not state.is_alike:
            raise DamagedError(
                f"{self.name} lacks the values of rank {', '.join(lost)}{self._shown()}: one that is lost "
                f"with its node, or whose loop had not told the end of step {state.step}, has none of it"
            )

    def _shown(self) -> str:
        """Return the names of the values of single ranks, in brackets."""
        names = next((sorted(pickle.loads(rest)) for rest in self._rests.values()), [])  # noqa: S301
        return f" ({', '.join(names)})" if names else ""

    def _read(self) -> tuple[Content, str]:
        """Return the content, and why it cannot be read (the holder)."""
        nothing, state = Content([], {}, b""), self.state
        try:
            self._slot.open()
            head = self._slot.copied()
            if head is None or (head.round, head.step, head.rank, head.world_size) != state[:4]:
                return nothing, f"its head is damaged: {self._slot.path}"
            return self._slot.content(), ""
        except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
            return nothing, f"{type(error).__name__}: {error}"

    def stored(self) -> Mapping[str, Any]:
        """Return size and dtype of each tensor, and the other values."""
        return self._content.described(self._lib)

    def owns(self) -> bytes | list[bytes]:
        """Return the values of this rank; those of all ranks that have saved, if their number is another."""
        if self.state.is_alike:
            return self._content.own
        if self.state.world_size == self._ranks.size:
            return self._whole_own(self._ranks.rank)
        return [self._whole_own(rank) for rank in range(self.state.world_size)]

    def _whole_own(self, rank: int) -> bytes:
        own = unpickled(self._lib, self._content.own)
        return pickled(self._lib, own | pickle.loads(self._rests[rank]))  # noqa: S301

    def fill(self, loaded: dict[str, Any]) -> None:
        """Give tensors, by name, the content that the holder sends as bytes."""
        torch, is_holder = self._lib.torch, self._ranks.rank == self._holder
        pieces = {piece.name: piece for piece in self._content.pieces}
        for name in sorted(loaded):
            piece = pieces.get(name)
            if piece is None:
                loaded[name] = self._content.values[name]
                continue
            data = self._slot.data(piece) if is_holder else torch.empty(piece.size, dtype=torch.uint8)
            if self._ranks.size > 1:
                self._ranks.distributed.broadcast(data, src=self._holder, group=self._ranks.group)
            with torch.no_grad():
                loaded[name].copy_(data.view(piece.dtype).view(piece.part))
