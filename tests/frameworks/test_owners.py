"""Whose a checkpoint is, what becomes of a save that fails, and which one is the newest: PyTorch's."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints as marks
from hpc_elastic.record.checkpoint_files import failed_saves
from hpc_elastic.record.saved import go_back, ways_back
from hpc_elastic.worker.channel import Channel
from tests.frameworks.ranks import RankServer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
Places = list[dict[str, str]]


def full(directory: Path, step: int, rank: int, start: int = 1) -> None:
    """Have the disk be full for a rank's part of a checkpoint."""
    path = directory / f"step-{step}-{start}" / f"__{rank}_0.distcp"
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")


@pytest.fixture
def in_run(tmp_path: Path) -> Callable[[int], Places]:
    """Return a function that gives ranks a place in a run."""

    def place(world: int) -> Places:
        (tmp_path / "run").mkdir()
        return [{Env.RUN_DIR: str(tmp_path / "run"), Env.ROUND: "1", Env.CHECKPOINT: ""}] * world

    return place


def next_round(environ: Places, number: int = 2) -> Places:
    """Return the places in a later round, which goes on from the newest checkpoint."""
    newest = marks.to_env(marks.latest(RunPaths(environ[0][Env.RUN_DIR])))
    return [{**own, Env.ROUND: str(number), Env.CHECKPOINT: newest} for own in environ]


def test_a_failed_save_leaves_nothing_and_is_noted(ranks: RankServer, tmp_path: Path, in_run: Any) -> None:
    """No part and no mark of it; the note is there until a save succeeds."""
    environ = in_run(2)
    full(tmp_path / "run" / "saved", 2, 1)
    results = ranks.start(2, "save_with_failures", None, 2, environ=environ).results()
    assert all("StoreError" in result.value for result in results), results
    assert ["step-1-1"] == [name for name in os.listdir(tmp_path / "run" / "saved") if "step" in name]
    paths = RunPaths(tmp_path / "run")
    assert [1] == [found.step for found in marks.marked(paths)]
    assert [2] == [failed.step for failed in failed_saves(paths).values()]
    again = next_round(environ)
    assert [[3, 2, 1]] * 2 == ranks.run(2, "save_with_failures", None, 3, environ=again)
    assert {} == failed_saves(paths)


def test_a_failed_save_is_tried_again_at_the_next_step(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """On all ranks at the same one; without any further save it would be the next start that finds out."""
    environ = in_run(2)
    full(tmp_path / "run" / "saved", 2, 1)
    assert [[[2, 3], [3]]] * 2 == ranks.run(2, "retry", environ=environ)


def test_two_objects_of_a_program_have_checkpoints_of_their_own(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """Each loads its own, also where one has saved more; another one of a name is refused."""
    environ = in_run(1)
    assert [[0, 0, 1.0, 2.0]] == ranks.run(1, "two_objects", str(tmp_path / "all"), environ=environ)
    again = next_round(environ)
    assert [[5, 7, 1.0, 2.0]] == ranks.run(1, "two_objects", str(tmp_path / "all"), environ=again)
    (result,) = ranks.start(1, "two_of_one_name", environ=again).results()
    assert "this program has Checkpoints without a name already" in result.value
    assert 'Checkpoints(name="generator")' in result.value


def test_a_training_that_would_end_as_another_one_is_refused(ranks: RankServer, tmp_path: Path) -> None:
    """A fold of the same name would get the weights of the one before, and train for no step.

    A longer training goes on from it, and the same modules may be looked at again.
    """
    assert [[2, 1, 0]] == ranks.run(1, "train_folds", str(tmp_path / "longer"), 2, 3)
    (result,) = ranks.start(1, "train_folds", str(tmp_path / "folds"), 2, 2).results()
    assert "another training without a name was completed in this program: this one" in result.value
    assert 'Checkpoints(..., name="fold2")' in result.value


def test_runs_of_one_name_share_a_directory(ranks: RankServer, tmp_path: Path) -> None:
    """Neither loads or removes the checkpoints of the other."""
    for steps, starts in ((4, [0, 0]), (2, [4, 4])):
        begun = []
        for place in ("a", "b"):
            (tmp_path / place / "train").mkdir(parents=True, exist_ok=True)
            run = {Env.RUN_DIR: str(tmp_path / place / "train"), Env.ROUND: str(5 - steps)}
            (found,) = ranks.run(1, "train", str(tmp_path / "all"), "ddp", steps, 2, environ=[run])
            begun.append(found["start"])
        assert starts == begun
    assert 2 == len(os.listdir(tmp_path / "all"))


def test_steps_that_begin_anew_are_refused_at_the_first(ranks: RankServer, tmp_path: Path) -> None:
    """As when they are counted in each epoch; the error has the line to write. A way back stays possible."""
    (found,) = ranks.run(1, "epochs", tmp_path)
    assert "step 1 comes after step 3" in found[0]
    assert "step = epoch * len(loader) + i" in found[0]
    assert [3, "step-3-0", "step-2-0-1"] == found[1:]


def test_a_complete_checkpoint_is_not_saved_again(ranks: RankServer, in_run: Any) -> None:
    """By another object of the same name: it stays as it is."""
    assert [[[5], [5]]] * 2 == ranks.run(2, "saved_twice", environ=in_run(2))


def with_agent(environ: Places, folder: Path) -> Places:
    """Return the places with an agent's memory of the node."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = []
    for own in environ:
        channel = Channel.create(str(folder / own[Env.ROUND]))
        channel.close()
        made.append({**own, Env.CHANNEL: channel.path})
    return made


@pytest.mark.parametrize("is_back", [False, True])
def test_a_copy_in_memory_that_a_program_has_gone_back_behind_is_left(
    ranks: RankServer, tmp_path: Path, in_run: Any, is_back: bool
) -> None:
    """Also if it has gone back within its round; without a way back the copy counts."""
    environ, begun = in_run(1), []
    for number, steps, goes_back in ((1, 10, is_back), (2, 0, False)):
        places = with_agent(next_round(environ, number), tmp_path / "memory")
        begun += ranks.run(1, "gone_back", steps, goes_back, environ=places)
    assert [0, 0 if is_back else 10] == begun


@pytest.mark.parametrize(
    ("damaged", "gone", "begun"),
    [((), (), 9), ((9,), (), 7), ((9, 2), (), 7), ((9,), (2,), 7)],
    ids=["none", "the newest", "all", "the only one"],
)
def test_a_copy_in_memory_counts_before_a_file_that_is_older(
    ranks: RankServer,
    tmp_path: Path,
    in_run: Any,
    damaged: tuple[int, ...],
    gone: tuple[int, ...],
    begun: int,
) -> None:
    """Where the newest file is damaged; a whole one that is newer than the copy counts before it."""
    environ, saved = in_run(1), tmp_path / "run" / "saved"
    places = with_agent(environ, tmp_path / "memory")
    assert [[0, 0.0]] == ranks.run(1, "saved_and_copied", [2, 9], [5, 6, 7], environ=places)
    for step in damaged:
        (path,) = (saved / f"step-{step}-1").glob("*.distcp")
        os.truncate(path, path.stat().st_size - 1)
    for step in gone:
        shutil.rmtree(saved / f"step-{step}-1")
    places = with_agent(next_round(environ), tmp_path / "memory")
    assert [[begun, begun]] == ranks.run(1, "saved_and_copied", [], [], environ=places)


def test_an_object_that_is_made_after_another_one_has_no_states_in_memory(
    ranks: RankServer, tmp_path: Path, in_run: Any
) -> None:
    """The next start would take them for those of the first, which it makes first."""
    environ, begun = in_run(1), []
    for number in (1, 2):
        places = with_agent(next_round(environ, number), tmp_path / "memory")
        begun += ranks.run(1, "one_after_the_other", environ=places)
    assert [[[0, True], [0, False]]] * 2 == begun


def test_a_checkpoint_that_is_gone_is_passed_over(ranks: RankServer, tmp_path: Path, in_run: Any) -> None:
    """Or one that is only partly there; the one before it is whole."""
    environ = in_run(1)
    ranks.run(1, "train", None, "ddp", 4, 1, environ=environ)
    (tmp_path / "run" / "saved" / "step-4-1" / "checkpoint.json").unlink()
    again = next_round(environ)
    (result,) = ranks.start(1, "train", None, "ddp", 0, None, environ=again).results()
    assert 3 == result.value["start"]
    assert "step-4-1 is not whole; the training goes on from the one of step 3" in result.printed


def test_a_way_back_leaves_states_in_memory(ranks: RankServer, tmp_path: Path, in_run: Any) -> None:
    """They are newer than the checkpoint that the user has asked for."""
    environ = in_run(1)
    ranks.run(1, "train", None, "ddp", 4, 2, environ=environ)
    paths = RunPaths(tmp_path / "run")
    go_back(paths, ways_back(paths, 2, 1))
    again = next_round(environ)
    (found,) = ranks.run(1, "train", None, "ddp", 1, 1, environ=again)
    assert 2 == found["start"]
    assert 3 == marks.newest_step(paths, -1)
    assert {"step-2-1", "step-4-1", "step-3-2"} <= set(os.listdir(tmp_path / "run" / "saved"))
