"""Checkpoint marks: names, contents, and the choice of the newest complete one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.checkpoints import Checkpoint, MarkName


def save(paths: RunPaths, step: int, **facts: int) -> None:
    """Write one mark with the path `ckpt-<step>`."""
    mark = MarkName(step, facts.get("round", 1), facts.get("rank", 0), facts.get("shards", 1))
    checkpoints.write_mark(paths, mark, f"/data/ckpt-{step}", world_size=2)


def test_name_round_trip() -> None:
    """The facts survive being put into a file name."""
    mark = MarkName(step=1200, round=7, rank=3, shards=8)
    assert "000000001200.7.3.8.json" == checkpoints.encode_name(mark)
    assert mark == checkpoints.parse_name(checkpoints.encode_name(mark))


@pytest.mark.parametrize(
    "name",
    ["", "x.json", "1.2.3.json", "1.2.3.0.json", "1.2.3.-1.json", "1.2.3.4.json.tmp", "²." * 3 + "1.json"],
)
def test_foreign_names_are_passed_over(name: str) -> None:
    """A name that no mark has is nobody's mark."""
    assert checkpoints.parse_name(name) is None


def test_latest_without_marks(tmp_path: Path) -> None:
    """A run that saved nothing, or has no directory of marks yet, has no checkpoint."""
    paths = RunPaths(tmp_path)
    assert checkpoints.latest(paths) is None
    os.mkdir(paths.checkpoints)
    assert checkpoints.latest(paths) is None


def test_latest_is_the_highest_step(tmp_path: Path) -> None:
    """Steps are compared as numbers, whatever the order of saving."""
    paths = RunPaths(tmp_path)
    for step in (900, 1000, 20):
        save(paths, step)
    assert Checkpoint(1000, "/data/ckpt-1000") == checkpoints.latest(paths)


def test_a_mark_that_others_can_write_to_does_not_count(tmp_path: Path) -> None:
    """They could give such a file of the user's the name of a mark, and the path of something of theirs."""
    paths = RunPaths(tmp_path)
    for step in (10, 20):
        checkpoints.write_mark(paths, MarkName(step, 1, 0, 1), f"/data/ckpt-{step}", 1, took_s=float(step))
    Path(paths.checkpoints, checkpoints.encode_name(MarkName(20, 1, 0, 1))).chmod(0o664)
    assert Checkpoint(10, "/data/ckpt-10") == checkpoints.latest(paths)
    assert [10.0] == checkpoints.save_times(paths)


def test_incomplete_shards_do_not_count(tmp_path: Path) -> None:
    """A sharded checkpoint counts once all ranks of one round have left their mark."""
    paths = RunPaths(tmp_path)
    save(paths, 10)
    save(paths, 20, round=1, rank=0, shards=2)
    save(paths, 20, round=2, rank=1, shards=2)
    assert Checkpoint(10, "/data/ckpt-10") == checkpoints.latest(paths)
    save(paths, 20, round=2, rank=0, shards=2)
    assert Checkpoint(20, "/data/ckpt-20") == checkpoints.latest(paths)


def test_saving_twice_is_harmless(tmp_path: Path) -> None:
    """A mark that exists already is left as it is."""
    paths = RunPaths(tmp_path)
    save(paths, 10)
    save(paths, 10)
    assert 1 == len(os.listdir(paths.checkpoints))


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "st', b"[]", b'{"format": 99, "step": 20}'])
def test_damaged_newest_mark_falls_back(tmp_path: Path, content: bytes) -> None:
    """A truncated or unknown mark does not hide the checkpoint before it."""
    paths = RunPaths(tmp_path)
    save(paths, 10)
    Path(paths.checkpoints, checkpoints.encode_name(MarkName(20, 1, 0, 1))).write_bytes(content)
    Path(paths.checkpoints, "notes.txt").write_text("mine")
    assert Checkpoint(10, "/data/ckpt-10") == checkpoints.latest(paths)


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(5), Checkpoint(5, "/data/ü ckpt")])
def test_environment_round_trip(checkpoint: Checkpoint | None) -> None:
    """The agent's choice reaches the worker through one environment variable."""
    assert checkpoint == checkpoints.from_env(checkpoints.to_env(checkpoint))


@pytest.mark.parametrize("text", ["{", "[]", '{"step": -1}', '{"step": 1, "path": 2}', "null"])
def test_damaged_environment_means_no_checkpoint(text: str) -> None:
    """A value nobody wrote is not taken for a checkpoint."""
    assert checkpoints.from_env(text) is None


def test_mark_is_small_and_versioned() -> None:
    """A mark names its format and stays below 512 bytes for an ordinary path."""
    data = checkpoints.encode_mark(MarkName(10**12 - 1, 9999, 9999, 10000), "/p" * 100, 10000)
    assert 1 == json.loads(data)["format"]
    assert len(data) < 512


def steps_of(names: list[str]) -> set[int]:
    """Return the steps of marks."""
    return {mark.step for name in names if (mark := checkpoints.parse_name(name)) is not None}


def named(*steps: int, rank: int = 0, shards: int = 1, round_number: int = 1) -> list[str]:
    """Return the names of marks."""
    return [checkpoints.encode_name(MarkName(step, round_number, rank, shards)) for step in steps]


def test_marks_that_a_later_start_may_need_stay() -> None:
    """They are those of so many complete checkpoints, all newer ones, and whatever else lies there."""
    whole = named(*range(1, checkpoints.KEPT + 1))
    assert [] == checkpoints.superseded(whole[1:])
    assert [] == checkpoints.superseded([*whole, "notes.txt"])
    half = named(0, checkpoints.KEPT + 5, shards=2)
    assert {0} == steps_of(checkpoints.superseded([*whole, *half]))
    more = [*whole, *named(checkpoints.KEPT + 1)]
    assert {1} == steps_of(checkpoints.superseded(more))


def test_a_checkpoint_that_rounds_have_saved_twice_counts_once() -> None:
    """Marks of the same step in two rounds are of one checkpoint less than they seem to be."""
    steps = range(1, checkpoints.KEPT)
    twice = [*named(*steps), *named(*steps, round_number=2)]
    assert [] == checkpoints.superseded([*twice, *named(0, shards=2)])


def test_where_one_rank_never_marks_nothing_goes() -> None:
    """However many halves there are: the last whole one is what the run resumes from."""
    halves = named(*range(10, 10 + 3 * checkpoints.KEPT), shards=2)
    assert [] == checkpoints.superseded([*named(5), *halves])


def test_each_rank_takes_its_own_old_marks_away(tmp_path: Path) -> None:
    """Those of ranks that are no longer there an agent takes away, as the run starts again."""
    paths = RunPaths(tmp_path)
    for step in range(checkpoints.KEPT + 3):
        for rank in (0, 1):
            save(paths, step, rank=rank, shards=2)
    checkpoints.remove_superseded(paths, 1)
    left = os.listdir(paths.checkpoints)
    assert [0, 0, 0] == sorted(
        mark.rank for name in left if (mark := checkpoints.parse_name(name)) and mark.step < 3
    )
    checkpoints.remove_superseded(paths, most=2)
    assert {2} == {step for step in steps_of(os.listdir(paths.checkpoints)) if step < 3}
    checkpoints.remove_superseded(paths)
    assert set(range(3, checkpoints.KEPT + 3)) == steps_of(os.listdir(paths.checkpoints))
    checkpoints.remove_superseded(RunPaths(tmp_path / "none"))
