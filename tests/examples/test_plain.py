"""The plain example ends with the same bits, however it is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.ranks import REPOSITORY, Ranks

pytestmark = pytest.mark.timeout(300)
SCRIPT = "examples/plain/train.py"
LIMIT_S = 100.0
OPTIONS = ("--steps", "60", "--save-every", "10")


@pytest.fixture
def new_ranks(tmp_path: Path) -> Iterator[Callable[[str], Ranks]]:
    """Return a function that makes the ranks of a run; all are gone afterwards."""
    made: list[Ranks] = []

    def make(name: str) -> Ranks:
        (tmp_path / name).mkdir()
        made.append(Ranks(SCRIPT, tmp_path / name, LIMIT_S))
        return made[-1]

    yield make
    for ranks in made:
        ranks.kill()


@pytest.fixture
def expected(new_ranks: Callable[[str], Ranks]) -> bytes:
    """Return the result of a run that nothing disturbed."""
    ranks = new_ranks("undisturbed").start(*OPTIONS)
    assert [0, 0] == ranks.wait()
    return ranks.result()


def test_learns_the_line(expected: bytes) -> None:
    """The weights approach the line that the data were drawn from."""
    slope, offset = (float.fromhex(weight) for weight in json.loads(expected)["weights"])
    assert slope > 1.0
    assert offset < 0.0


def test_without_an_agent_only_the_result_is_written(tmp_path: Path) -> None:
    """Nothing could resume from a checkpoint there, so the script leaves no directory of them behind."""
    script = REPOSITORY / SCRIPT
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, script, *OPTIONS], cwd=tmp_path, env=environ, check=True, timeout=LIMIT_S)
    assert ["result.json"] == os.listdir(tmp_path)


def test_crash(new_ranks: Callable[[str], Ranks], expected: bytes) -> None:
    """A rank that crashes once resumes from the last save and the result is the same."""
    ranks = new_ranks("crash")
    crash = (*OPTIONS, "--crash-at", "35", "--crash-rank", "0")
    assert 1 == ranks.start(*crash).wait()[0]
    assert 30 == ranks.saved_step()
    assert [0, 0] == ranks.start(*crash).wait()
    assert expected == ranks.result()


def test_kill(new_ranks: Callable[[str], Ranks], expected: bytes) -> None:
    """After SIGKILL in the middle the result is the same."""
    ranks = new_ranks("kill")
    ranks.start(*OPTIONS, held_at=24).wait_for_step(24)
    ranks.kill()
    assert (ranks.saved_step() or 0) >= 20
    assert [0, 0] == ranks.start(*OPTIONS).wait()
    assert expected == ranks.result()


def test_preemption(new_ranks: Callable[[str], Ranks], expected: bytes) -> None:
    """A stop request ends all ranks at one step, which is saved, and the result is the same."""
    ranks = new_ranks("preempt")
    ranks.start(*OPTIONS, held_at=14).wait_for_step(14)
    stopped_at = ranks.drain()
    assert 1 == len(set(stopped_at))
    assert [0, 0] == ranks.wait()
    assert stopped_at[0] == ranks.saved_step()
    assert [0, 0] == ranks.start(*OPTIONS).wait()
    assert expected == ranks.result()
