"""Sections of a worker's code, as its agent sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.worker.channel import MAX_DEPTH, Channel, Section
from hpc_elastic.worker.progress import WorkerProgress


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    """Return the agent's end of a fresh channel."""
    return Channel.create(str(tmp_path / "channel"))


@pytest.fixture
def progress(channel: Channel) -> WorkerProgress:
    """Return the worker's end."""
    return WorkerProgress({}, Channel.open(channel.path))


def names(channel: Channel) -> list[str]:
    """Return the names of the sections a worker is in."""
    return [section.name for section in channel.sections]


def test_sections_follow_and_contain_one_another(channel: Channel, progress: WorkerProgress) -> None:
    """The agent sees where the worker is, and each change as a sign of life."""
    seen = [channel.pulse]
    with progress.section("eval", timeout=2.5):
        assert [Section(1, "eval", 2.5)] == list(channel.sections)
        seen.append(channel.pulse)
        with progress.section("metrics"):
            assert [Section(1, "eval", 2.5), Section(2, "metrics", None)] == list(channel.sections)
            seen.append(channel.pulse)
        assert ["eval"] == names(channel)
        seen.append(channel.pulse)
    assert [] == names(channel)
    with progress.section("eval"):
        assert [Section(5, "eval", None)] == list(channel.sections)
    assert len(set(seen)) == len(seen)


def test_a_critical_section_is_a_sign_of_life(channel: Channel, progress: WorkerProgress) -> None:
    """Entered and left."""
    before = channel.pulse
    with progress.critical("saving"):
        assert before != channel.pulse
    assert before == channel.pulse


def test_an_exception_leaves_the_section(channel: Channel, progress: WorkerProgress) -> None:
    """It goes on to whoever wants it."""
    with pytest.raises(ZeroDivisionError), progress.section("outer"), progress.section("inner"):
        raise ZeroDivisionError
    assert [] == names(channel)


def test_a_section_may_be_used_again(channel: Channel, progress: WorkerProgress) -> None:
    """Each time it is another block."""
    section = progress.section("eval")
    numbers = set()
    for _ in range(3):
        with section:
            numbers.add(channel.sections[0].number)
    assert 3 == len(numbers)


def test_what_is_too_deep_counts_as_what_is_around_it(channel: Channel, progress: WorkerProgress) -> None:
    """Nothing is lost on the way out."""
    sections = [progress.section(f"s{depth}") for depth in range(MAX_DEPTH + 3)]
    for section in sections:
        section.__enter__()
    assert [f"s{depth}" for depth in range(MAX_DEPTH)] == names(channel)
    for section in reversed(sections):
        section.__exit__()
    assert [] == names(channel)


@pytest.mark.parametrize("name", ["x" * 100, "é" * 40, "eval of everything"])
def test_long_names_are_cut(channel: Channel, progress: WorkerProgress, name: str) -> None:
    """They are for people."""
    with progress.section(name):
        (shown,) = names(channel)
    assert name.startswith(shown.rstrip("\ufffd"))
    assert len(shown.encode()) <= 51


@pytest.mark.parametrize(
    ("name", "timeout"),
    [("", None), (3, None), (None, None), ("a\nb", None), ("eval", 0), ("eval", -1), ("eval", float("nan"))],
)
def test_what_is_no_section(progress: WorkerProgress, name: Any, timeout: Any) -> None:
    """One clear error, where it stands."""
    with pytest.raises(InputError, match=r"name of a section|timeout of section"):
        progress.section(name, timeout)


def test_without_an_agent_a_section_does_nothing() -> None:
    """Code is the same."""
    with WorkerProgress.from_environment({}).section("eval", timeout=3):
        pass


def test_who_attaches_can_be_asked_for_stacks(channel: Channel) -> None:
    """The first process does; what it starts is not mistaken for it, and finds nothing of its own broken."""
    code = """
import os, signal, subprocess, sys
from hpc_elastic import worker
worker.tick(1)
own = os.getpid()
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-c", sys.stdin.read(), "child"], check=True)
    print(own)
"""
    argv = [sys.executable, "-c", code]
    env = {**os.environ, Env.CHANNEL: channel.path}
    done = subprocess.run(argv, env=env, input=code, capture_output=True, text=True, check=True)
    assert int(done.stdout) == channel.pid
    assert channel.stacks_signal > 0
    assert os.path.exists(channel.stacks_path)
    assert 0o600 == os.stat(channel.stacks_path).st_mode & 0o777
    channel.unlink()
    assert not os.path.exists(channel.stacks_path)
