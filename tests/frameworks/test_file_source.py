"""Checkpoints in files: the one that a rank reads, whoever has saved it, and the newest one that counts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic import worker  # noqa: E402
from hpc_elastic.errors import InputError  # noqa: E402
from hpc_elastic.frameworks.saving import Saves  # noqa: E402
from hpc_elastic.frameworks.torch.checkpoint_files import (  # noqa: E402
    CompleteCheckpoint,
    FileSource,
    FoundCheckpoints,
    with_own_files,
)
from hpc_elastic.frameworks.torch.rank_groups import RankGroups  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch, pickled, unpickled  # noqa: E402
from hpc_elastic.record.checkpoint_files import CheckpointFacts, SavedFile, read_facts, write_facts  # noqa: E402
from tests.frameworks.test_saving import in_run  # noqa: E402
from tests.frameworks.thread_ranks import on_ranks  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
LIB, ALONE = load_torch(), RankGroups(0, 1, None)


def ranks_of(dist: Any, rank: int) -> RankGroups:
    """Return the process groups of a rank."""
    return RankGroups(rank, dist.get_world_size(), dist, dist.group.WORLD)


def write(path: Path, **content: Any) -> str:
    """Write the content of a checkpoint, as its ranks do together; dots stand for two underscores."""
    named = {name.replace("__", "."): value for name, value in content.items()}
    LIB.checkpoint.save(
        named, storage_writer=with_own_files(LIB.checkpoint.FileSystemWriter(path)), no_dist=True
    )
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a checkpoint of two ranks: one tensor is the same on both, one differs, each has its values."""
    whole = {f"own__{rank}": pickled(LIB, {"rank": rank}) for rank in range(2)}
    experts = {f"own__{rank}/expert": torch.full((2,), float(rank)) for rank in range(2)}
    return write(tmp_path / "step-5-1", w=torch.arange(3.0), **whole, **experts)


def test_a_rank_reads_its_own_values_and_tensors(path: str) -> None:
    """Under the names that they have in the training."""

    def read(dist: Any, rank: int) -> tuple[set[str], int, list[float], list[float]]:
        source = FileSource(LIB, ranks_of(dist, rank), path, 2)
        names = {name for name in source.stored() if not name.startswith("own.")}
        owns = source.owns()
        assert isinstance(owns, bytes)
        loaded = {"w": torch.zeros(3), "expert": torch.zeros(2)}
        kept = dict(loaded)
        source.fill(loaded)
        assert all(kept[name] is value for name, value in loaded.items())
        return names, unpickled(LIB, owns)["rank"], loaded["w"].tolist(), loaded["expert"].tolist()

    for rank, found in enumerate(on_ranks(2, read)):
        assert ({"w", "expert"}, rank, [0.0, 1.0, 2.0], [float(rank)] * 2) == found


def test_tensors_that_differed_are_refused_by_another_number_of_ranks(path: str) -> None:
    """With the name and the number that has saved it."""
    with pytest.raises(InputError, match="expert was not the same on the 2 ranks that have saved") as refused:
        FileSource(LIB, ALONE, path, 2).stored()
    assert "go on with 2 ranks" in refused.value.fix


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_gets_the_values_of_all_that_have_saved(tmp_path: Path, size: int) -> None:
    """In the order of those ranks, on each rank; what rank 0 reads is sent to the others."""
    owns = {f"own__{rank}": pickled(LIB, rank) for rank in range(2)}
    path = write(tmp_path / "step-5-1", w=torch.arange(3.0), **owns)

    def read(dist: Any, rank: int) -> tuple[list[int], list[float]]:
        source = FileSource(LIB, ranks_of(dist, rank), path, 2)
        found = source.owns()
        assert isinstance(found, list)
        loaded = {"w": torch.zeros(3)}
        source.stored()
        source.fill(loaded)
        return [unpickled(LIB, one) for one in found], loaded["w"].tolist()

    assert [([0, 1], [0.0, 1.0, 2.0])] * size == on_ranks(size, read)
    alone = FileSource(LIB, ALONE, path, 2).owns()
    assert isinstance(alone, list)
    assert [0, 1] == [unpickled(LIB, one) for one in alone]


def test_values_that_were_alike_are_one_object(tmp_path: Path) -> None:
    """A thousand ranks have the same schedule: it is held once."""
    owns = {f"own__{rank}": pickled(LIB, "same") for rank in range(3)}
    first, *others = FileSource(LIB, ALONE, write(tmp_path / "step-5-1", **owns), 3).owns()
    assert all(one is first for one in others)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_own_buffers(tmp_path: Path, rank: int) -> None:
    """Those of rank 0 are there for another number of ranks; a value that is no tensor is its own, too."""
    buffers = {
        f"own__{one}__buffers": pickled(LIB, {"mean": torch.full((2,), 7.0 + one), "seen": one})
        for one in range(2)
    }
    owns = {f"own__{one}": b"" for one in range(2)}
    path = write(tmp_path / "step-5-1", mean=torch.full((2,), 7.0), seen=0, **buffers, **owns)

    def read(dist: Any, rank: int) -> tuple[list[float], Any]:
        source = FileSource(LIB, ranks_of(dist, rank), path, 2)
        source.stored()
        own = torch.zeros(2)
        loaded = {"mean": own, "seen": None}
        source.fill(loaded)
        assert own is loaded["mean"]
        return own.tolist(), loaded["seen"]

    assert ([7.0 + rank] * 2, rank) == on_ranks(2, read)[rank]
    alone = {"mean": torch.zeros(2), "seen": None}
    source = FileSource(LIB, ALONE, path, 2)
    source.stored()
    source.fill(alone)
    assert ([7.0, 7.0], 0) == (alone["mean"].tolist(), alone["seen"])


def test_records_have_the_order_of_the_values_of_rank_0(tmp_path: Path) -> None:
    """Files have none; records of more names follow, and names without a record are left out."""
    order = pickle.dumps(["z", "gone", "a"])
    path = write(
        tmp_path / "step-5-1", a=torch.zeros(1), m=torch.zeros(1), z=torch.zeros(1), own__names=order
    )
    found = [name for name in FileSource(LIB, ALONE, path, 1).stored() if not name.startswith("own.")]
    assert ["z", "a", "m"] == found


def complete(saves: Saves, step: int, *, run: str | None = None, name: str = "", mark: bool = True) -> str:
    """Complete a checkpoint of one rank; return its path."""
    path = saves.path(step)
    os.makedirs(path, exist_ok=True)
    write_facts(
        path,
        CheckpointFacts(step, 1, 100.0 + step, 0.1, 0.2, run=saves.run if run is None else run, name=name),
    )
    if mark:
        worker.checkpoint_saved(step, path, shards=1)
    return path


def found_of(saves: Saves) -> FoundCheckpoints:
    """Return what one rank finds."""
    return FoundCheckpoints(ALONE, saves)


def newest(found: FoundCheckpoints) -> CompleteCheckpoint | None:
    """Return the one to go on from."""
    found.look()
    return found.newest


def test_without_a_run_the_newest_complete_one_counts(tmp_path: Path) -> None:
    """One without facts is not complete; without any there is none."""
    saves = Saves(None, tmp_path / "saved", is_whole=lambda path: read_facts(path) is not None)
    found = found_of(saves)
    assert ([], None) == (found.all(), newest(found))
    paths = [complete(saves, step, mark=False) for step in (5, 10)]
    os.makedirs(saves.path(15))
    assert [
        CompleteCheckpoint(10, paths[1], 1, 110.0),
        CompleteCheckpoint(5, paths[0], 1, 105.0),
    ] == found.all()
    assert (10, paths[1]) == (newest(found) or (0, ""))[:2]


@pytest.fixture
def saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saves:
    """Return the checkpoints of a run of one rank."""
    environ = in_run(tmp_path / "run", monkeypatch)
    return Saves(None, environ=environ)


def test_in_a_run_the_marked_one_counts(saves: Saves) -> None:
    """One that no rank has marked is not complete, whatever is in it."""
    complete(saves, 5)
    complete(saves, 10, mark=False)
    assert 5 == (newest(found_of(saves)) or (0,))[0]


@pytest.mark.parametrize(("run", "name"), [("another", ""), (None, "another")])
def test_one_of_another_run_or_object_does_not_count(
    saves: Saves, caplog: pytest.LogCaptureFixture, run: str | None, name: str
) -> None:
    """The newest one before it does, and that is told; without one the error says what it is."""
    before = complete(saves, 5)
    bad = complete(saves, 10, run=run, name=name)
    assert 5 == (newest(found_of(saves)) or (0,))[0]
    assert f"the checkpoint {bad} is not whole; the training goes on from the one of step 5" in caplog.text
    os.unlink(f"{before}/checkpoint.json")
    with pytest.raises(InputError, match=f"was saved by another run or object: {bad}"):
        newest(found_of(saves))


def test_one_that_says_nothing_of_its_run_counts(saves: Saves) -> None:
    """An old version has saved it."""
    complete(saves, 10, run="", name="any")
    assert 10 == (newest(found_of(saves)) or (0,))[0]


def test_one_that_is_gone_or_of_another_kind_is_an_error(saves: Saves) -> None:
    """If there is no older one: it is named, with what it is."""
    path = complete(saves, 10)
    os.unlink(f"{path}/checkpoint.json")
    with pytest.raises(InputError, match=f"resume from was not saved by Checkpoints: {path}"):
        newest(found_of(saves))
    os.rmdir(path)
    with pytest.raises(InputError, match=f"resume from is gone: {path}"):
        newest(found_of(saves))
    worker.checkpoint_saved(15, None)
    with pytest.raises(InputError, match="the checkpoint of step 15 was marked without a path"):
        newest(found_of(saves))


def undamaged(found: FoundCheckpoints) -> CompleteCheckpoint | None:
    """Return the one to go on from whose files are whole."""
    found.look()
    return found.whole()


def damage(path: str) -> None:
    """Have a file of a checkpoint be another one than its facts tell."""
    facts = read_facts(path)
    assert facts is not None
    Path(path, "checkpoint.json").unlink()
    Path(path, "0.distcp").write_bytes(b"x")
    write_facts(path, facts._replace(files=(SavedFile("0.distcp", 1, 0),)))


def test_without_a_run_a_damaged_one_does_not_count_either(tmp_path: Path) -> None:
    """Whatever the order: the newest one that is whole does, and without one there is an error."""
    saves = Saves(None, tmp_path / "saved", is_whole=lambda path: read_facts(path) is not None)
    paths = [complete(saves, step, mark=False) for step in (5, 10, 15)]
    damage(paths[2])
    assert 10 == (undamaged(found_of(saves)) or (0,))[0]
    damage(paths[1])
    assert 5 == (undamaged(found_of(saves)) or (0,))[0]
    damage(paths[0])
    found = found_of(saves)
    with pytest.raises(InputError, match="is damaged, and there is no older one"):
        undamaged(found)
    assert 0 == found.step


def test_a_damaged_one_has_the_next_one_before_it_count(
    saves: Saves, caplog: pytest.LogCaptureFixture
) -> None:
    """As often as that is needed; if none is left, the error says so."""
    paths = {step: complete(saves, step) for step in (5, 10, 15)}
    for step in (10, 15):
        damage(paths[step])
    found = found_of(saves)
    assert 5 == (undamaged(found) or (0,))[0]
    told = [text for text in caplog.messages if "is damaged" in text]
    assert [f"the checkpoint of step {step} is damaged" for step in (15, 10)] == [
        text.partition(":")[0] for text in told
    ]
    assert 5 == found.step == found.whole_step()
    Path(paths[5], "checkpoint.json").unlink()
    again = found_of(saves)
    with pytest.raises(InputError, match="is damaged, and there is no older one"):
        undamaged(again)


def test_all_ranks_resume_from_the_one_that_rank_0_finds(tmp_path: Path) -> None:
    """Another rank may see an older listing."""
    places = [tmp_path / "of rank 0", tmp_path / "of rank 1"]
    first, second = (
        Saves(None, place, is_whole=lambda path: read_facts(path) is not None) for place in places
    )
    expected = complete(first, 10, mark=False)
    complete(second, 15, mark=False)

    def look(dist: Any, rank: int) -> str:
        ranks = RankGroups(rank, 2, dist, dist.group.WORLD)
        found = newest(FoundCheckpoints(ranks, (first, second)[rank]))
        return "" if found is None else found.path

    assert [expected] * 2 == on_ranks(2, look)
