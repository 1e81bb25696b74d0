"""Checkpoint marks: names, contents, and the choice of the newest complete one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.worker import checkpoints
from hpc_elastic.worker.checkpoints import Checkpoint, MarkName


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
    assert checkpoint == checkpoints.from_record(checkpoints.to_record(checkpoint))


@pytest.mark.parametrize("text", ["{", "[]", '{"step": -1}', '{"step": 1, "path": 2}', "null"])
def test_damaged_environment_means_no_checkpoint(text: str) -> None:
    """A value nobody wrote is not taken for a checkpoint."""
    assert checkpoints.from_env(text) is None


def test_mark_is_small_and_versioned() -> None:
    """A mark names its format and stays below 512 bytes for an ordinary path."""
    data = checkpoints.encode_mark(MarkName(10**12 - 1, 9999, 9999, 10000), "/p" * 100, 10000)
    assert 1 == json.loads(data)["format"]
    assert len(data) < 512
