"""All checkpoints of a run, and the way back to one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import (
    CheckpointFacts,
    FailedSave,
    failed_save_texts,
    failed_saves,
    note_failed,
    read_facts,
    write_facts,
)
from hpc_elastic.record.checkpoints import MarkName, WayBack, latest, write_mark
from hpc_elastic.record.saved import SavedState, go_back, saved_checkpoints, ways_back


def save(paths: RunPaths, step: int, round_number: int = 1, *, name: str = "", shards: int = 1) -> Path:
    """Mark a checkpoint of 100 bytes; of several shards only the first."""
    path = Path(paths.root, f"{name}{step}-{round_number}")
    path.write_bytes(bytes(100))
    write_mark(paths, MarkName(step, round_number, 0, shards, 0, name), str(path), world_size=4)
    return path


def step_of(paths: RunPaths, name: str = "") -> int | None:
    """Return the step that a run goes on from."""
    return getattr(latest(paths, name), "step", None)


def test_each_checkpoint_says_what_it_is_good_for(tmp_path: Path) -> None:
    """The next one, whole ones, one that was left, half ones and one that is gone."""
    paths = RunPaths(tmp_path)
    save(paths, 5)
    save(paths, 10).unlink()
    save(paths, 30)
    save(paths, 12, 2)
    save(paths, 15, 2)
    save(paths, 20, 2, shards=2)
    rows = saved_checkpoints(paths)
    assert [
        (20, SavedState.HALF),
        (15, SavedState.NEXT),
        (12, SavedState.WHOLE),
        (30, SavedState.LEFT),
        (10, SavedState.GONE),
        (5, SavedState.WHOLE),
    ] == [(row.step, row.state) for row in rows]
    assert (100, 4, 1, 2, "checkpoint_saved") == (
        rows[0].size, rows[0].world_size, rows[0].ranks, rows[0].shards, rows[0].source
    )  # fmt: skip
    assert rows[0].at is not None
    assert [None] == [row.size for row in rows if row.state is SavedState.GONE]


def test_facts_tell_the_source(tmp_path: Path) -> None:
    """A directory of `Checkpoints` knows its ranks; its size is that of all files in it."""
    paths = RunPaths(tmp_path)
    place = tmp_path / "step-5-1"
    place.mkdir()
    (place / "part").write_bytes(bytes(1000))
    write_facts(str(place), CheckpointFacts(5, 8, 0.0, 0.1, 0.2))
    write_mark(paths, MarkName(5, 1, 0, 1), str(place), world_size=1)
    (row,) = saved_checkpoints(paths)
    assert ("Checkpoints", 8) == (row.source, row.world_size)
    assert row.size is not None
    assert 1000 + os.stat(place / "checkpoint.json").st_size == row.size


def test_facts_with_whole_numbers_of_seconds_count(tmp_path: Path) -> None:
    """A clock may give one: it is read as another kind of number than it was written."""
    write_facts(str(tmp_path), CheckpointFacts(5, 8, 1_700_000_000, 1, 2, 60))
    facts = read_facts(str(tmp_path))
    assert facts is not None
    assert (1_700_000_000, 1, 2, 60) == (facts.saved_at, facts.blocked_s, facts.took_s, facts.every_s)


def test_a_run_goes_back_to_a_step(tmp_path: Path) -> None:
    """All newer checkpoints stay, and may be gone on from again."""
    paths = RunPaths(tmp_path)
    for step in (10, 20, 30):
        save(paths, step)
    go_back(paths, ways_back(paths, 10, rounds=1))
    assert 10 == step_of(paths)
    assert [SavedState.LEFT, SavedState.LEFT, SavedState.NEXT] == [
        row.state for row in saved_checkpoints(paths)
    ]
    go_back(paths, ways_back(paths, 20, rounds=1))
    assert 20 == step_of(paths), "the user has changed his mind before the next start"
    save(paths, 25, 2)
    assert 25 == step_of(paths)
    go_back(paths, ways_back(paths, 30, rounds=2))
    assert 30 == step_of(paths), "what was left may be gone on from"


def test_a_step_of_two_rounds_is_that_of_the_newest(tmp_path: Path) -> None:
    """The one that the run has left is meant only where it is the only one."""
    paths = RunPaths(tmp_path)
    for step, round_number in ((10, 1), (20, 1), (15, 2), (20, 2)):
        save(paths, step, round_number)
    assert [WayBack(3, 0, 20, 2, 0)] == ways_back(paths, 20, rounds=2)


def test_all_objects_of_a_run_go_back_together(tmp_path: Path) -> None:
    """A run whose objects were of different steps would compute something else."""
    paths = RunPaths(tmp_path)
    for name in ("generator", "critic"):
        for step in (10, 20):
            save(paths, step, name=name)
    save(paths, 15, name="critic")
    go_back(paths, ways_back(paths, 10, rounds=1))
    assert [10, 10] == [step_of(paths, name) for name in ("generator", "critic")]
    with pytest.raises(InputError, match="there is no whole checkpoint of generator of step 15"):
        ways_back(paths, 15, rounds=1)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """Half ones, and those that are gone, are none."""
    paths = RunPaths(tmp_path)
    with pytest.raises(InputError, match="leave it out: the run begins at step 0"):
        ways_back(paths, 5, rounds=1)
    save(paths, 10)
    save(paths, 20).unlink()
    save(paths, 30, shards=2)
    for step in (20, 30, 40):
        with pytest.raises(InputError, match=f"there is no whole checkpoint of step {step}\n") as refused:
            ways_back(paths, step, rounds=1)
        assert f"there are those of steps 10: hpc-elastic checkpoints {tmp_path}" in str(refused.value)


def test_a_failed_save_is_noted_until_one_succeeds(tmp_path: Path) -> None:
    """By object; a damaged note says nothing."""
    paths = RunPaths(tmp_path)
    for name in ("", "teacher"):
        note_failed(paths, FailedSave(5, 1, 0.0, "No space left on device"), name)
    assert {"", "teacher"} == failed_saves(paths).keys()
    assert [
        "the last save, of step 5, has failed: No space left on device",
        "the last save of teacher, of step 5, has failed: No space left on device",
    ] == failed_save_texts(failed_saves(paths))
    for _ in range(2):
        note_failed(paths, None)
    Path(paths.checkpoints, "failed.teacher.json").write_text("{")
    assert {} == failed_saves(paths)
