"""Checkpoint marks: names, contents, and the choice of the newest complete one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoint_files, checkpoints
from hpc_elastic.record.checkpoints import Checkpoint, MarkName, WayBack


def save(paths: RunPaths, step: int, **facts: int) -> None:
    """Write one mark with the path `ckpt-<step>`, which is there."""
    mark = MarkName(step, facts.get("round", 1), facts.get("rank", 0), facts.get("shards", 1))
    checkpoints.write_mark(paths, mark, place(paths, step), world_size=2)


def place(paths: RunPaths, step: int, *, round_number: int = 1) -> str:
    """Return a path of a checkpoint, and make it."""
    path = Path(paths.root, f"ckpt-{step}" if round_number == 1 else f"ckpt-{step}-{round_number}")
    path.touch()
    return str(path)


def marked(*places: tuple[int, int], name: str = "", branch: int = 0) -> list[str]:
    """Return the names of marks of steps and rounds."""
    return [checkpoints.encode_name(MarkName(step, one, 0, 1, branch, name)) for step, one in places]


def line(names: list[str], name: str = "") -> list[tuple[int, int]]:
    """Return step and round of the checkpoints that a run may go on from, the best first."""
    return [(mark.step, mark.round) for mark in checkpoints.complete_marks(names, name)]


def test_name_round_trip() -> None:
    """The facts survive being put into a file name."""
    mark = MarkName(step=1200, round=7, rank=3, shards=8)
    assert "000000001200.7.3.8.json" == checkpoints.encode_name(mark)
    assert mark == checkpoints.parse_name(checkpoints.encode_name(mark))


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (MarkName(5, 1, 0, 2, 3), "000000000005.1.0.2.3.json"),
        (MarkName(5, 1, 0, 2, 0, "gen-1"), "000000000005.1.0.2.0.gen-1.json"),
    ],
)
def test_branch_and_object_are_part_of_the_name(mark: MarkName, text: str) -> None:
    """They come last, and only where there are any: older versions read all others."""
    assert text == checkpoints.encode_name(mark)
    assert mark == checkpoints.parse_name(text)


def test_the_name_of_a_way_back_round_trips() -> None:
    """It is no mark."""
    for back in (WayBack(3, 1, 10, 2, 0), WayBack(3, 1, 10, 2, 0, "teacher")):
        name = checkpoints.encode_way_back(back)
        assert back == checkpoints.parse_way_back(name)
        assert checkpoints.parse_name(name) is None
    assert checkpoints.parse_way_back("000000000005.1.0.2.json") is None


@pytest.mark.parametrize("name", ["a b", "a/b", "a.b", "-a", "a" * 65, 5, None])
def test_a_name_that_no_object_can_have_is_refused(name: object) -> None:
    """It becomes a part of the names of files."""
    with pytest.raises(InputError, match="name is "):
        checkpoints.check_name(name)
    assert "Generator_2" == checkpoints.check_name("Generator_2")


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
    assert Checkpoint(1000, place(paths, 1000)) == checkpoints.latest(paths)


def test_a_mark_that_others_can_write_to_does_not_count(tmp_path: Path) -> None:
    """They could give such a file of the user's the name of a mark, and the path of something of theirs."""
    paths = RunPaths(tmp_path)
    for step in (10, 20):
        checkpoints.write_mark(paths, MarkName(step, 1, 0, 1), place(paths, step), 1, took_s=float(step))
    Path(paths.checkpoints, checkpoints.encode_name(MarkName(20, 1, 0, 1))).chmod(0o664)
    assert Checkpoint(10, place(paths, 10)) == checkpoints.latest(paths)
    assert [10.0] == checkpoints.save_times(paths)


def test_a_later_round_that_has_gone_back_counts() -> None:
    """It has saved a lower step than the round before it, whose newer checkpoints are left and not lost."""
    names = marked((10, 1), (20, 1), (15, 2))
    assert [(15, 2), (10, 1)] == line(names)
    assert [20] == [mark.step for mark in checkpoints.left_marks(names)]


def test_a_round_that_goes_on_keeps_those_before_it() -> None:
    """The same step saved again is as good as the one before."""
    names = marked((10, 1), (20, 1), (20, 2), (30, 2))
    assert [(30, 2), (20, 2), (20, 1), (10, 1)] == line(names)
    assert [] == checkpoints.left_marks(names)


def test_a_way_back_counts_before_anything_is_saved() -> None:
    """The round may end before its first checkpoint, and the next one goes back as far."""
    names = [*marked((10, 1), (20, 1), (30, 2)), checkpoints.encode_way_back(WayBack(3, 0, 20, 3, 0))]
    assert [(20, 1), (10, 1)] == line(names)
    assert [(40, 3), (20, 1), (10, 1)] == line([*names, *marked((40, 3))])


def test_a_way_back_may_lead_to_what_was_left() -> None:
    """The user asks for a checkpoint that the run had left; the branch between does not count."""
    names = marked((10, 1), (20, 1), (15, 2), (25, 2))
    names.append(checkpoints.encode_way_back(WayBack(3, 0, 20, 1, 0)))
    assert [(20, 1), (10, 1)] == line(names)
    assert {15, 25} == {mark.step for mark in checkpoints.left_marks(names)}


def test_a_process_may_go_back_within_a_round() -> None:
    """What its later branch saves is newer, whatever the steps."""
    names = [*marked((10, 1), (20, 1)), *marked((15, 1), branch=1)]
    assert [(15, 1), (10, 1)] == line(names)


def test_objects_do_not_see_the_marks_of_others(tmp_path: Path) -> None:
    """Each has checkpoints and ways back of its own; the highest step stands for the run."""
    paths = RunPaths(tmp_path)
    for name, step in (("", 5), ("teacher", 9), ("teacher", 12)):
        mark = MarkName(step, 1, 0, 1, 0, name)
        checkpoints.write_mark(paths, mark, place(paths, step), 1)
    checkpoints.write_way_back(paths, WayBack(2, 0, 10, 2, 0, "teacher"))
    assert Checkpoint(5, place(paths, 5)) == checkpoints.latest(paths)
    assert Checkpoint(9, place(paths, 9)) == checkpoints.latest(paths, "teacher")
    assert checkpoints.latest(paths, "student") is None
    assert 9 == checkpoints.newest_step(paths, -1)
    assert ["", "teacher"] == checkpoints.object_names(os.listdir(paths.checkpoints))
    assert [True, False] == [checkpoints.went_back_since(paths, number) for number in (1, 2)]


def test_what_is_gone_is_passed_over_and_told(tmp_path: Path) -> None:
    """The run goes on from the newest one that is there; without any the newest is named all the same."""
    paths = RunPaths(tmp_path)
    for step in (10, 20, 30):
        save(paths, step)
    for step in (20, 30):
        os.unlink(place(paths, step))
    found = checkpoints.find(paths)
    assert Checkpoint(10, f"{tmp_path}/ckpt-10") == found.checkpoint
    assert [30, 20] == [one.step for one in found.gone]
    assert "not there any more" in found.text
    assert "the run goes on from the checkpoint of step 10" in found.text
    os.unlink(f"{tmp_path}/ckpt-10")
    assert Checkpoint(30, f"{tmp_path}/ckpt-30") == checkpoints.latest(paths)


def test_a_mark_can_be_taken_back(tmp_path: Path) -> None:
    """The save has failed on another rank; done twice it is no error."""
    paths = RunPaths(tmp_path)
    save(paths, 10)
    for _ in range(2):
        checkpoints.remove_mark(paths, MarkName(10, 1, 0, 1))
    assert [] == os.listdir(paths.checkpoints)


def test_the_id_of_a_run_stays(tmp_path: Path) -> None:
    """It is made once, and that of another run is another."""
    first, second = RunPaths(tmp_path / "a"), RunPaths(tmp_path / "b")
    for paths in (first, second):
        os.mkdir(paths.root)
    assert checkpoint_files.owner_id(first) == checkpoint_files.owner_id(first)
    assert checkpoint_files.owner_id(first) != checkpoint_files.owner_id(second)


def test_incomplete_shards_do_not_count(tmp_path: Path) -> None:
    """A sharded checkpoint counts once all ranks of one round have left their mark."""
    paths = RunPaths(tmp_path)
    save(paths, 10)
    save(paths, 20, round=1, rank=0, shards=2)
    save(paths, 20, round=2, rank=1, shards=2)
    assert Checkpoint(10, place(paths, 10)) == checkpoints.latest(paths)
    save(paths, 20, round=2, rank=0, shards=2)
    assert Checkpoint(20, place(paths, 20)) == checkpoints.latest(paths)


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
    assert Checkpoint(10, place(paths, 10)) == checkpoints.latest(paths)


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


def test_marks_behind_which_the_run_has_gone_back_stay() -> None:
    """Their checkpoints are not removed, and the user may want one."""
    left = marked((50, 1), (60, 1))
    whole = named(*range(10, 12 + checkpoints.KEPT), round_number=2)
    assert {10, 11} == steps_of(checkpoints.superseded([*left, *whole]))


def test_the_old_marks_of_one_object_say_nothing_of_another() -> None:
    """One may save often and the other rarely."""
    often = [checkpoints.encode_name(MarkName(step, 1, 0, 1, 0, "often")) for step in range(100, 140)]
    assert set(range(100, 140 - checkpoints.KEPT)) == steps_of(checkpoints.superseded([*often, *named(1, 2)]))


def test_a_half_saved_checkpoint_is_one_of_the_newest_round() -> None:
    """Whole ones that the run has gone back behind, or of another object, do not stand in for it."""
    half = [checkpoints.encode_name(MarkName(20, 2, 0, 2))]
    assert checkpoints.is_half_saved([*half, *marked((30, 1))], 15)
    assert checkpoints.is_half_saved([*half, *marked((30, 2), name="other")], 15)
    assert not checkpoints.is_half_saved([*half, *marked((30, 2))], 15)
    assert not checkpoints.is_half_saved(half, 21)
    assert not checkpoints.is_half_saved([], 0)


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
