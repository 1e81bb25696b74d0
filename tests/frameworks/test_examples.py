"""The examples of frameworks give the same result when they are stopped and go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.frameworks.torch.memory.node_memory import RESCUED, read_began
from hpc_elastic.record.journal import Decision
from tests.frameworks import forked
from tests.frameworks.local_runs import REPOSITORY, SAVE_EVERY, STEP_TIME_S, STEPS, LocalRun

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("torch") is None, reason="could not find torch"),  # imports take seconds
]

EXAMPLES = REPOSITORY / "examples"
LIBRARIES = {
    "accelerate_loop": "accelerate",
    "huggingface_trainer": "transformers.trainer",
    "lightning_trainer": "lightning",
}
SLEEP_AFTER_A_STEP = {"accelerate_loop"}  # the others do in it
SLOW = ("--step-time", str(STEP_TIME_S))
NewRun = Callable[[str, str], LocalRun]


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[NewRun]:
    """Return a function that makes a run of an example; nothing is left of it afterwards."""
    made: list[LocalRun] = []

    def make(name: str, example: str) -> LocalRun:
        made.append(LocalRun(tmp_path / f"{example}-{name}", example))
        return made[-1]

    yield make
    for run in made:
        run.end()


def need(package: str) -> None:
    """Skip the test without a package; importing it here would take seconds."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


def whole_result(place: Path, example: str, ranks: int = 2) -> dict[str, Any]:
    """Return the result of a training that nothing disturbs, without any agent."""
    script, sizes = EXAMPLES / example / "train.py", ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
    with forked.training(place / "whole", ranks, LIBRARIES[example], script, *sizes) as result:
        return result()


def stopped_and_resumed(
    new_run: NewRun, example: str, nodes: int = 2, workers: int = 1, *, is_preloaded: bool = False
) -> LocalRun:
    """Return a run that was stopped between two regular checkpoints, resumed, and is done.

    If it has two ranks, one is killed after a step of which no checkpoint is saved, which costs no step.
    """
    flags = ("--preload", LIBRARIES[example]) if is_preloaded else ()
    kills = int(nodes * workers > 1)
    run = new_run("stopped", example).start(nodes, workers, *SLOW, flags=flags, restarts=kills)
    stopped = run.stop()
    ending = run.state().ending
    assert ending is not None
    assert Decision.STOPPED is ending.decision
    assert SAVE_EVERY <= stopped < STEPS
    assert run.result() is None, "a training that is not complete has a result"
    kept = stopped + 1 + stopped % SAVE_EVERY  # is odd, and SAVE_EVERY is 2
    if kills:
        run.kill_in_step(kept - stopped + (example not in SLEEP_AFTER_A_STEP))
    assert 0 == run.resume(nodes).wait(), run.printed()
    if kills:
        began = read_began(str(run.directory / "saved"))
        assert began is not None
        assert (RESCUED, kept) == (began.source, began.from_step), run.printed()
    second = run.rounds()[1]
    assert second.checkpoint is not None
    assert stopped == second.checkpoint.step
    assert not is_preloaded or f"preloaded {LIBRARIES[example]} (" in run.agents_said()
    return run


def test_lightnings_trainer(new_run: NewRun, tmp_path: Path) -> None:
    """All ranks save one step, `fit` returns; resumed in the middle of an epoch the result is the same."""
    need("lightning")
    run = stopped_and_resumed(new_run, "lightning_trainer")
    assert "TorchElasticEnvironment" in run.printed()
    assert whole_result(tmp_path, "lightning_trainer") == run.result()


def test_hugging_faces_trainer(new_run: NewRun, tmp_path: Path) -> None:
    """Its own checkpoints count; resumed in the middle of an epoch the result is the same, with a preload."""
    need("transformers")
    run = stopped_and_resumed(new_run, "huggingface_trainer", 1, 2, is_preloaded=True)
    assert whole_result(tmp_path, "huggingface_trainer") == run.result()


def test_accelerate(new_run: NewRun, tmp_path: Path) -> None:
    """It finds its ranks in the environment, and the result is the same, with a preload."""
    need("accelerate")
    run = stopped_and_resumed(new_run, "accelerate_loop", 1, 2, is_preloaded=True)
    assert whole_result(tmp_path, "accelerate_loop") == run.result()


def test_fabric(new_run: NewRun, tmp_path: Path) -> None:
    """Stopped and resumed it gives what accelerate gives by the same steps; one worker, to save time."""
    need("accelerate")
    need("lightning")
    run = stopped_and_resumed(new_run, "lightning_fabric", nodes=1)
    assert whole_result(tmp_path, "accelerate_loop", ranks=1) == run.result()


def test_shards_are_loaded_by_fewer_ranks(new_run: NewRun) -> None:
    """FSDP: saved by two ranks in shards of their own, taken up by one."""
    whole = new_run("whole", "fsdp_shards")
    assert 0 == whole.start(1, 1).wait()
    run = new_run("stopped", "fsdp_shards").start(2, 1, *SLOW)
    run.stop()
    assert 0 == run.resume(1).wait()
    found, expected = run.result(), whole.result()
    assert found is not None
    assert expected is not None
    assert (1, STEPS) == (found["world_size"], found["steps"])
    assert pytest.approx(expected["norm"], rel=1e-4) == found["norm"]
    assert [2, 1] == [len(each.members) for each in run.rounds()]
