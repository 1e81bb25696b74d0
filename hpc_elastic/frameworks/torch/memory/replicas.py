"""Second copies: the copies that the ranks of a node have in its memory are also in that of the next node.

Each rank sends its copy to one rank of the next node when it is sealed, in a thread and over a process group
of their own, a piece at a time. The other rank writes it into one of two files in turns, and its head last.
So the copies of a node that is lost, or of a transfer that a fault cuts off, are whole in the other file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hpc_elastic.errors import DamagedError, HpcElasticError
from hpc_elastic.frameworks.torch.background import Background
from hpc_elastic.frameworks.torch.memory.copies import TENSORS_AT, Slot, copied_as, head_at, slot_name
from hpc_elastic.frameworks.torch.memory.rescued import check_room, one_at_a_time
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch
from hpc_elastic.record.memory_files import COPY_HEAD

logger = logging.getLogger(__name__)
PIECE = 1 << 26  # bytes that are sent at once
_END_S = 5.0  # for the piece that is under way when the training ends


def holders(nodes: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return, by rank, the rank on the next node that holds its second copy; with one node there is none."""
    if len(nodes) < 2:  # noqa: PLR2004 - the number of nodes that a second copy needs
        return {}
    pairs = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
    return {rank: after[place % len(after)] for node, after in pairs for place, rank in enumerate(node)}


class Replicas:
    """Sends the copies of this rank to another node, and keeps those of ranks that send theirs.

    Args:
        folder: in this node's memory; belongs to the agent.
    """

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
        """Take the memory for the copies of other ranks; all ranks call it, in a thread.

        Args:
            size: of this rank's copy [bytes].
        """
        if not self.is_on:
            if self._ranks.rank == 0:
                logger.warning("copies of the state have no second copy: all ranks are on one node")
            return
        sizes = self._ranks.sizes_told(size)
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
        """Send a copy, and receive those of other ranks, in a thread.

        Args:
            slot: the copy; None: this rank has none that counts.
        """
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
        if slot is not None:
            return slot.part(begin, end)
        return self._lib.torch.empty(end - begin, dtype=self._lib.torch.uint8)

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
