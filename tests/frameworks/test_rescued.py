"""The choice of the state to begin from, and the room for one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import DamagedError
from hpc_elastic.frameworks.torch.memory.copies import (
    Copied,
    MemorySource,
    NoRoomError,
    OwnFile,
    Rescued,
    Slot,
    check_room,
    found_in,
    owns_in,
    remove_others,
)
from hpc_elastic.frameworks.torch.memory.node_memory import Began, fit, is_suspect, read_began, write_began
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, pickled, unpickled
from hpc_elastic.record.journal import Cause, Record, RoundEnded
from tests.real_parts import memory_group

NEW = Rescued(4, 30, 0, 2)
OLD = Rescued(3, 20, 1, 2)
STALE = Rescued(2, 50, 0, 2)


@pytest.mark.parametrize(
    ("states", "began", "expected"),
    [
        ([NEW, OLD], Began(4, 3, 20), NEW),
        ([NEW, NEW._replace(rank=1, step=31)], Began(4), NEW._replace(rank=1, step=31)),
        ([NEW, NEW._replace(rank=1)], Began(4), NEW),
        ([OLD], Began(4, 3, 20), OLD),
        ([OLD], Began(4), None),
        ([STALE], Began(4, 3, 20), None),
        ([STALE, NEW], Began(4, 3, 20), NEW),
        ([NEW], None, None),
        ([], Began(4), None),
    ],
    ids=[
        "the newest round's",
        "ranks with different steps",
        "two ranks with one step",
        "again the one that it began from",
        "one that no round has begun from",
        "a node that stood by for two rounds",
        "beside such a node",
        "nothing is recorded",
        "memory that was wiped",
    ],
)
def test_the_newest_state_of_the_newest_round_counts(
    states: list[Rescued], began: Began | None, expected: Rescued | None
) -> None:
    """That of the round before counts if this one has begun from it."""
    assert expected == next(iter(fit(states, began, is_suspect=False)), None)


def test_the_same_failure_again_has_the_checkpoint_count() -> None:
    """A state from which no step was made is left; one that is newer is not."""
    assert [] == fit([OLD], Began(4, 3, 20), is_suspect=True)
    assert [NEW] == fit([OLD, NEW], Began(4, 3, 20), is_suspect=True)


@pytest.mark.parametrize(
    ("cause", "failure", "expected"),
    [
        (Cause.CRASH, {"exitcode": 1}, True),
        (Cause.CRASH, None, True),
        (Cause.HANG, None, True),
        (Cause.CRASH, {"exitcode": -9}, False),
        (Cause.NODE_LOSS, None, False),
        (Cause.MEMBERSHIP, None, False),
    ],
)
def test_a_failure_may_come_from_the_state(
    cause: Cause, failure: dict[str, Any] | None, expected: bool
) -> None:
    """Unless a node was lost, or a worker killed from outside; other rounds say nothing."""
    records = [Record(1, 0.0, "n1", RoundEnded(4, cause, ("n1",), failure))]
    assert expected is is_suspect(records, 4)
    assert not is_suspect(records, 3)


def test_a_state_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """The error names both sizes, the place and what to do."""
    check_room(str(tmp_path), 1)
    words = r"it has 10{18} bytes, and this node has \d+ bytes of memory for it\n  fix: raise the limit"
    with pytest.raises(NoRoomError, match=words):
        check_room(str(tmp_path), 10**18)


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group with 64 MiB, of either version; removed afterwards."""
    with memory_group("hpc_elastic_rescue", 64 << 20) as group:
        yield group


def test_the_limit_of_a_job_counts(tmp_path: Path, little_memory: Path) -> None:
    """A state of half of the limit and more is refused, whatever the node has."""
    child = os.fork()
    if child == 0:
        try:  # a forked child must never return into pytest
            (little_memory / "cgroup.procs").write_text(str(os.getpid()))
            check_room(str(tmp_path), 1 << 20)
            with pytest.raises(NoRoomError):
                check_room(str(tmp_path), 40 << 20)
            os._exit(0)
        finally:
            os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_values_of_a_rank_belong_to_one_step(tmp_path: Path) -> None:
    """The two newest steps are there; what is torn or of another round is passed over."""
    file = OwnFile(str(tmp_path), 4, 1)
    for step in (26, 28, 30, 30):
        file.write(step, b"step %d" % step)
    assert {1: b"step 30"} == owns_in(str(tmp_path), NEW)
    assert {1: b"step 28"} == owns_in(str(tmp_path), NEW._replace(step=28))
    assert {} == owns_in(str(tmp_path), NEW._replace(step=26))
    assert {} == owns_in(str(tmp_path), NEW._replace(round=5))
    path = next(path for path in tmp_path.iterdir() if b"step 30" in path.read_bytes())
    path.write_bytes(path.read_bytes()[:-1])
    assert {} == owns_in(str(tmp_path), NEW)


def test_values_may_be_noted_before_their_state(tmp_path: Path) -> None:
    """Then the states of the two steps before may still be kept."""
    file = OwnFile(str(tmp_path), 4, 1, files=3)
    for step in (26, 28, 30, 31):
        file.write(step, b"step %d" % step)
    found = [owns_in(str(tmp_path), NEW._replace(step=step)) for step in (26, 28, 30, 31)]
    assert [{}, {1: b"step 28"}, {1: b"step 30"}, {1: b"step 31"}] == found


def test_only_the_state_that_was_chosen_stays(tmp_path: Path) -> None:
    """With the values of its ranks; files of others in the folder are left alone."""
    for state in (NEW, OLD):
        (tmp_path / state.file_name).touch()
        OwnFile(str(tmp_path), state.round, 0).write(state.step, b"")
    (tmp_path / f"{OLD.file_name}.part").touch()
    (tmp_path / "4.0").touch()
    remove_others(str(tmp_path), NEW)
    assert [NEW] == found_in(str(tmp_path))
    assert {NEW.file_name, "own-4-0-0", "own-4-0-1", "4.0"} == {path.name for path in tmp_path.iterdir()}


def test_what_a_round_has_begun_from_is_recorded(tmp_path: Path) -> None:
    """A damaged record is none."""
    folder = str(tmp_path / "saved")
    assert read_began(folder) is None
    write_began(folder, Began(4, 3, 20))
    assert Began(4, 3, 20) == read_began(folder)
    (tmp_path / "saved" / "began.json").write_bytes(b"{")
    assert read_began(folder) is None


def test_the_ranks_whose_values_are_lost_are_named(tmp_path: Path) -> None:
    """With the names of the values, which show what to make the same on all ranks."""
    torch = pytest.importorskip("torch")
    lib, state = Torch(torch, *[None] * 3), NEW._replace(is_alike=False)
    slot = Slot(lib, str(tmp_path / state.file_name))
    _, values_at, end = slot.write({}, pickled(lib, {}))
    slot.seal(Copied("", "00" * 8, *state[:4], end), values_at)
    OwnFile(str(tmp_path), state.round, 0).write(state.step, pickle.dumps({"epoch": 3}))
    OwnFile(str(tmp_path), state.round, 1).write(state.step - 1, pickle.dumps({"epoch": 2}))
    words = r"lacks the values of rank 1 \(epoch\): one that is lost with its node, or whose loop had not"
    with pytest.raises(DamagedError, match=words):
        MemorySource(lib, RankGroups(0, 1, None), state, 0, str(tmp_path))
    OwnFile(str(tmp_path), state.round, 1).write(state.step, pickle.dumps({"epoch": 3}))
    source = MemorySource(lib, RankGroups(0, 1, None), state, 0, str(tmp_path))
    owns = source.owns()
    assert isinstance(owns, list)
    assert [{"epoch": 3}] * 2 == [unpickled(lib, own) for own in owns]
