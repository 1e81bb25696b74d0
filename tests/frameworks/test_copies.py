"""Copies of sharded states in the memory of nodes: when they count, and what faults do to them."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.errors import DamagedError, UnfitFileError
from hpc_elastic.frameworks.torch.memory.copies import (
    Copied,
    CopySet,
    MemorySource,
    OwnFile,
    Rescued,
    Slot,
    complete_sets,
    found_copies,
    owns_in,
)
from hpc_elastic.frameworks.torch.memory.memory_copies import holders, steps_between
from hpc_elastic.frameworks.torch.memory.node_memory import Began, fit, read_began
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, TrainState
from hpc_elastic.ids import Env, copy_prefix
from hpc_elastic.paths import RunPaths
from hpc_elastic.worker.channel import Channel
from tests.frameworks.ranks import RankServer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
TOKEN = "0123456789abcdef"  # noqa: S105 - no secret
AT = 4200  # bytes: a place in the tensors of a copy


def copied(rank: int, step: int, round_: int = 4, token: str = TOKEN) -> Copied:
    """Return a copy of one of two ranks."""
    return Copied(f"copy-{rank}", token, round_, step, rank, 2, 8192)


@pytest.mark.parametrize(
    ("copies", "whole", "partial"),
    [
        ([copied(0, 30), copied(0, 20), copied(1, 20)], {20}, {30}),
        ([copied(0, 30), copied(1, 30, 3)], set(), {30}),
        ([copied(0, 30), copied(1, 30, token="f" * 16)], set(), {30}),
        ([copied(0, 30), copied(0, 30)], set(), {30}),
    ],
    ids=["ranks with different newest copies", "of another round", "of another run", "twice the same"],
)
def test_a_step_counts_if_all_ranks_have_a_copy_of_it(
    copies: list[Copied], whole: set[int], partial: set[int]
) -> None:
    """In one round of this run."""
    found = complete_sets(copies, TOKEN)
    assert (whole, partial) == tuple({one.step for one in sets} for sets in found)
    assert (set(), set()) == complete_sets(copies, "")


@pytest.mark.parametrize("whose", ["a link", "another user's"])
def test_nothing_of_another_user_is_read(tmp_path: Path, whose: str) -> None:
    """Values are unpickled: a copy or a state counts only in a plain file of this user's."""
    torch = pytest.importorskip("torch")
    lib, folder, aside = Torch(torch, *[None] * 3), tmp_path / "folder", tmp_path / "aside"
    folder.mkdir()
    aside.mkdir()
    state = Rescued(4, 30, 0, 2)
    kept, slot = str(folder / state.file_name), Slot(lib, str(folder / "copy-0-0"))
    _, values_at, end = slot.write({"step": 3}, b"own")
    slot.seal(Copied("", TOKEN, 4, 3, 0, 1, end), values_at)
    whole = Slot(lib, kept)
    _, values_at, end = whole.write({"step": 3}, b"own")
    whole.seal(Copied("", TOKEN, *state[:4], end), values_at)
    OwnFile(str(folder), 4, 1).write(state.step, b"values")
    assert [3] == [one.step for one in found_copies(str(folder), "copy-")]
    assert {1: b"values"} == owns_in(str(folder), state)
    assert state == MemorySource(lib, RankGroups(0, 1, None), state, 0, str(folder)).state
    for path in list(folder.iterdir()):
        if whose == "a link":
            path.symlink_to(path.rename(aside / path.name))
        elif os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            pytest.skip("only root can give a file away")
    assert [] == found_copies(str(folder), "copy-")
    assert {} == owns_in(str(folder), state)
    again = Slot(lib, slot.path)
    words = whose if whose == "a link" else "belongs to user"
    for reads in (again.open, lambda: again.reserve(1)):
        with pytest.raises(UnfitFileError, match=words):
            reads()
    with pytest.raises(DamagedError, match=words):
        MemorySource(lib, RankGroups(0, 1, None), state, 0, str(folder))


def test_objects_in_the_wrappers_of_lightning_fabric_count() -> None:
    """A loader's has no state itself; an optimizer's derives from the optimizer's class, too."""
    kinds = {"Tensor": float, "nn": SimpleNamespace(Module=float), "optim": SimpleNamespace(Optimizer=float)}
    lib = Torch(SimpleNamespace(**kinds), *[None] * 3)

    class Stateful:
        def state_dict(self) -> dict[str, int]:
            return {"at": 5}

        load_state_dict = state_dict

    inner, fabrics = Stateful(), ("_FabricModule", "_FabricOptimizer", "_FabricDataLoader")
    names = dict.fromkeys(("_forward_module", "optimizer", "_dataloader"), inner)
    wrappers = {name: type("Fabric", (type(name, (), names),), {})() for name in fabrics}
    state = TrainState(lib, {"nested": wrappers, "value": 3})
    assert [*[inner] * 3, 3] == [entry.value for entry in state.entries]
    assert {"at": 5} == state.parts()[1]["nested._FabricDataLoader"]


def test_copies_count_for_the_round_after_theirs() -> None:
    """And once more if that one has made none, unless it has failed by itself."""
    new, old = CopySet(4, 30, 2), CopySet(2, 50, 2)
    assert [new] == fit([old, new], Began(4), is_suspect=False)
    assert [new] == fit([old, new], Began(5, 4, 30), is_suspect=False)
    assert [] == fit([old, new], Began(5, 4, 30), is_suspect=True)


class Nodes:
    """The memory of three nodes, and the run of their ranks.

    Args:
        place: a directory.
    """

    def __init__(self, place: Path) -> None:
        self._run = str(place / "run")
        self.checkpoints = str(place / "run" / "saved")
        self._rounds = 0
        self.memory = [place / f"memory-{node}" for node in range(3)]
        for memory in self.memory:
            memory.mkdir()

    def next_round(self, *nodes: int) -> list[dict[str, str]]:
        """Return the environment of the ranks of another round, given the node of each."""
        self._rounds += 1
        environ = []
        for rank, node in enumerate(nodes):
            path = str(self.memory[node] / f"{self._rounds}.{rank}")
            Channel.create(path).close()
            run = {Env.RUN_DIR: self._run, Env.ROUND: str(self._rounds), Env.CHECKPOINT: ""}
            environ.append({**run, Env.CHANNEL: path, Env.NODE: f"n{node}"})
        return environ

    def copies(self, node: int) -> list[tuple[Copied, Path]]:
        """Return the copies in the memory of a node, the newest first, and their files."""
        prefix = copy_prefix(RunPaths(self._run).root, f"n{node}")
        found = found_copies(str(self.memory[node]), prefix)
        found.sort(key=lambda one: -one.step)
        return [(one, self.memory[node] / one.name) for one in found]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Three nodes."""
    return Nodes(tmp_path)


def run(ranks: RankServer, nodes: Nodes, places: tuple[int, ...], steps: int, *words: Any) -> list[Any]:
    """Run one round of ranks that copy their state after each step."""
    return ranks.run(len(places), "copy", steps, *words, environ=nodes.next_round(*places))


def test_a_start_goes_on_from_the_newest_copies(ranks: RankServer, nodes: Nodes) -> None:
    """Also where ranks are on other nodes than before; each gets its own values back."""
    first = run(ranks, nodes, (0, 1), 4)
    assert [[[0, 3, 1], [0, 4, 1]], [[1, 3, 1], [1, 4, 1]]] == [value["kept"] for value in first]
    for path in (path for node in (0, 1) for _, path in nodes.copies(node)):
        assert 0o600 == path.stat().st_mode & 0o777
    moved = run(ranks, nodes, (1, 0), 0)
    assert [4, 4] == [value["start"] for value in moved]
    assert [{**first[0]["seen"], "rank": rank} for rank in (0, 1)] == [value["loaded"] for value in moved]
    again = run(ranks, nodes, (1, 0), 3)
    assert [4, 4] == [value["start"] for value in again], "no step was made from them"
    assert [[0, 7, 3], [1, 3, 1], [1, 4, 1]] == again[0]["kept"]
    record = read_began(nodes.checkpoints)
    assert record is not None
    assert (3, 1, 4, (1,)) == (record.round, record.from_round, record.from_step, record.recovered)


def test_copies_of_another_number_of_ranks_or_of_an_older_round_do_not_count(
    ranks: RankServer, nodes: Nodes
) -> None:
    """The checkpoint counts, here none, and a line says why; a node that comes back is not believed."""
    run(ranks, nodes, (0, 1), 3)
    result = ranks.start(1, "copy", 0, environ=nodes.next_round(0)).results()[0]
    assert 0 == result.value["start"]
    assert "the copy of step 3 in memory is of 2 ranks, and" in result.printed
    assert [0, 0] == [value["start"] for value in run(ranks, nodes, (0, 1), 0)]


def test_a_rank_that_is_killed_in_the_middle_of_a_copy_costs_that_copy_alone(
    ranks: RankServer, nodes: Nodes
) -> None:
    """The other rank has a newer one, which counts no more than the torn one."""
    group = ranks.start(2, "copy", 5, "dies", environ=nodes.next_round(0, 1))
    assert -signal.SIGKILL == group.results()[1].code
    assert [5, 4] == [one.step for one, _ in nodes.copies(0)]
    assert [4] == [one.step for one, _ in nodes.copies(1)]
    assert [4, 4] == [value["start"] for value in run(ranks, nodes, (0, 1), 0)]


def test_damaged_copies_give_way_to_older_ones(ranks: RankServer, nodes: Nodes) -> None:
    """One that is not finite is none, and one byte that differs is found; wiped memory is no obstacle."""
    first = run(ranks, nodes, (0, 1), 5, "not finite")
    assert [[0, 4], [0, 5]] == [one[:2] for one in first[0]["kept"]]
    assert [[1, 4]] == [one[:2] for one in first[1]["kept"]]
    assert [4, 4] == [value["start"] for value in run(ranks, nodes, (0, 1), 3)]
    (newest, path), *_ = nodes.copies(1)
    assert 7 == newest.step
    data = bytearray(path.read_bytes())
    data[AT] ^= 1
    path.write_bytes(data)
    result = ranks.start(2, "copy", 0, environ=nodes.next_round(0, 1)).results()[0]
    assert 4 == result.value["start"]
    assert "cannot be read on rank 1: its checksum does not fit" in result.printed
    for _, path in nodes.copies(0):
        path.unlink()
    assert [0, 0] == [value["start"] for value in run(ranks, nodes, (0, 1), 0)]


def test_without_room_there_are_no_copies(ranks: RankServer, nodes: Nodes) -> None:
    """The training goes on, and a line says so; no file is left."""
    results = ranks.start(2, "copy", 4, "no room", environ=nodes.next_round(0, 1)).results()
    assert [[], []] == [result.value["kept"] for result in results]
    assert "no copies of the state are kept in this node's memory: [Errno 27]" in results[0].printed
    assert not [path for memory in nodes.memory for path in memory.glob("copy-*")]


def test_a_copy_stands_in_for_a_state_that_cannot_be_kept_at_a_fault(ranks: RankServer, nodes: Nodes) -> None:
    """Every rank holds the whole of it, but it has changed since its step."""
    result = ranks.start(2, "copy", 4, "changes", "ddp", environ=nodes.next_round(0, 1)).results()[0]
    assert [[0, 3, 1], [0, 4, 1]] == result.value["kept"]
    assert not [path for memory in nodes.memory for path in memory.glob("rescued-*")]
    again = run(ranks, nodes, (0, 1), 0, "", "ddp")
    assert [4, 4] == [value["start"] for value in again]
    assert result.value["seen"] == {name: one for name, one in again[0]["loaded"].items() if name != "rank"}


def test_copies_cost_a_hundredth_of_the_time() -> None:
    """At least one step is between them."""
    assert 267 == steps_between(cost_s=0.1, step_s=0.05)
    assert 1 == steps_between(cost_s=0.1, step_s=60.0)


def test_the_ranks_of_a_node_have_their_second_copies_on_the_next_node() -> None:
    """Nodes may have different numbers of ranks; one node alone has no next one."""
    assert {0: 2, 1: 3, 2: 4, 3: 4, 4: 0} == holders([[0, 1], [2, 3], [4]])
    assert {} == holders([[0, 1]])


REPLICAS = ("fsdp", 1)


def test_a_lost_node_costs_no_more_than_the_work_since_the_last_copy(ranks: RankServer, nodes: Nodes) -> None:
    """A copy whose rank is killed while it is sent is none; a node that comes back is not believed."""
    group = ranks.start(2, "copy", 5, "dies sending", *REPLICAS, environ=nodes.next_round(0, 1))
    assert -signal.SIGKILL == group.results()[1].code
    found = [(one.rank, one.step, one.is_replica) for one, _ in nodes.copies(0)]
    assert [(0, 5, False), (0, 4, False), (1, 4, True)] == found
    second = run(ranks, nodes, (0, 2), 3, "", *REPLICAS)
    assert [(4, 0), (4, 1)] == [(value["start"], value["loaded"]["rank"]) for value in second]
    record = read_began(nodes.checkpoints)
    assert record is not None
    assert ("replica", 1, 4, (1,)) == (record.source, record.from_round, record.from_step, record.recovered)
    again = run(ranks, nodes, (1, 0), 4, "stops", *REPLICAS)
    assert [7, 7] == [value["start"] for value in again], "and node 1 has copies of step 4"
    assert [{**second[0]["seen"], "rank": rank} for rank in (0, 1)] == [value["loaded"] for value in again]


def test_a_damaged_second_copy_gives_way_to_the_one_before_it(ranks: RankServer, nodes: Nodes) -> None:
    """Of a node that is lost; without another one the checkpoint counts, here none."""
    run(ranks, nodes, (0, 1), 5, "", *REPLICAS)
    seconds = [(one.step, path) for one, path in nodes.copies(0) if one.is_replica]
    assert [5, 4] == [step for step, _ in seconds]
    whole = [path.read_bytes() for _, path in seconds]
    for start, (_, path), data in zip((4, 0), seconds, whole, strict=True):
        damaged = bytearray(data)
        damaged[AT] ^= 1
        path.write_bytes(damaged)
        result = ranks.start(2, "copy", 0, "", *REPLICAS, environ=nodes.next_round(0, 2)).results()[0]
        assert start == result.value["start"]
        assert "cannot be read on rank 1: its checksum does not fit" in result.printed


def test_without_second_copies_there_are_still_those_on_the_nodes(ranks: RankServer, nodes: Nodes) -> None:
    """A node without room for them says so once, and so does one node alone."""
    results = ranks.start(2, "copy", 5, "for others", *REPLICAS, environ=nodes.next_round(0, 1)).results()
    words = "copies of the state have no second copy on another node any more: "
    assert [1, 1] == [result.printed.count(words) for result in results]
    assert f"{words}[Errno 27]" in results[1].printed
    assert [{0}, {1}] == [{rank for rank, _, _ in result.value["kept"]} for result in results]
    alone = ranks.start(2, "copy", 4, "", *REPLICAS, environ=nodes.next_round(0, 0)).results()
    words = "copies of the state have no second copy: all ranks are on one node"
    assert [1, 0] == [result.printed.count(words) for result in alone]
    assert {0, 1} == {rank for rank, _, _ in alone[0].value["kept"]}
