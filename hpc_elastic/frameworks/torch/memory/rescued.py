"""The states that ranks have kept in their node's memory when another rank had failed: files and room."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from hpc_elastic.errors import DamagedError, InputError
from hpc_elastic.frameworks.torch.memory.copies import Content, Slot
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, pickled, unpickled
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.control_group import free_memory
from hpc_elastic.record.memory_files import OWN, RESCUED, own_file, own_in
from hpc_elastic.store.plain_file import open_plain

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
        state, own = RESCUED.fullmatch(name.removesuffix(PRIVATE)), OWN.fullmatch(name)
        if state is None and own is None:
            continue
        is_kept = keep is not None and (name == keep.file_name or (own and int(own[1]) == keep.round))
        if not is_kept:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def remove_up_to(folder: str, step: int) -> None:
    """Remove the states that a checkpoint has made useless."""
    for one in found_in(folder):
        if one.step <= step:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, one.file_name))


def remove_unfinished(folder: str) -> None:
    """Remove the unfinished files of ranks that were killed."""
    for name in os.listdir(folder):
        if name.endswith(PRIVATE):
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

    Args:
        folder: in the node's memory.
        size: of the state [bytes].
        held: the part of it that is there already [bytes].

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
