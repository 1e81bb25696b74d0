"""This rank among all, what ranks tell each other, and the rest of the threads of process groups."""

from __future__ import annotations

import atexit
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.errors import InputError  # noqa: E402
from hpc_elastic.frameworks.torch import rank_groups as module  # noqa: E402
from hpc_elastic.frameworks.torch.rank_groups import RankGroups, rank_groups, wait_for_rest  # noqa: E402
from hpc_elastic.frameworks.torch.train_state import load_torch  # noqa: E402
from hpc_elastic.testing.clock import FakeClock  # noqa: E402
from tests.frameworks.thread_ranks import on_ranks  # noqa: E402

pytestmark = pytest.mark.torch
GLOO = "pt_gloo_runloop"


def test_a_single_process_tells_itself() -> None:
    """Without process groups nothing is sent."""
    ranks = rank_groups(load_torch(), {})
    assert (0, 1, None, None, None) == (ranks.rank, ranks.size, *ranks[3:])
    assert 5 == ranks.told(5)
    assert [[6]] * 3 == [ranks.all_told(6), ranks.each_told(6), ranks.gathered(6, None)]
    assert [1.5, -2.0] == ranks.greatest([1.5, -2.0])
    ranks.rest()


class Distributed:
    """``torch.distributed`` of the second of three ranks; notes the groups that are made."""

    def __init__(self) -> None:
        self.groups: list[str] = []

    def is_available(self) -> bool:
        """Tell whether it was built."""
        return True

    def is_initialized(self) -> bool:
        """Tell whether the program has made its group."""
        return True

    def get_rank(self) -> int:
        """Return the rank."""
        return 1

    def get_world_size(self) -> int:
        """Return how many ranks there are."""
        return 3

    def new_group(self, *, backend: str, group_desc: str, timeout: timedelta | None = None) -> str:
        """Make a group."""
        self.groups.append(f"{backend}, {group_desc}, {timeout and timeout.total_seconds()}")
        return group_desc


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("replicas", [True, False])
def test_each_thread_that_is_wanted_has_a_group_of_its_own(
    monkeypatch: pytest.MonkeyPatch, *, saves: bool, replicas: bool
) -> None:
    """All ranks make them in the same order; a copy on its way to another node has more time."""
    monkeypatch.setattr(atexit, "register", lambda _: None)
    dist = Distributed()
    lib: Any = load_torch()._replace(distributed=dist)
    ranks = rank_groups(lib, {"WORLD_SIZE": "3"}, saves=saves, replicas=replicas)
    assert (1, 3, dist) == ranks[:3]
    wanted = [("loop", True, None), ("saves", saves, None), ("replicas", replicas, module._PIECE_S)]
    assert [f"hpc_elastic {name}" if is_wanted else None for name, is_wanted, _ in wanted] == [*ranks[3:]]
    assert [
        f"gloo, hpc_elastic {name}, {seconds}" for name, is_wanted, seconds in wanted if is_wanted
    ] == dist.groups


@pytest.mark.parametrize("size", ["2", "x"])
def test_several_ranks_need_a_process_group(size: str) -> None:
    """The error says what to call."""
    with pytest.raises(InputError, match=rf"there are {size} ranks, and no process group") as refused:
        rank_groups(load_torch(), {"WORLD_SIZE": size})
    assert refused.value.fix == "call torch.distributed.init_process_group first"


def test_ranks_hear_what_others_tell() -> None:
    """In the group of the thread that asks: each has one of its own."""

    def ask(dist: Any, rank: int) -> list[Any]:
        ranks = RankGroups(rank, 3, dist, dist.group.WORLD, None, dist.group.WORLD)
        return [
            ranks.told(f"of {rank}"),
            ranks.told(f"of {rank}", by=2),
            ranks.all_told(rank * 10),
            ranks.each_told(rank),
            ranks.gathered(rank, ranks.group_of_replicas),
            ranks.greatest([float(rank), -float(rank)]),
        ]

    for rank, heard in enumerate(on_ranks(3, ask)):
        assert ["of 0", "of 2", [0, 10, 20], [rank], [0, 1, 2], [2.0, 0.0]] == heard


class Threads:
    """The threads of a process as proc(5) shows them, at each look those of the next one.

    Args:
        place: a directory that stands for /proc/self/task.
        looks: the lines of each look; the last one stays.
    """

    def __init__(self, place: Path, looks: list[list[str]]) -> None:
        self._place, self._looks, self._shown = place, looks, [""]
        self.clock = FakeClock()

    def monotonic(self) -> float:
        """Return the time [s]."""
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass, and the next look see its threads."""
        self.clock.advance(seconds)
        lines = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        if lines == self._shown:
            return
        self._shown = lines
        for old in self._place.iterdir():
            (old / "stat").unlink()
            old.rmdir()
        for number, line in enumerate(lines):
            (self._place / str(number)).mkdir()
            (self._place / str(number) / "stat").write_text(line)


@pytest.fixture
def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that waits while threads look so, and returns the number of looks."""
    monkeypatch.setattr(module, "_TASKS", str(tmp_path))

    def wait(*looks: list[str]) -> int:
        threads = Threads(tmp_path, [*looks])
        began = threads.monotonic()
        wait_for_rest(threads)  # type: ignore[arg-type] # as much of a clock as is needed
        return round((threads.monotonic() - began) / module._LOOK_S)

    return wait


def line(name: str, state: str) -> str:
    """Return the line of a thread."""
    return f"17 ({name}) {state} 1 17 0"


def test_threads_at_rest_are_looked_at_three_times(waited: Any) -> None:
    """Each after a pause, in which one that is to run would."""
    assert 3 == waited([line(GLOO, "S")])
    assert 3 == waited([])


def test_after_one_that_runs_the_looks_begin_anew(waited: Any) -> None:
    """Three in a row have to find rest."""
    rest, run = [line(GLOO, "S")], [line(GLOO, "S"), line(GLOO, "R")]
    assert 6 == waited(rest, rest, run, rest)
    assert 8 == waited(run, rest, rest, run, run, rest)


def test_threads_of_others_may_run(waited: Any) -> None:
    """Those of the program, whatever its name looks like."""
    assert 3 == waited([line("python", "R"), line("pt_gloo) R (x", "S"), line("a) R", "R")])


def test_a_thread_that_never_rests_is_waited_for_in_a_bounded_time(waited: Any) -> None:
    """On a busy machine a thread waits for a CPU for seconds."""
    looks = waited([line(GLOO, "R")])
    assert looks * module._LOOK_S == pytest.approx(module._REST_S, abs=2 * module._LOOK_S)
