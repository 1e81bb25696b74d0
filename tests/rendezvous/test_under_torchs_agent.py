"""Torch's own agent over our handlers: the rendezvous, its store and its exit barrier."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]
TELL = 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT" >> "{told}"; '
MakeAgent = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(params=["shared_fs", "dynamic"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of handler."""
    return str(request.param)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Return the file to which all workers tell their places."""
    (tmp_path / "told").touch()
    return tmp_path / "told"


@pytest.fixture
def agent(kind: str, tmp_path: Path, told: Path) -> Iterator[MakeAgent]:
    """Return a function that starts an agent; what still runs after the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, low: int, then: str = "") -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("torchs_agent.py"))
        command = TELL.format(told=told) + then
        argv = [sys.executable, program, kind, str(tmp_path / "run"), name, str(low), "2", command]
        started.append(subprocess.Popen(argv, cwd=REPOSITORY))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def _lines(told: Path) -> list[str]:
    return sorted(told.read_text().splitlines())


def _is_pair(lines: list[str]) -> bool:
    """Tell whether two workers are in one world with one master."""
    places = sorted(line.partition(" at ")[0] for line in lines)
    masters = {line.partition(" at ")[2] for line in lines}
    return places == ["0 of 2", "1 of 2"] and len(masters) == 1


def test_two_agents_run_to_the_end(agent: MakeAgent, told: Path) -> None:
    """Ranks, world and master are right, and both agents end well."""
    agents = [agent("n1", 2), agent("n2", 2)]
    assert [0, 0] == [process.wait(120) for process in agents]
    assert _is_pair(_lines(told))


def _wait_while(condition: str) -> str:
    """Return what has a worker wait while a condition holds and its agent lives."""
    return f"while kill -0 $PPID 2>/dev/null && {condition}; do sleep 0.1; done"


def _of_two(told: Path) -> list[str]:
    return [line for line in _lines(told) if " of 2 " in line]


def test_an_agent_comes_later_and_is_lost(agent: MakeAgent, told: Path) -> None:
    """The first agent's worker starts again with the second one's, in one world, and alone after its end."""
    for_a_loss = _wait_while(f'{{ [ "$WORLD_SIZE" = 2 ] || [ ! -e "{told}.lost" ]; }}')
    first = agent("n1", 1, for_a_loss)
    wait_until(lambda: len(_lines(told)) == 1, "the first worker runs", timeout_s=120.0)
    second = agent("n2", 1, for_a_loss)
    wait_until(lambda: _is_pair(_of_two(told)), "a world of two", timeout_s=120.0)
    second.kill()
    Path(f"{told}.lost").touch()
    assert 0 == first.wait(120)
    assert "0 of 1" in told.read_text().splitlines()[-1]
