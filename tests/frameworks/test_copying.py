"""Copies in memory ahead of faults, as one rank makes them: when, where, and when they end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.memory.copies import Copied, Slot, found_copies, slot_name  # noqa: E402
from hpc_elastic.frameworks.torch.memory.memory_copies import (  # noqa: E402  # noqa: E402
    BESIDE,
    SHARE,
    CopyStart,
    MemoryCopies,
    Replicas,
    steps_between,
    taken,
)
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch, unpickled  # noqa: E402
from hpc_elastic.testing.clock import FakeClock  # noqa: E402

pytestmark = pytest.mark.torch
TOKEN = "0123456789abcdef"  # noqa: S105 - no secret
PREFIX = "copy-0123abcd-"
STEP_S = 0.05


class Rank:
    """The only rank of a training.

    Args:
        folder: in the memory of its node.
        kept: names of copies that the round has begun from.
        token: of the run.
    """

    def __init__(self, folder: Path, kept: tuple[str, ...] = (), token: str = TOKEN) -> None:
        self.folder = str(folder)
        self.lib = load_torch()
        self.state: dict[str, Any] = {"model": torch.nn.Linear(2, 2), "epoch": 0}
        self.clock = FakeClock(0.0)
        self.copies = MemoryCopies(self.lib, RankGroups(0, 1, None), self.folder, PREFIX)
        self.copies._clock = self.clock
        self.copies.began(CopyStart(token, 3, 10, [[0]], [0], kept))

    def steps(self, first: int, last: int, *, is_rescued: bool = False) -> None:
        """Make steps, and wait for what each begins in the background."""
        for step in range(first, last + 1):
            self.clock.advance(STEP_S)
            self.state["epoch"] = step
            self.copies.reached(step, self.state, is_rescued=is_rescued)
            thread = self.copies._background._thread
            if thread is not None:
                thread.join()

    def found(self) -> list[int]:
        """Return the steps of the copies that count."""
        return sorted(one.step for one in found_copies(self.folder, PREFIX))

    def until_copied(self, first: int, *, is_rescued: bool = False, most: int = 20_000) -> int:
        """Make steps until there is a copy; return its step."""
        before = self.found()
        for step in range(first, first + most):
            self.steps(step, step, is_rescued=is_rescued)
            if self.found() != before:
                return step
        raise AssertionError("no copy was made")


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """A rank."""
    return Rank(tmp_path)


def test_the_first_copy_is_made_as_soon_as_there_is_room(rank: Rank) -> None:
    """The first step of a start is not looked at, the second one takes the memory."""
    rank.steps(11, 12)
    assert [] == rank.found()
    assert 2 == len([*Path(rank.folder).glob(f"{PREFIX}*")])
    rank.steps(13, 13)
    assert [13] == rank.found()


def test_copies_lie_in_two_files_in_turns(rank: Rank) -> None:
    """The newest one that counts is never written over."""
    rank.steps(11, 13)
    rank.copies._share = 1e9
    rank.copies._next = 14
    rank.steps(14, 15)
    assert [14, 15] == rank.found()
    assert 14 == rank.copies.step
    rank.steps(16, 16)
    assert [15, 16] == rank.found()


def test_a_copy_has_tensors_and_values_of_its_step(rank: Rank) -> None:
    """The values are this rank's."""
    rank.steps(11, 13)
    (found,) = found_copies(rank.folder, PREFIX)
    assert (TOKEN, 3, 13, 0, 1) == (found.token, found.round, found.step, found.rank, found.world_size)
    slot = Slot(rank.lib, f"{rank.folder}/{found.name}")
    slot.open()
    content = slot.content()
    weight = next(piece for piece in content.pieces if piece.name == "model.weight")
    assert torch.equal(rank.state["model"].weight, slot.view(weight))
    assert {"epoch": 13} == unpickled(rank.lib, content.own)


def test_copies_are_rare_where_ranks_keep_their_state(tmp_path: Path) -> None:
    """They stand in for states that cannot be kept, and take a tenth of the time."""
    found, expected = [], []
    for is_rescued, part in ((False, 1.0), (True, BESIDE)):
        folder = tmp_path / str(is_rescued)
        folder.mkdir()
        rank = Rank(folder)
        rank.copies._share = 0.01
        rank.steps(11, 12, is_rescued=is_rescued)
        expected.append(steps_between(rank.copies._cost_s, STEP_S, 0.01 * part))
        rank.steps(13, 13, is_rescued=is_rescued)
        found.append(rank.copies._next - 13)
    assert expected == found
    assert 1 < found[0] < found[1]
    assert 2667 == steps_between(0.1, STEP_S, SHARE * BESIDE)


def test_a_copy_that_is_not_finite_does_not_count(rank: Rank) -> None:
    """The next one does; a tensor that is no parameter or buffer may have such values."""
    rank.copies._share = 1e9
    rank.state["scores"] = torch.full((2,), torch.inf)
    rank.steps(11, 13)
    with torch.no_grad():
        weight = rank.state["model"].weight.clone()
        rank.state["model"].weight[0] = torch.nan
        rank.steps(14, 14)
        rank.state["model"].weight.copy_(weight)
    assert [13] == rank.found()
    rank.steps(15, 15)
    assert [13, 15] == rank.found()


def test_a_state_that_cannot_be_copied_ends_the_copies(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    """A line says why; the training goes on."""
    rank.steps(11, 11)
    rank.state["bad"] = lambda: 0
    rank.steps(12, 30)
    assert [] == [*Path(rank.folder).glob(f"{PREFIX}*")]
    assert 1 == caplog.text.count("no copies of the state are kept in this node's memory: ")


def test_without_a_token_no_copies_are_made(tmp_path: Path) -> None:
    """The round is not recorded, so that nothing would believe them; nor after the end of a training."""
    rank = Rank(tmp_path, token="")
    rank.steps(11, 20)
    other = Rank(tmp_path)
    other.copies.stop()
    other.steps(11, 20)
    assert [] == [*tmp_path.iterdir()]


def test_the_copy_that_the_round_has_begun_from_stays_until_there_is_another(tmp_path: Path) -> None:
    """It is in the first file: the second one is written."""
    rank = Rank(tmp_path)
    rank.steps(11, 13)
    name = slot_name(PREFIX, 0, 0)
    assert (tmp_path / name).exists()
    again = Rank(tmp_path, kept=(name,))
    again.steps(11, 12)
    assert [13] == again.found()
    again.copies._share = 1e9
    again.steps(13, 13)
    assert [name, slot_name(PREFIX, 0, 1)] == sorted(one.name for one in found_copies(str(tmp_path), PREFIX))
    again.copies._next = 14
    again.steps(14, 14)
    assert {13, 14} == set(again.found())


def test_a_checkpoint_removes_copies_of_ranks_that_are_elsewhere_now(rank: Rank) -> None:
    """Those that are as old, and no others."""
    rank.steps(11, 13)
    for other, step in ((1, 13), (2, 14)):
        slot = Slot(rank.lib, f"{rank.folder}/{slot_name(PREFIX, other, 0)}")
        _, values_at, end = slot.write({}, b"")
        slot.seal(Copied("", TOKEN, 2, step, other, 3, end), values_at)
    rank.copies.saved(13)
    assert {(0, 13), (2, 14)} == {(one.rank, one.step) for one in found_copies(rank.folder, PREFIX)}


def test_the_memory_of_a_run_is_counted(rank: Rank) -> None:
    """Its own files alone."""
    rank.steps(11, 13)
    Path(rank.folder, "copy-other-0-0").write_bytes(bytes(1 << 20))
    sizes = [path.stat().st_blocks * 512 for path in Path(rank.folder).glob(f"{PREFIX}*")]
    assert 0 < sum(sizes) == taken(rank.folder, PREFIX)


def test_ranks_on_one_node_have_no_second_copies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 says so, and the first copies are made."""
    caplog.set_level(logging.INFO)
    rank = Rank(tmp_path)
    replicas = Replicas(rank.lib, RankGroups(0, 1, None), rank.folder, PREFIX)
    rank.copies._replicas = replicas
    rank.copies.began(CopyStart(TOKEN, 3, 10, [[0]], [0]))
    assert not replicas.is_on
    rank.steps(11, 13)
    assert [13] == rank.found()
    assert (False, False) == replicas.look()
    assert 1 == caplog.text.count("no second copy: all ranks are on one node")


def test_second_copies_of_a_rank_are_on_the_next_node(tmp_path: Path) -> None:
    """By turns in two files; that of a kept copy comes last."""
    replicas = Replicas(load_torch(), RankGroups(1, 3, None), str(tmp_path), PREFIX)
    kept = slot_name(PREFIX, 0, 0, is_replica=True)
    replicas.began([[0], [1], [2]], [kept])
    assert replicas.is_on
    assert {0} == replicas.on([1])
    assert {0: 1} == replicas._turns
    assert 2 == replicas._holder
    replicas.next_turn()
    assert {0: 0} == replicas._turns
    replicas.give_up()
    assert not replicas.is_on
