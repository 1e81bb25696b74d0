"""Real DDP training ends with the same bits, however it is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.ranks import REPOSITORY, Ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("torch") is None or find_spec("sklearn") is None, reason="could not find torch or sklearn"
    ),  # imports take seconds
]

SCRIPT = "examples/digits_ddp/train.py"
IMPORTS = "torch.distributed,torch.nn.parallel,torch.optim,torch._dynamo,sklearn.datasets"
LIMIT_S = 250.0
OPTIONS = ("--steps", "120", "--save-every", "20")


@pytest.fixture
def new_ranks(tmp_path: Path) -> Iterator[Callable[[str], Ranks]]:
    """Return a function that makes the ranks of a run; all are gone afterwards."""
    made: list[Ranks] = []

    def make(name: str) -> Ranks:
        (tmp_path / name).mkdir()
        made.append(Ranks(SCRIPT, tmp_path / name, LIMIT_S, IMPORTS))
        return made[-1]

    yield make
    for ranks in made:
        ranks.kill()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the result of a run that nothing disturbed."""
    ranks = Ranks(SCRIPT, tmp_path_factory.mktemp("undisturbed"), LIMIT_S, IMPORTS).start(*OPTIONS)
    try:
        assert [0] == ranks.wait()
    finally:
        ranks.kill()
    return ranks.result()


def test_learns(expected: bytes) -> None:
    """The network reads most digits it has not seen."""
    assert json.loads(expected)["accuracy"] > 0.85


def test_kill(new_ranks: Callable[[str], Ranks], expected: bytes) -> None:
    """After SIGKILL of all ranks accuracy and weights are the same."""
    ranks = new_ranks("kill")
    ranks.start(*OPTIONS, held_at=45).wait_for_step(45)
    ranks.kill()
    assert (ranks.saved_step() or 0) >= 20
    assert [0] == ranks.start(*OPTIONS).wait()
    assert expected == ranks.result()


def test_preemption(new_ranks: Callable[[str], Ranks], expected: bytes) -> None:
    """A stop request leaves no rank in a collective: both stop at one step, which is saved."""
    ranks = new_ranks("preempt")
    ranks.start(*OPTIONS, held_at=30).wait_for_step(30)
    stopped_at = ranks.drain()
    assert 1 == len(set(stopped_at))
    assert [0] == ranks.wait()
    assert stopped_at[0] == ranks.saved_step()
    assert [0] == ranks.start(*OPTIONS).wait()
    assert expected == ranks.result()


def test_crash_under_an_agent(tmp_path: Path, expected: bytes) -> None:
    """Under a real agent a crash of one rank costs one restart: accuracy and weights are the same."""
    out = tmp_path / "result.json"
    crash_once = (str(Path(__file__).with_name("crash_once.py")), "50", "1", str(tmp_path / "crashed"))
    argv = [
        *(sys.executable, "-m", "hpc_elastic", "run", "--run-dir", str(tmp_path / "run")),
        *("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1"),
        *(*crash_once, str(REPOSITORY / SCRIPT), "--out", str(out), *OPTIONS),
    ]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(argv, env=environ, check=True, timeout=LIMIT_S)
    assert (tmp_path / "crashed").exists()
    assert expected == out.read_bytes()
