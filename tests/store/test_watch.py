"""A watch wakes its owner when this machine changes something."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.store.watch import Watch

_WITHOUT_INPUT = """
import os, sys
from pathlib import Path
from hpc_elastic.store.watch import Watch

watch, place = Watch(), Path(sys.argv[1])
print(watch.fileno(), watch.add_directory(str(place)), watch.drain())
(place / "a").touch()
print(watch.drain())
(place / "b").touch()
watch.wait(50)
print(watch.drain())
watch.close()
print(watch.fileno(), os.path.exists("/proc/self/fd/0"))
"""


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Return a watch; it is closed afterwards."""
    made = Watch()
    yield made
    made.close()


def _is_awake(watch: Watch) -> bool:
    return bool(select.select([watch.fileno()], [], [], 0)[0])


def test_a_new_name_wakes(watch: Watch, tmp_path: Path) -> None:
    """A file made, or renamed into, a watched directory wakes once."""
    watch.add_directory(str(tmp_path))
    assert not _is_awake(watch)
    (tmp_path / "a").touch()
    assert _is_awake(watch)
    watch.drain()
    assert not _is_awake(watch)
    (tmp_path / "a").rename(tmp_path / "b")
    assert _is_awake(watch)


def test_a_growing_file_wakes(watch: Watch, tmp_path: Path) -> None:
    """What is written to a watched file wakes."""
    log = tmp_path / "log"
    log.touch()
    watch.add_file(str(log))
    with open(log, "a", encoding="ascii") as writer:
        writer.write("line\n")
    assert _is_awake(watch)


def test_what_is_not_watched_any_more_is_silent(watch: Watch, tmp_path: Path) -> None:
    """A directory taken off the watch wakes nobody; taking it off twice does no harm."""
    watch.add_directory(str(tmp_path))
    watch.remove(str(tmp_path))
    watch.drain()
    watch.remove(str(tmp_path))
    watch.drain()
    (tmp_path / "a").touch()
    assert not _is_awake(watch)


def test_an_absent_path_is_silent(watch: Watch, tmp_path: Path) -> None:
    """Watching what is not there is no error; it can be watched later."""
    late = tmp_path / "late"
    watch.add_directory(str(late))
    late.mkdir()
    watch.add_directory(str(late))
    (late / "a").touch()
    assert _is_awake(watch)


def test_a_closed_watch_does_nothing(tmp_path: Path) -> None:
    """After closing, nothing is watched and nothing fails."""
    watch = Watch()
    watch.close()
    watch.close()
    assert -1 == watch.fileno()
    watch.add_directory(str(tmp_path))
    watch.drain()


def test_waiting_ends_with_a_change(watch: Watch, tmp_path: Path) -> None:
    """Whoever waits goes on when a name has appeared, however long it would have waited."""
    watch.add_directory(str(tmp_path))
    (tmp_path / "a").touch()
    watch.wait(50)
    assert not _is_awake(watch)


@pytest.mark.parametrize("is_closed", [False, True])
def test_waiting_ends_without_a_change(watch: Watch, tmp_path: Path, is_closed: bool) -> None:
    """A writer's private file wakes nobody, and without inotify a wait is just a wait."""
    watch.add_directory(str(tmp_path))
    (tmp_path / ".tmp.1").touch()
    if is_closed:
        watch.close()
    watch.wait(0.01)


def test_what_was_reported_is_told_from_private_files(watch: Watch, tmp_path: Path) -> None:
    """A published name among them counts, once."""
    watch.add_directory(str(tmp_path))
    assert not watch.drain()
    (tmp_path / ".tmp.1").touch()
    assert not watch.drain()
    (tmp_path / ".tmp.2").touch()
    (tmp_path / "a").touch()
    (tmp_path / ".tmp.3").touch()
    assert watch.drain()
    assert not watch.drain()
    watch.close()
    assert not watch.drain()


def test_waiting_is_left_to_the_kernel(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the clock again and again."""
    real, looks = SystemClock.monotonic, []

    def monotonic(_: SystemClock) -> float:
        looks.append(real())
        return looks[-1]

    monkeypatch.setattr(SystemClock, "monotonic", monotonic)
    watch.wait(0.05)
    assert looks[-1] - looks[0] >= 0.05
    assert len(looks) < 10


def test_it_is_told_whether_a_directory_can_be_watched(watch: Watch, tmp_path: Path) -> None:
    """A directory that is there can, however often it is given; an absent one and a closed watch cannot."""
    assert [True, True] == [watch.add_directory(str(tmp_path)) for _ in range(2)]
    assert watch.add_directory(str(tmp_path / "absent")) is False
    watch.close()
    assert watch.add_directory(str(tmp_path / "absent")) is False
    assert watch.drain() is False


def test_more_private_files_than_one_read_holds_hide_no_name(watch: Watch, tmp_path: Path) -> None:
    """A published name counts whatever was reported after it."""
    watch.add_directory(str(tmp_path))
    (tmp_path / "a").touch()
    for number in range(600):
        (tmp_path / f".{number:0>200}").touch()
    assert watch.drain()


def test_closing_gives_the_descriptor_back(watch: Watch) -> None:
    """The kernel has no watch left for it."""
    descriptor = watch.fileno()
    watch.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_program_without_standard_input_can_watch(tmp_path: Path) -> None:
    """Its watch gets the descriptor 0, and works like any other."""
    without_input = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", _WITHOUT_INPUT, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(without_input, env=environ, capture_output=True, text=True, check=True)
    assert "0 True False\nTrue\nFalse\n-1 False\n" == done.stdout
