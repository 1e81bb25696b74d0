"""The states in the memory of nodes: all ranks begin from one of them, the best that can be read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.errors import InputError  # noqa: E402
from hpc_elastic.frameworks.saving import Saves  # noqa: E402
from hpc_elastic.frameworks.torch.checkpoints import Checkpoints  # noqa: E402
from hpc_elastic.frameworks.torch.memory.copies import (  # noqa: E402
    Copied,
    Slot,
    found_in,
    slot_name,
)
from hpc_elastic.frameworks.torch.memory.node_memory import (  # noqa: E402
    FILE,
    Began,
    NodeMemory,
    RoundStart,
    read_began,
    write_began,
)
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import Replicated, TrainState, load_torch, pickled  # noqa: E402
from hpc_elastic.frameworks.torch.trainer_memory import TrainerMemory, trainer_memory  # noqa: E402
from hpc_elastic.ids import Env, copy_prefix  # noqa: E402
from hpc_elastic.worker.channel import Channel  # noqa: E402
from tests.frameworks.test_saving import in_run  # noqa: E402
from tests.frameworks.thread_ranks import on_ranks  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
LIB, TOKEN = load_torch(), "0123456789abcdef"
ROUND = 4


class Node:
    """The memory of a node, and a run.

    Args:
        place: a directory.
        name: of the node.
    """

    def __init__(self, place: Path, name: str) -> None:
        self.run, self.name = place / "run", name
        self.folder = place / name
        self.folder.mkdir(parents=True)
        self.run.mkdir(mode=0o700, exist_ok=True)
        self.saved = self.run / "saved"
        self.prefix = copy_prefix(str(self.run), name)

    def environ(self, rank: int = 0) -> dict[str, str]:
        """Return the variables of a rank there."""
        channel = str(self.folder / f"{ROUND}.{rank}")
        if not os.path.exists(channel):
            Channel.create(channel).close()
        place = {Env.CHANNEL: channel, Env.RUN_DIR: str(self.run), Env.NODE: self.name}
        return {**place, Env.ROUND: str(ROUND)}

    def start(self, step: int = 0, round_: int = ROUND) -> RoundStart:
        """Return the start of a round, with the step of its newest checkpoint."""
        return RoundStart(round_, str(self.saved), step, str(self.run), lambda: step)

    def copy(self, rank: int, step: int, of: int = 1, round_: int = ROUND - 1, token: str = TOKEN) -> str:
        """Leave a copy of a rank; return its path."""
        slot = Slot(LIB, str(self.folder / slot_name(self.prefix, rank, step % 2)))
        state = {"w": torch.full((3,), float(100 * step + rank))}
        _, values_at, end = slot.write(state, pickled(LIB, {"rank": rank}))
        slot.seal(Copied(os.path.basename(slot.path), token, round_, step, rank, of, end), values_at)
        return slot.path


def began(node: Node, round_: int = ROUND - 1, **more: Any) -> None:
    """Record the start of a round before this one."""
    write_began(str(node.saved), Began(round_, token=TOKEN, **more))


def memory(node: Node, ranks: RankGroups | None = None, **more: Any) -> NodeMemory:
    """Return the memory of a rank."""
    ranks = ranks or RankGroups(0, 1, None)
    switches = {"rescue": False, "copies": True, **more}
    return NodeMemory(LIB, ranks, node.environ(ranks.rank), **switches)


def found(node: Node, step: int = 0) -> int | None:
    """Return the step of the state in memory that one rank begins from."""
    state = memory(node).find(node.start(step))
    return None if state is None else state.state.step


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node."""
    return Node(tmp_path, "n1")


def test_the_newest_copy_is_begun_from_and_that_is_recorded(node: Node) -> None:
    """With its source; the round before it has lost next to nothing."""
    began(node, recovered=(1,))
    for step in (20, 21):
        node.copy(0, step)
    assert 21 == found(node)
    assert Began(ROUND, ROUND - 1, 21, TOKEN, (1, ROUND - 1), "memory") == read_began(str(node.saved))


@pytest.mark.parametrize(("step", "expected"), [(20, 21), (21, None), (22, None)])
def test_a_checkpoint_that_is_as_new_counts(node: Node, step: int, expected: int | None) -> None:
    """It is durable."""
    began(node)
    node.copy(0, 21)
    assert expected == found(node, step)
    after = read_began(str(node.saved))
    assert after is not None
    assert ("memory" if expected else FILE, expected) == (after.source, after.from_step)
    assert (ROUND, TOKEN) == (after.round, after.token)


@pytest.mark.parametrize("wrong", [{"token": "f" * 16}, {"round_": ROUND - 2}, {"of": 2}])
def test_a_copy_of_another_run_round_or_number_of_ranks_does_not_count(
    node: Node, wrong: dict[str, Any]
) -> None:
    """Nor one of a part of the ranks."""
    began(node)
    node.copy(0, 21, **wrong)
    assert found(node) is None


def test_without_a_record_of_the_rounds_before_nothing_in_memory_counts(node: Node) -> None:
    """The run was removed, or has just begun: the token of the next rounds is a new one."""
    node.copy(0, 21)
    assert found(node) is None
    first = read_began(str(node.saved))
    assert first is not None
    assert first.token not in ("", TOKEN)
    began(node, ROUND + 1)
    assert found(node) is None
    assert TOKEN != (read_began(str(node.saved)) or first).token


def test_a_state_in_memory_counts_where_the_newest_checkpoint_is_damaged(node: Node) -> None:
    """The checkpoint's files are read only where they decide."""
    began(node)
    node.copy(0, 21)
    looks: list[int] = []

    def whole_step() -> int:
        looks.append(1)
        return 20

    start = node.start(30)._replace(whole_step=whole_step)
    state = memory(node).find(start)
    assert state is not None
    assert (21, [1]) == (state.state.step, looks)
    began(node)
    state = memory(node).find(start._replace(file_step=20))
    assert state is not None
    assert (21, [1]) == (state.state.step, looks)


def test_a_damaged_copy_has_an_older_one_count(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It is told which one, and why."""
    began(node)
    node.copy(0, 20)
    path = node.copy(0, 21)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert 20 == found(node)
    assert "the copy of step 21 that round 3 has kept in memory cannot be read on rank 0" in caplog.text
    assert "an older state counts" in caplog.text


def test_a_choice_that_cannot_be_recorded_is_none(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """The next start would not know of it: the checkpoint counts, and no copies are made."""
    began(node)
    node.copy(0, 21)
    record = node.saved / "began.json"
    names = os.listdir(node.saved)
    assert names == [record.name] or len(names) == 1
    for name in names:
        os.rename(node.saved / name, node.run / name)
        (node.saved / name).mkdir()
        (node.saved / name / "x").touch()
    assert found(node) is None
    assert "cannot be recorded, so the newest checkpoint counts" in caplog.text
    mine = memory(node)
    assert mine.find(node.start()) is None
    assert mine.copies is not None
    assert "" == mine.copies._start.token


def test_what_is_passed_over_after_the_same_failure_is_told(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the step that counts now: of the newest state that does, else of the checkpoint."""
    monkeypatch.setattr("hpc_elastic.frameworks.torch.memory.node_memory.is_suspect", lambda *_: True)
    began(node, from_round=2, from_step=21)
    node.copy(0, 21, round_=2)
    assert found(node, 7) is None
    words = "the state of step 21 that round 2 has kept in memory is passed over"
    assert words in caplog.text
    assert "the state of step 7 counts" in caplog.text


@pytest.mark.parametrize(("of", "why"), [(2, "some ranks have lost it"), (1, "there are 2 now")])
def test_a_copy_that_is_of_no_use_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, of: int, why: str
) -> None:
    """Of other ranks, or of another number of them."""
    nodes = [Node(tmp_path, name) for name in ("n1", "n2")]
    began(nodes[0])
    nodes[0].copy(0, 21, of=of)

    def look(dist: Any, rank: int) -> bool:
        ranks = RankGroups(rank, 2, dist, dist.group.WORLD)
        return memory(nodes[rank], ranks).find(nodes[rank].start()) is None

    assert [True, True] == on_ranks(2, look)
    assert (
        f"the copy of step 21 in memory is of {of} ranks, and {why}; the newest checkpoint counts"
        in caplog.text
    )


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_know_which_of_them_are_on_one_node(tmp_path: Path, *, shared: bool) -> None:
    """By the folder of each; all of them begin from the same step, each with its own copy."""
    first = Node(tmp_path, "n1")
    nodes = [first, first if shared else Node(tmp_path, "n2")]
    began(first)
    for rank, node in enumerate(nodes):
        node.environ(rank)
        for step in (20, 21):
            node.copy(rank, step, of=2)

    def look(dist: Any, rank: int) -> tuple[Any, ...]:
        mine = memory(nodes[rank], RankGroups(rank, 2, dist, dist.group.WORLD))
        state = {"w": torch.zeros(3)}
        kept = mine.find(nodes[rank].start(), TrainState(LIB, state).load)
        step = None if kept is None else kept.state.step
        assert mine.copies is not None
        start = mine.copies._start
        names = {slot_name(nodes[rank].prefix, one, 1) for one in start.on_node}
        assert names == set(start.kept)
        return step, state["w"].tolist(), list(map(list, start.nodes)), list(start.on_node), start.step

    expected = ([[0, 1]], [0, 1], [0, 1]) if shared else ([[0], [1]], [0], [1])
    for rank, seen in enumerate(on_ranks(2, look)):
        assert (21, [2100.0 + rank] * 3, expected[0], expected[1 + rank], 21) == seen


def test_copies_are_made_and_sent_only_if_they_are_asked_for(node: Node) -> None:
    """Second copies need a process group of their own; without a folder there are none."""
    assert memory(node, copies=False).copies is None
    mine = memory(node).copies
    assert mine is not None
    assert mine._replicas is None
    sending = memory(node, RankGroups(0, 1, None, None, None, object())).copies
    assert sending is not None
    assert sending._replicas is not None
    away = NodeMemory(LIB, RankGroups(0, 1, None), {}, rescue=True, copies=True)
    assert (None, None) == (away.rescue, away.copies)
    gone = {**node.environ(), Env.CHANNEL: str(node.folder / "gone" / "4.0")}
    assert NodeMemory(LIB, RankGroups(0, 1, None), gone, rescue=False, copies=True).copies is None


class Epoch:
    """A value of a Trainer that is the same on all ranks."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        """Return it."""
        return {"epoch": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it."""
        self.number = state["epoch"]


class Trainer:
    """A Trainer of one rank in a run, whose states are kept in memory.

    Args:
        node: of the rank.
        monkeypatch: gives the process its place in the run.
        size: how many ranks there are, of which this is the first.
    """

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, size: int = 1) -> None:
        environ = {**in_run(node.run, monkeypatch), **node.environ()}
        self.node = node
        self.model = torch.nn.Linear(3, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.epoch = Epoch()
        place = Replicated(self.epoch)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "place": place}
        saves = Saves(None, node.saved, environ=environ)
        self.memory = TrainerMemory(LIB, RankGroups(0, size, LIB.distributed), saves, str(node.run), environ)

    def step(self, number: int) -> None:
        """Make a step."""
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        self.epoch.number = number
        self.memory.reached(number, self.state)


@pytest.fixture
def trainer(node: Node, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a Trainer; it keeps nothing at the end of the test."""
    made: list[Trainer] = []

    def make(size: int = 1) -> Trainer:
        made.append(Trainer(node, monkeypatch, size))
        return made[-1]

    yield make
    for one in made:
        one.memory.stop()


def test_a_trainer_goes_on_from_the_state_that_was_kept(
    trainer: Callable[[], Trainer], node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is known first; its objects are loaded later, with this rank's own values beside."""
    caplog.set_level(logging.INFO)
    first = trainer()
    assert first.memory.find() is None
    assert first.memory.is_able
    for number in (1, 2):
        first.step(number)
        first.memory.note_own(number, b"own of %d" % number)
    first.memory.keep()
    assert not first.memory.is_able
    assert [2] == [one.step for one in found_in(str(node.folder))]
    weight = first.model.weight.tolist()

    again = trainer()
    found = again.memory.find()
    assert found is not None
    assert (2, ROUND, b"own of 2") == (found.step, found.round, found.own)
    assert {"epoch": 2} == found.values["place"]
    with pytest.raises(InputError, match=r"begins at step 1, but newest\(\) has returned the path of step 2"):
        again.memory.load(again.state, 1, "call")
    again.memory.load(again.state, 2, "call")
    assert (weight, 2) == (again.model.weight.tolist(), again.epoch.number)
    again.model.weight.data.zero_()
    again.memory.load(again.state, 2, "call")  # once
    assert [[0.0] * 3] == again.model.weight.tolist()


def test_another_number_of_ranks_goes_on_without_the_values_of_single_ones(
    trainer: Callable[..., Trainer],
) -> None:
    """The state itself is the same on all of them."""
    first = trainer(2)
    first.memory.find()
    first.step(1)
    first.memory.note_own(1, b"own")
    first.memory.keep()
    found = trainer(1).memory.find()
    assert found is not None
    assert (1, {"epoch": 1}, None) == (found.step, found.values["place"], found.own)


def test_values_of_a_rank_are_written_as_long_as_its_state_is_kept(
    trainer: Callable[[], Trainer], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; a failure ends it, and the training goes on."""
    one = trainer()
    one.memory.find()
    written: list[tuple[int, bytes]] = []
    assert one.memory._own is not None
    monkeypatch.setattr(one.memory._own, "write", lambda step, own: written.append((step, own)))
    for step, own in ((1, b"a"), (1, b"a"), (1, b"b"), (2, b"b")):
        one.memory.note_own(step, own)
    assert [(1, b"a"), (1, b"b"), (2, b"b")] == written

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one.memory._own, "write", fails)
    one.memory.note_own(3, b"c")
    one.memory.note_own(4, b"d")
    other = trainer()
    other.memory.stop()
    other.memory.note_own(1, b"a")
    assert not list(node.folder.glob("own-*"))


def test_without_a_state_a_trainer_begins_from_its_checkpoint(trainer: Callable[[], Trainer]) -> None:
    """Nothing is loaded, whatever step it begins at."""
    one = trainer()
    assert one.memory.find() is None
    before = one.model.weight.tolist()
    one.memory.load(one.state, 7, "call")
    assert before == one.model.weight.tolist()


def test_a_checkpoint_makes_older_states_useless(trainer: Callable[[], Trainer], node: Node) -> None:
    """They are removed; so is nothing after the reason why a training keeps none was told."""
    one = trainer()
    one.memory.find()
    one.step(3)
    one.memory.keep()
    assert 1 == len(found_in(str(node.folder)))
    one.memory.saved(2)
    assert 1 == len(found_in(str(node.folder)))
    one.memory.saved(3)
    assert [] == found_in(str(node.folder))


def test_a_trainer_that_is_over_tells_nothing(
    trainer: Callable[[], Trainer], caplog: pytest.LogCaptureFixture
) -> None:
    """One whose states are in files alone says why."""
    caplog.set_level(logging.INFO)
    trainer().memory.stop()
    assert "is not kept" not in caplog.text
    trainer().memory.stop("it is sharded")
    assert "the state is not kept when another rank fails: it is sharded" in caplog.text


def test_a_durable_checkpoint_makes_states_in_memory_useless(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its step and before."""
    environ = {**in_run(node.run, monkeypatch), **node.environ()}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    net = torch.nn.Linear(2, 1)
    state = {"net": net, "o": torch.optim.SGD(net.parameters(), lr=0.1)}
    checkpoints = Checkpoints(every=None)
    checkpoints.load(state)
    checkpoints.done(1, state)
    assert checkpoints._memory is not None
    assert checkpoints._memory.rescue is not None
    checkpoints._memory.rescue.keep()
    assert [1] == [one.step for one in found_in(str(node.folder))]
    checkpoints.save(1, state)
    checkpoints.wait()
    assert [] == found_in(str(node.folder))
    assert [f"step-1-{ROUND}"] == [name for name in os.listdir(node.saved) if name.startswith("step-")]
    checkpoints._end_memory()


@pytest.mark.parametrize("rank", [0, 1])
def test_where_buffers_alone_differ_rank_0_keeps_the_state(node: Node, rank: int) -> None:
    """They are sent to all ranks before they are used; where a parameter differs no rank does."""
    mine = memory(node, RankGroups(rank, 2, None), rescue=True)
    assert mine.rescue is not None
    try:
        mine.differs("")
        assert (True, rank == 0) == (mine.rescue.is_able, mine.rescue._keeps)
        mine.differs("net.weight")
        assert not mine.rescue.is_able
    finally:
        mine.stop()


def test_values_that_differ_between_two_ranks_are_written_apart() -> None:
    """Of a single rank all names stay."""

    def part(dist: Any, rank: int) -> set[str]:
        checkpoints = object.__new__(Checkpoints)
        checkpoints._lib, checkpoints._memory = LIB, None
        group = dist.group.WORLD
        checkpoints._ranks = RankGroups(rank, dist.get_world_size(), dist, group, group)
        return set(checkpoints._parted({"expert": torch.full((2,), float(rank)), "w": torch.zeros(1)}, {}))

    assert [{f"own.{rank}/expert", "w"} for rank in range(2)] == on_ranks(2, part)
    assert [{"expert", "w"}] == on_ranks(1, part)


def test_copies_are_made_by_all_ranks_or_by_none(tmp_path: Path) -> None:
    """Those of one whose node has no place for them would be lacking."""
    nodes = [Node(tmp_path, name) for name in ("n1", "n2")]
    began(nodes[0])

    def tokens(*gone: int) -> list[str]:
        def look(dist: Any, rank: int) -> str:
            mine = memory(nodes[rank], RankGroups(rank, 2, dist, dist.group.WORLD))
            assert mine.copies is not None
            if rank in gone:
                mine._folder = ""
            mine.find(nodes[rank].start())
            return mine.copies._start.token

        return on_ranks(2, look)

    assert [TOKEN, TOKEN] == tokens()
    assert ["", ""] == tokens(1)


def test_without_an_agent_or_a_run_no_state_is_kept(node: Node) -> None:
    """Both are needed; a channel that is gone is no error."""
    environ, ranks = node.environ(), RankGroups(0, 1, None)
    for name in (Env.CHANNEL, Env.RUN_DIR):
        lacking = {key: value for key, value in environ.items() if key != name}
        assert NodeMemory(LIB, ranks, lacking, rescue=True, copies=False).rescue is None
    gone = {**environ, Env.CHANNEL: str(node.folder / "gone")}
    assert NodeMemory(LIB, ranks, gone, rescue=True, copies=False).rescue is None
    mine = NodeMemory(LIB, ranks, environ, rescue=True, copies=False)
    assert mine.rescue is not None
    mine.stop()


def test_a_trainer_has_a_memory_below_an_agent_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its states are in files alone, rank 0 says why; without an agent nothing is said."""
    caplog.set_level(logging.INFO)
    environ = {**in_run(node.run, monkeypatch), **node.environ()}
    saves = Saves(None, node.saved, environ=environ)
    assert (
        trainer_memory(saves, "", {name: one for name, one in environ.items() if name != Env.CHANNEL}) is None
    )
    assert "is not kept" not in caplog.text
    assert trainer_memory(saves, "it is sharded", environ) is None
    assert "the state is not kept when another rank fails: it is sharded" in caplog.text
    made = trainer_memory(saves, "", environ)
    assert made is not None
    assert made.is_able
    made.stop()
    monkeypatch.setattr("hpc_elastic.worker._attached", [])
    assert trainer_memory(saves, "", environ) is None
