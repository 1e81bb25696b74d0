"""Critical sections, the time that is left, and ranks that ask without telling their steps."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.worker.channel import Channel
from hpc_elastic.worker.progress import WorkerProgress


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    """Return the agent's end of a fresh channel."""
    return Channel.create(str(tmp_path / "channel"))


def attached(
    channel: Channel, clock: FakeClock | None = None, environ: dict[str, str] | None = None
) -> WorkerProgress:
    """Return a worker's end."""
    return WorkerProgress(environ or {}, Channel.open(channel.path), clock)


def test_the_outermost_section_is_told(channel: Channel) -> None:
    """The agent sees its name and since when; leaving an inner one changes nothing."""
    clock = FakeClock()
    progress = attached(channel, clock)
    assert channel.critical is None
    with progress.critical("saving"):
        began = clock.monotonic()
        clock.sleep(2)
        with progress.critical("moving"):
            pass
        found = channel.critical
        assert found is not None
        assert ("saving", pytest.approx(began, abs=1e-6)) == (found.name, found.since)
    assert channel.critical is None


def test_an_exception_leaves_a_section(channel: Channel) -> None:
    """It comes out, and the worker may be ended again."""
    with pytest.raises(ZeroDivisionError), attached(channel).critical("saving"):
        raise ZeroDivisionError
    assert channel.critical is None


def test_begin_and_end(channel: Channel) -> None:
    """What does not fit into a block is told by hand; an end without a beginning is an error."""
    section = attached(channel).critical("uploading")
    section.begin()
    section.begin()
    section.end()
    assert channel.critical is not None
    section.end()
    assert channel.critical is None
    with pytest.raises(RuntimeError, match="no critical section"):
        section.end()


def test_two_threads_in_sections(channel: Channel) -> None:
    """The worker is held until the last of its threads is out."""
    progress, inside, leave = attached(channel), threading.Event(), threading.Event()

    def save() -> None:
        with progress.critical("in the background"):
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=save)
    thread.start()
    assert inside.wait(120)
    with progress.critical("saving"):
        pass
    assert channel.critical is not None
    leave.set()
    thread.join(120)
    assert channel.critical is None


@pytest.mark.parametrize("name", ["", "  ", 3])
def test_a_section_has_a_name(name: str) -> None:
    """It is shown when something waits for it."""
    with pytest.raises(InputError, match="name"):
        WorkerProgress({}, None).critical(name)


def test_names_are_cut_and_need_not_be_ascii(channel: Channel) -> None:
    """A long one loses its end only."""
    with attached(channel).critical("ü" * 100):
        assert channel.critical is not None
        assert "ü" * 24 == channel.critical.name


def test_alone_nothing_is_told() -> None:
    """Without an agent a section is a block like any other, and there is no hurry."""
    progress = WorkerProgress({}, None)
    with progress.critical("saving"):
        assert progress.time_left() is None


def test_the_time_that_is_left(channel: Channel) -> None:
    """It counts down from what the agent says, to zero."""
    clock = FakeClock()
    progress = attached(channel, clock)
    assert progress.time_left() is None
    channel.until = clock.monotonic() + 20
    assert pytest.approx(20, abs=1e-6) == progress.time_left()
    clock.sleep(30)
    assert 0 == progress.time_left()


def test_who_tells_no_step_stops_by_its_questions(
    channel: Channel, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each question counts as a step, which is told to the user once; all ranks stop at the same one."""
    progress = attached(channel)
    assert [False] * 5 == [progress.should_stop() for _ in range(5)]
    assert 6 == channel.stop_bound
    channel.request_drain()
    channel.stop_step = 7
    assert [False, True, True] == [progress.should_stop() for _ in range(3)]
    assert 7 == channel.stopped_at
    assert 1 == capsys.readouterr().err.count("tick() is not")


def test_a_step_that_is_told_ends_the_counting(channel: Channel) -> None:
    """A loop may ask before its first step; then its own steps count."""
    progress = attached(channel)
    progress.should_stop()
    progress.tick(100)
    progress.should_stop()
    assert 100 == channel.last_step


@pytest.mark.parametrize("how", ["step", "section", "stop"])
def test_a_mark_tells_how_long_the_save_took(tmp_path: Path, channel: Channel, how: str) -> None:
    """From the critical section around it, else from the stop, else from the step that is saved."""
    clock = FakeClock()
    progress = attached(channel, clock, {Env.RUN_DIR: str(tmp_path)})
    progress.tick(7)
    clock.sleep(1)
    if how == "stop":
        channel.request_drain()
        channel.stop_step = 7
        assert progress.should_stop()
        clock.sleep(2)
    section = progress.critical("saving")
    if how == "section":
        section.begin()
        clock.sleep(4)
    progress.checkpoint_saved(7, None, shards=1)
    expected = {"step": 1, "stop": 2, "section": 4}[how]
    assert [pytest.approx(expected)] == checkpoints.save_times(RunPaths(tmp_path))


def test_a_save_of_another_step_has_no_time(tmp_path: Path, channel: Channel) -> None:
    """Nobody knows when it began."""
    progress = attached(channel, None, {Env.RUN_DIR: str(tmp_path)})
    progress.tick(7)
    progress.checkpoint_saved(5, None, shards=1)
    assert [] == checkpoints.save_times(RunPaths(tmp_path))


def test_the_functions_are_what_training_code_calls() -> None:
    """No module of the package hides behind their names once it is imported."""
    with worker.critical("saving"):
        assert worker.time_left() is None
    section = worker.critical()
    section.begin()
    section.end()
