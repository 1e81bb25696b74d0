"""States that are kept at the moment of a fault: when they count, and what faults do to them."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.account.facts import parse_facts
from hpc_elastic.clock import SystemClock
from hpc_elastic.ids import Env
from hpc_elastic.start.kept_state import RECORD, KeptState
from hpc_elastic.start.scratch import MEMORY, folder_of, kept_name
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.typed_json import read
from hpc_elastic.worker.channel import Channel
from tests.frameworks import forked
from tests.frameworks.ranks import REPOSITORY, RankServer
from tests.node.agents import is_running

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
LIMIT_S = 120.0
SEED = 7
KILLS = 4
STEPS = 160
SPAN = 15  # steps of a start in which a rank is killed
PAUSED_AT = 60
SCRIPT = Path(__file__).with_name("rescued_training.py")


class Node:
    """The memory of one node, and the run of its ranks.

    Args:
        place: a directory.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self.memory = place / "memory"
        self.memory.mkdir()
        self._rounds = 0

    def next_round(self, world: int) -> list[dict[str, str]]:
        """Return the environment of the ranks of another round."""
        self._rounds += 1
        paths = [str(self.memory / f"{self._rounds}.{rank}") for rank in range(world)]
        for path in paths:
            Channel.create(path).close()
        run = {Env.RUN_DIR: str(self._place / "run"), Env.ROUND: str(self._rounds), Env.CHECKPOINT: ""}
        return [{**run, Env.CHANNEL: path} for path in paths]

    def kept(self) -> list[str]:
        """Return the states in its memory."""
        return sorted(path.name for path in self.memory.glob("rescued*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node."""
    return Node(tmp_path)


def rescued(ranks: RankServer, node: Node, world: int, steps: int, *words: Any) -> list[Any]:
    """Run one round of ranks that keep their state at its end."""
    return ranks.run(world, "rescue", steps, *words, environ=node.next_round(world))


@pytest.mark.parametrize("loaded_by", [1, 2, 3])
def test_a_start_goes_on_from_the_state_that_a_rank_has_kept(
    ranks: RankServer, node: Node, loaded_by: int
) -> None:
    """One rank of a node keeps it for all; weights, optimizer, schedule, tensors and values come back."""
    first = rescued(ranks, node, 2, 3)
    (kept,) = node.kept()
    assert [[kept]] * 2 == [value["kept"] for value in first]
    again = rescued(ranks, node, loaded_by, 0)
    assert [3] * loaded_by == [value["start"] for value in again]
    assert [first[0]["seen"]] * loaded_by == [value["loaded"] for value in again]


def test_the_newest_state_counts_and_takes_the_place_of_older_ones(ranks: RankServer, node: Node) -> None:
    """Round by round, with no checkpoint in a file."""
    starts = [rescued(ranks, node, 2, 2)[0]["start"] for _ in range(3)]
    assert [0, 2, 4] == starts
    assert ["6"] == [name.split("-")[2] for name in node.kept() if name.split("-")[1] == "3"]
    assert 2 >= len(node.kept())


def test_a_state_is_kept_while_the_training_goes_on(ranks: RankServer, node: Node) -> None:
    """The other ranks are there still, and steps follow each other faster than the state is written."""
    first = rescued(ranks, node, 2, 2, "goes on")
    assert [1, 1] == [len(value["kept"]) for value in first]
    assert 2 <= rescued(ranks, node, 2, 0)[0]["start"]


@pytest.mark.parametrize("how", ["in its closure", "grown", "another tensor"])
def test_a_state_is_kept_while_a_closure_computes_a_step(ranks: RankServer, node: Node, how: str) -> None:
    """The tensors change after it: so a peer that is lost in the backward pass of Lightning costs no step.

    So it is after an optimizer has got more parameters, as layers are unfrozen, and as a program has put
    another tensor into the state: whoever asks while that is looked at waits for it.
    """
    assert 1 == len(rescued(ranks, node, 1, 2, how)[0]["kept"])


@pytest.mark.parametrize(
    "how", ["in a step", "after its closure", "not finite", "no room", "another training"]
)
def test_a_state_that_is_no_good_is_not_kept(ranks: RankServer, node: Node, how: str) -> None:
    """Torn, not finite, larger than a file may be, or of a training that was given up for another one.

    The next start begins from the checkpoint.
    """
    assert [[], []] == [value["kept"] for value in rescued(ranks, node, 2, 2, how)]
    assert not list(node.memory.glob("*.part"))
    assert [0, 0] == [value["start"] for value in rescued(ranks, node, 2, 0)]


def test_memory_that_was_wiped_is_no_obstacle(ranks: RankServer, node: Node) -> None:
    """The checkpoint counts, here none."""
    rescued(ranks, node, 2, 2)
    for path in node.memory.iterdir():
        path.unlink()
    assert [0, 0] == [value["start"] for value in rescued(ranks, node, 2, 0)]


def test_a_damaged_state_is_passed_over(ranks: RankServer, node: Node) -> None:
    """Cut off in the middle, it gives way to the checkpoint, here none."""
    rescued(ranks, node, 2, 2)
    (name,) = node.kept()
    path = node.memory / name
    os.truncate(path, path.stat().st_size // 2)
    assert [0, 0] == [value["start"] for value in rescued(ranks, node, 2, 0)]


@pytest.mark.parametrize(
    ("choices", "words"),
    [({"width": 9}, "differ from those in"), ({"dtype": "bfloat16"}, "bfloat16 here")],
)
def test_a_state_of_another_model_is_refused(
    ranks: RankServer, node: Node, choices: dict[str, Any], words: str
) -> None:
    """One error names the tensors and the state, which stays."""
    rescued(ranks, node, 2, 2)
    before = node.kept()
    for result in ranks.start(2, "rescue", 0, "asked", choices, environ=node.next_round(2)).results():
        assert result.value.startswith("RefusedStateError")
        assert words in result.value
        assert "the state of step 2 that rank" in result.value
    assert before == node.kept()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_is_killed_while_it_keeps_its_state_lets_the_next_one_do_it(
    ranks: RankServer, node: Node, tmp_path: Path, number: signal.Signals
) -> None:
    """What it has written does not count, and none of it stays."""
    environ = node.next_round(2)
    killed, other = ranks.start(2, "die_in_a_rescue", 2, tmp_path, number, environ=environ).results()
    assert -number == killed.code
    assert ["rescued-1-2-1-2-0"] == node.kept()
    assert 0 == other.code
    assert [2, 2] == [value["start"] for value in rescued(ranks, node, 2, 0)]
    assert ["rescued-1-2-1-2-0"] == node.kept()
    assert not list(node.memory.glob("*.part"))


def test_threads_of_groups_are_at_rest_when_the_training_of_a_trainer_ends(
    ranks: RankServer, node: Node
) -> None:
    """Else the script's own end of the process group might wait for one that waits for the interpreter."""
    assert [True] == ranks.run(1, "busy_as_a_trainer_ends", environ=node.next_round(1))


class Training:
    """A run whose workers tell their steps in files.

    Args:
        place: of the run.
        flags: of its agents.
        agents: how many there are.
        fails_at: a step at which rank 1 always fails.
        is_held: saves after the first of a start wait until `let_save`.
    """

    def __init__(
        self, place: Path, *flags: str, agents: int = 1, fails_at: int = -1, is_held: bool = False
    ) -> None:
        self._place = place
        place.mkdir()
        if is_held:
            (place / "held").touch()
        words = ("--preload", "torch,torch._dynamo", str(SCRIPT), str(STEPS), str(place), str(fails_at))
        self._flags, self._words, self._count = flags, words, agents
        self.agents: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self, *flags: str) -> None:
        """Start the agents, again if they have left; later flags count."""
        argv = [sys.executable, "-m", "hpc_elastic", "run", *self._flags, *flags, *self._words]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        self.agents = [
            subprocess.Popen(argv, cwd=self._place, env=environ, start_new_session=True)
            for _ in range(self._count)
        ]

    def preempt(self) -> None:
        """End the agents as Slurm does, and wait for their end."""
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            assert agent.wait(LIMIT_S) not in (0, -signal.SIGKILL)

    def let_save(self) -> None:
        """Have saves wait no longer."""
        (self._place / "held").unlink()

    @contextmanager
    def paused(self, step: int = PAUSED_AT) -> Iterator[None]:
        """Have rank 0 wait, and so all, after a step; begin it before workers start."""
        self.pause_at(step)
        yield
        (self._place / "paused").unlink()

    def pause_at(self, step: int) -> None:
        """Have rank 0 of the next start wait after a step."""
        (self._place / "paused").write_text(str(step))

    def lines(self, rank: int) -> list[list[str]]:
        """Return what a rank has told."""
        path = self._place / f"steps-{rank}"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self, rank: int) -> list[list[str]]:
        """Return the starts of a rank: its first step and its process."""
        return [line[1:] for line in self.lines(rank) if line[0] == "start"]

    def digests(self, kind: str) -> list[tuple[int, str]]:
        """Return the steps that rank 0 has ``done`` or ``loaded``, with the checksums of its state then."""
        return [(int(line[1]), line[2]) for line in self.lines(0) if line[0] == kind]

    def wait_for_step(self, step: int) -> None:
        """Wait until both ranks have just done a step."""
        wait_until(
            lambda: all(
                [["done", str(step)]] == [line[:2] for line in self.lines(rank)[-1:]] for rank in (0, 1)
            ),
            f"step {step}",
            timeout_s=LIMIT_S,
        )

    def wait_for_start(self, count: int) -> None:
        """Wait until both ranks have started so often."""
        wait_until(
            lambda: all(len(self.starts(rank)) == count for rank in (0, 1)), "a start", timeout_s=LIMIT_S
        )

    def kill_after(self, rank: int, steps: int) -> None:
        """Kill a rank when it has made some steps since its newest start."""
        start = max(place for place, line in enumerate(self.lines(rank)) if line[0] == "start")
        first = start + 2  # after its two lines
        wait_until(lambda: len(self.lines(rank)) >= first + steps, f"{steps} steps", timeout_s=LIMIT_S)
        os.kill(int(self.starts(rank)[-1][1]), signal.SIGKILL)

    def lose_node(self, rank: int) -> None:
        """Kill the agent of a rank, and wait until that has ended the rank too."""
        self.agents[rank].kill()
        pid = int(self.starts(rank)[-1][1])
        wait_until(lambda: not is_running(pid), "the end of a worker", timeout_s=LIMIT_S)

    def wait(self) -> int:
        """Wait for the end of the first agent."""
        return self.agents[0].wait(LIMIT_S)

    def end(self) -> None:
        """Kill all that is left."""
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


@pytest.fixture
def new_training(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Return a function that starts a run; nothing is left of it afterwards."""
    made: list[Training] = []

    def start(*flags: str, **options: Any) -> Training:
        made.append(Training(tmp_path / "disturbed", *flags, **options))
        return made[-1]

    yield start
    for training in made:
        training.end()


def alone(restarts: int) -> tuple[str, ...]:
    """Return the flags of one agent with two workers."""
    return ("--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts), "--run-dir", "run")


def test_workers_that_are_killed_at_random_moments_cost_one_step_at_most(
    new_training: Callable[..., Training], tmp_path: Path
) -> None:
    """From a seed; checkpoints in files are far apart, and the result is that of a run left alone."""
    training = new_training(*alone(KILLS))
    chance = random.Random(SEED)
    with training.paused(SPAN):  # without it the run might be ahead of a kill
        for count in range(1, KILLS + 1):
            training.wait_for_start(count)
            training.pause_at((count + 1) * SPAN)
            training.kill_after(chance.randrange(2), chance.randrange(SPAN))
    assert 0 == training.wait()
    done = 0
    for kind, step, *_ in training.lines(0):
        assert kind != "start" or int(step) >= done - 1
        done = int(step)
    words = (str(STEPS), str(tmp_path / "whole"), "-1")
    with forked.training(tmp_path / "whole", 2, "torch,torch._dynamo", SCRIPT, *words) as result:
        assert result() == json.loads((tmp_path / "disturbed" / "result.json").read_text())


def test_the_same_failure_again_goes_back_to_the_checkpoint(new_training: Callable[..., Training]) -> None:
    """A state from which no step could be made is not begun from twice; here there is no checkpoint."""
    training = new_training(*alone(2), fails_at=10)
    assert 0 != training.wait()
    assert ["0", "10", "0"] == [step for step, _ in training.starts(1)]


def kept_by(run: Path) -> list[Path]:
    """Return the directories with states that agents of a run have kept in this machine's memory."""
    records = Path(folder_of(MEMORY)).glob(f"kept-*/{RECORD}")
    return [record.parent for record in records if read(KeptState, record.read_bytes()).run_dir == str(run)]


def test_a_preemption_and_a_lost_node_cost_one_step_at_most(
    new_training: Callable[..., Training], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the file system hangs as Slurm wants the nodes back, and later one of two agents is killed.

    After the time for which states are kept the checkpoint counts, here the one of the second start.
    """
    run = tmp_path / "run"
    flags = ("--nproc-per-node", "1", "--rdzv-id", "run", "--rdzv-endpoint", str(run))
    more = ("--nnodes", "2", "--stop-timeout", "6", "--keep-in-memory", "300", "--max-restarts", "2")
    training = new_training(*flags, *more, agents=2, is_held=True)
    training.wait_for_step(30)
    training.preempt()
    assert 2 == len(kept_by(run / "run"))
    training.start()
    training.wait_for_step(50)
    training.preempt()
    now = SystemClock().wall()
    for path in kept_by(run / "run"):
        path.rename(path.with_name(kept_name(now - 60, now - 1)))
    training.let_save()
    with training.paused():
        training.start("--nnodes", "1:2")
        training.wait_for_step(PAUSED_AT)
        assert [] == kept_by(run / "run")
        training.lose_node(1)
    assert 0 == training.wait()
    said = capfd.readouterr().err.splitlines()
    assert [] == [line for line in said if "was not kept" in line or "lost it" in line], said
    assert ["0", "30", "31", str(PAUSED_AT)] == [step for step, _ in training.starts(0)]
    done, loaded = training.digests("done"), training.digests("loaded")
    assert [done[29], (31, done[30][1])] == loaded[1:3]
    assert done[31:45] == done[50:64]
    assert done[PAUSED_AT + 18] == (PAUSED_AT, loaded[3][1])
    facts = [fact for log in run.glob("run/account/*.log") for fact in parse_facts(log.read_bytes())]
    assert {0, 30, 31, PAUSED_AT, None} == {fact.began for fact in facts}
    assert {STEPS, None} == {fact.total for fact in facts}
