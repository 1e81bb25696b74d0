"""Checkpoints in files that have changed since they were written: none is loaded."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.errors import InputError  # noqa: E402
from hpc_elastic.frameworks.torch.checkpoints import Checkpoints  # noqa: E402
from hpc_elastic.record.checkpoint_files import FACTS, read_facts  # noqa: E402
from tests.frameworks.ranks import RankServer  # noqa: E402

pytestmark = pytest.mark.torch
SEED = 5
FLIPS = 5
NAMES = ("téléphone/ü:x 日本", "a\nb", "😀 space")


def training(value: float) -> dict[str, Any]:
    """Return a state whose numbers are all this one."""
    model = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(model.weight, value)
    return {"model": model, "seen": torch.full((5,), value), "note": value}


def saved(place: Path, *steps: int) -> None:
    """Save states whose numbers are those of their steps."""
    checkpoints = Checkpoints(place, every=None)
    for step in steps:
        checkpoints.save(step, training(float(step)))
        checkpoints.wait()


def loaded(place: Path) -> tuple[int, set[float]]:
    """Load the newest state; return its step and its numbers."""
    state = training(0.0)
    step = Checkpoints(place, every=None).load(state)
    gc.collect()  # the name is free again
    numbers = {*state["model"].weight.flatten().tolist(), *state["seen"].tolist(), state["note"]}
    return step, numbers


def flip(path: Path, at: int, bit: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def files_of(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    return sorted(checkpoint.iterdir())


@pytest.mark.slow
def test_a_flipped_bit_in_any_file_has_the_next_best_checkpoint_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In tensors, in values, in the plan of the files and in the facts of the checkpoint."""
    saved(tmp_path, 3, 5)
    newest = tmp_path / "step-5-0"
    assert [".metadata", "__0_0.distcp", FACTS] == [path.name for path in files_of(newest)]
    chance = random.Random(SEED)
    for path in files_of(newest):
        whole = path.read_bytes()
        for _ in range(FLIPS):
            flip(path, chance.randrange(len(whole)), chance.randrange(8))
            found = loaded(tmp_path)
            if path.name != FACTS:
                assert (3, {3.0}) == found
            assert found in [(3, {3.0}), (5, {5.0})], "white space of the facts says nothing"
            path.write_bytes(whole)
        if path.name != FACTS:
            told = f"the checkpoint of step 5 is damaged: the checksum of {path.name} does not fit"
            assert told in caplog.text
    assert (5, {5.0}) == loaded(tmp_path)


@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_a_file_that_is_cut_off_or_gone_is_damage(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The older checkpoint counts."""
    saved(tmp_path, 3, 5)
    path = tmp_path / "step-5-0" / "__0_0.distcp"
    if how == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    assert (3, {3.0}) == loaded(tmp_path)
    assert "the checkpoint of step 5 is damaged: " in caplog.text


def test_without_an_older_checkpoint_the_start_fails(tmp_path: Path) -> None:
    """A training does not begin anew in silence."""
    saved(tmp_path, 5)
    flip(tmp_path / "step-5-0" / "__0_0.distcp", 700, 3)
    with pytest.raises(InputError, match=r"is damaged, and there is no older one: .*step-5-0"):
        loaded(tmp_path)


def test_a_damaged_checkpoint_is_none_of_those_that_are_kept(tmp_path: Path) -> None:
    """Two whole ones stay beside it, also in a program that has not found it; it goes as older ones do."""

    def steps() -> list[str]:
        return sorted(name.split("-")[1] for name in os.listdir(tmp_path))

    saved(tmp_path, 3, 5)
    flip(tmp_path / "step-5-0" / "__0_0.distcp", 700, 3)
    assert (3, {3.0}) == loaded(tmp_path)
    saved(tmp_path, 7)
    assert ["3", "5", "7"] == steps()
    saved(tmp_path, 9)
    assert ["7", "9"] == steps()


def test_checkpoints_of_versions_without_checksums_are_loaded(tmp_path: Path) -> None:
    """Their facts have none, and no files."""
    saved(tmp_path, 5)
    place = tmp_path / "step-5-0" / FACTS
    facts = read_facts(str(place.parent))
    assert facts is not None
    words = f'"files": {[list(one) for one in facts.files]}, "checksum": {facts.checksum}'.replace("'", '"')
    text = place.read_text()
    assert f", {words}" in text
    place.write_text(text.replace(f", {words}", ""))
    assert (5, {5.0}) == loaded(tmp_path)


def test_names_may_have_any_characters(tmp_path: Path) -> None:
    """Of tensors, of objects and of keys in them."""
    model = torch.nn.ModuleDict({name.replace(".", ""): torch.nn.Linear(2, 2) for name in NAMES})
    state: dict[str, Any] = {"modèle": model, **{name: torch.ones(3) for name in NAMES}, "Größe": {"µ": 3}}
    checkpoints = Checkpoints(tmp_path, every=None)
    checkpoints.save(5, state)
    checkpoints.wait()
    del checkpoints
    gc.collect()
    other = {"modèle": torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in NAMES})}
    other |= {**{name: torch.zeros(3) for name in NAMES}, "Größe": {"µ": 0}}
    assert 5 == Checkpoints(tmp_path, every=None).load(other)
    assert {"µ": 3} == other["Größe"]
    for name in NAMES:
        assert torch.equal(model[name].weight, other["modèle"][name].weight)
        assert [1.0] * 3 == other[name].tolist()


@pytest.mark.slow
def test_each_rank_looks_at_a_part_of_the_files(ranks: RankServer, tmp_path: Path) -> None:
    """So each file is read once; all ranks go on from the same older checkpoint."""
    first = ranks.run(2, "train", tmp_path, "ddp", 4, 2)
    (newest,) = tmp_path.glob("step-4-*")
    for path in files_of(newest):
        whole = path.read_bytes()
        if path.name != FACTS:
            flip(path, len(whole) // 2, 1)
            results = ranks.start(2, "train", tmp_path, "ddp", 0, None).results()
            assert [2, 2] == [result.value["start"] for result in results]
            assert [True, False] == ["of step 4 is damaged" in result.printed for result in results]
        path.write_bytes(whole)
    again = ranks.run(2, "train", tmp_path, "ddp", 0, None)
    assert [one["seen"] for one in first] == [one["loaded"] for one in again]
