"""Second copies on other nodes: what one rank sends is what another one has, or nothing that counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from hpc_elastic.errors import DamagedError  # noqa: E402
from hpc_elastic.frameworks.torch.memory import memory_copies as module  # noqa: E402
from hpc_elastic.frameworks.torch.memory.copies import (  # noqa: E402
    Copied,
    Slot,
    found_copies,
    head_at,
    slot_name,
)
from hpc_elastic.frameworks.torch.memory.memory_copies import Replicas, holders  # noqa: E402
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch, pickled  # noqa: E402

pytestmark = pytest.mark.torch
LIB, TOKEN, PREFIX, LIMIT_S = load_torch(), "0123456789abcdef", "copy-0123abcd-", 60.0


class OfThreads:
    """``torch.distributed`` for ranks that are threads, as far as replicas use it, with groups of gloo's."""

    @staticmethod
    def isend(tensor: Any, dst: int, group: Any) -> Any:
        """Send a tensor."""
        return group.send([tensor], dst, 0)

    @staticmethod
    def irecv(tensor: Any, src: int, group: Any) -> Any:
        """Receive a tensor."""
        return group.recv([tensor], src, 0)

    @staticmethod
    def all_gather_object(values: list[Any], value: int, group: Any) -> None:
        """Tell a number to all ranks."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in values]
        group.allgather([found], [torch.tensor([value])]).wait()
        values[:] = [int(one) for one in found]


class Rank:
    """A rank on a node of its own.

    Args:
        folder: in the memory of its node.
        rank: of several.
        group: process group of all.
    """

    def __init__(self, folder: Path, rank: int, group: Any) -> None:
        self.folder, self.rank = folder, rank
        ranks = RankGroups(rank, group.size(), OfThreads, group, group, group)
        self.replicas = Replicas(LIB, ranks, str(folder), PREFIX)
        self.replicas.began([[one] for one in range(group.size())], ())
        self.slot = Slot(LIB, str(folder / slot_name(PREFIX, rank, 0)))

    def copy(self, step: int) -> Slot:
        """Copy a state of a step into this node's memory."""
        state = {"w": torch.full((1000,), float(10 * step + self.rank))}
        _, values_at, end = self.slot.write(state, pickled(LIB, self.rank))
        name = os.path.basename(self.slot.path)
        self.slot.seal(Copied(name, TOKEN, 3, step, self.rank, 2, end), values_at)
        return self.slot

    def send(self, slot: Slot | None) -> BaseException | None:
        """Send a copy, and wait for the end; return the error."""
        self.replicas.send(slot)
        return self.replicas._background.wait(LIMIT_S)

    def seconds(self) -> list[tuple[int, int]]:
        """Return rank and step of the second copies that count here."""
        return [(one.rank, one.step) for one in found_copies(str(self.folder), PREFIX) if one.is_replica]


@pytest.fixture
def two(tmp_path: Path) -> Callable[[Callable[[Rank], Any]], list[Any]]:
    """Return a function that has two ranks do something at once, and returns what they return."""
    store, ranks = dist.HashStore(), dict[int, Rank]()

    def at_once(act: Callable[[Rank], Any]) -> list[Any]:
        ended = dict[int, Any]()

        def be(rank: int) -> None:
            if rank not in ranks:
                folder = tmp_path / str(rank)
                folder.mkdir()
                group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=LIMIT_S))
                ranks[rank] = Rank(folder, rank, group)
            ended[rank] = act(ranks[rank])

        threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(LIMIT_S)
        return [ended[0], ended[1]]

    return at_once


Two = Callable[[Callable[[Rank], Any]], list[Any]]


def test_each_rank_has_the_copy_of_the_other_one(two: Two) -> None:
    """With its content, and the memory for it is taken before."""
    two(lambda rank: rank.replicas.reserve(50_000))
    assert [None, None] == two(lambda rank: rank.send(rank.copy(7)))
    assert [[(1, 7)], [(0, 7)]] == two(lambda rank: rank.seconds())

    def content(rank: Rank) -> float:
        slot = rank.replicas._held[1 - rank.rank][0]
        piece = slot.content().pieces[0]
        return float(slot.view(piece)[-1])

    assert [71.0, 70.0] == two(content)
    assert [(False, False)] * 2 == two(lambda rank: rank.replicas.look())


def test_the_next_copy_takes_the_other_file(two: Two) -> None:
    """Once all have sent theirs; the one before stays until the turn after."""
    for step in (7, 8, 9):
        two(lambda rank, step=step: rank.send(rank.copy(step)))  # type: ignore[misc]
        two(lambda rank: rank.replicas.next_turn())
    assert [[(1, 8), (1, 9)], [(0, 8), (0, 9)]] == [sorted(one) for one in two(lambda rank: rank.seconds())]

    def names(rank: Rank) -> set[str]:
        return {name for name in os.listdir(rank.folder) if name.endswith("-replica")}

    assert [{slot_name(PREFIX, other, turn, is_replica=True) for turn in (0, 1)} for other in (1, 0)] == two(
        names
    )


def test_a_rank_without_a_copy_sends_none(two: Two) -> None:
    """It receives that of the other one all the same, and what it has sent before counts on."""
    two(lambda rank: rank.send(rank.copy(7)))
    two(lambda rank: rank.replicas.next_turn())
    assert [None, None] == two(lambda rank: rank.send(rank.copy(8) if rank.rank else None))
    assert [[(1, 7), (1, 8)], [(0, 7)]] == two(lambda rank: rank.seconds())


def test_a_rank_that_stops_says_so_before_each_piece(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of its copy counts there; that of the other one does."""
    monkeypatch.setattr(module, "PIECE", 512)
    passed = list[int]()

    def send(rank: Rank) -> BaseException | None:
        before = rank.replicas._piece

        def piece(slot: Slot | None, begin: int, end: int) -> Any:
            passed.append(begin)
            if rank.rank == 0 and begin > 512:
                rank.replicas._is_over = True
            return before(slot, begin, end)

        monkeypatch.setattr(rank.replicas, "_piece", piece)
        return rank.send(rank.copy(7))

    assert [None, None] == two(send)
    assert [[(1, 7)], []] == two(lambda rank: rank.seconds())
    assert len(passed) > 8


def test_a_copy_that_is_stopped_before_it_is_sent_is_not(two: Two) -> None:
    """Its head says that there is none."""

    def send(rank: Rank) -> BaseException | None:
        if rank.rank == 0:
            rank.replicas._is_over = True
        return rank.send(rank.copy(7))

    assert [None, None] == two(send)
    assert [[(1, 7)], []] == two(lambda rank: rank.seconds())


def test_a_copy_that_comes_damaged_does_not_count(two: Two) -> None:
    """The failure is heard of on the rank that has it."""

    def send(rank: Rank) -> str:
        slot = rank.copy(7)
        if rank.rank == 0:
            slot.part(5000, 5001).add_(1)
        return type(rank.send(slot)).__name__

    assert ["NoneType", DamagedError.__name__] == two(send)
    assert [[(1, 7)], []] == two(lambda rank: rank.seconds())


def test_a_second_copy_that_cannot_be_written_is_a_failure_of_it_alone(two: Two) -> None:
    """The transfer goes on, so that the other rank does not wait; then no more are sent."""

    def send(rank: Rank) -> tuple[bool, bool]:
        if rank.rank == 0:
            Path(rank.replicas._held[1][0].path).symlink_to("nowhere")
        rank.send(rank.copy(7))
        return rank.replicas.look()

    assert [(False, True), (False, False)] == two(send)
    assert [[], [(0, 7)]] == two(lambda rank: rank.seconds())
    two(lambda rank: rank.replicas.give_up())
    assert [None, None] == two(lambda rank: rank.send(rank.copy(8)))
    assert [False, False] == two(lambda rank: rank.replicas.is_on)


def test_memory_that_is_not_there_is_heard_of_later(two: Two) -> None:
    """On the rank whose node has none; files of copies that are kept are not touched."""

    def reserve(rank: Rank) -> tuple[bool, bool]:
        rank.replicas.reserve(10**17 if rank.rank == 0 else 10)
        return rank.replicas.look()

    assert [(False, True)] * 2 == two(reserve)


def test_files_that_a_round_has_begun_from_are_not_reserved_anew(two: Two) -> None:
    """A copy in them is needed until there is another one; a given-up file without a copy is removed."""
    two(lambda rank: rank.send(rank.copy(7)))

    def again(rank: Rank) -> tuple[bool, bool]:
        held = rank.replicas._held[1 - rank.rank][0].path
        rank.replicas.began([[0], [1]], [os.path.basename(held)])
        rank.replicas.reserve(90_000)
        first, second = (slot.path for slot in rank.replicas._held[1 - rank.rank])
        is_kept = head_at(first) is not None and os.path.exists(second)
        rank.replicas.give_up()
        return is_kept, os.path.exists(first) and not os.path.exists(second)

    assert [(True, True)] * 2 == two(again)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([], {}),
        ([[0, 1]], {}),
        ([[0], [1]], {0: 1, 1: 0}),
        ([[0, 1], [2, 3], [4, 5]], {0: 2, 1: 3, 2: 4, 3: 5, 4: 0, 5: 1}),
        ([[0, 1, 2], [3]], {0: 3, 1: 3, 2: 3, 3: 0}),
    ],
)
def test_second_copies_are_spread_over_the_ranks_of_the_next_node(
    nodes: list[list[int]], expected: dict[int, int]
) -> None:
    """The last node's are on the first one."""
    assert expected == holders(nodes)


def test_what_is_not_there_is_sent_as_zeros(tmp_path: Path) -> None:
    """The rank whose copy it is finds it damaged; no other one waits for it."""
    slot = Slot(LIB, str(tmp_path / "copy"))
    assert [0] * 8 == slot.to_send(8).tolist()
    (tmp_path / "copy").write_bytes(bytes(range(1, 5)))
    slot.open()
    assert [1, 2, 3] == slot.to_send(3).tolist()
    assert [1, 2, 3, 4] == slot.to_send(4).tolist()
    assert [0] * 5 == slot.to_send(5).tolist()
