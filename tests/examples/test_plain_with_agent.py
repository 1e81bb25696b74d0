"""The plain example under a real agent, as its README says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.journal import StopAgreed
from hpc_elastic.record.run_log import read_records
from hpc_elastic.testing.waiting import wait_until
from tests.examples.ranks import HOLD, REPOSITORY

pytestmark = pytest.mark.timeout(300)
SCRIPT = REPOSITORY / "examples" / "plain" / "train.py"
LIMIT_S = 100.0
OPTIONS = ("--steps", "60", "--save-every", "10")


def start(
    directory: Path, *options: str, max_restarts: int = 0, held_at: int | None = None
) -> subprocess.Popen[bytes]:
    """Start an agent with two workers, which wait after a step as long as the file `hold` exists."""
    directory.mkdir(exist_ok=True)
    sign = directory / "hold"
    if held_at is not None:
        sign.touch()
    by = () if held_at is None else (str(HOLD), str(held_at), str(sign))
    argv = [
        *(sys.executable, "-m", "hpc_elastic", "run", "--run-dir", str(directory / "run")),
        *("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", str(max_restarts)),
        *(*by, str(SCRIPT), "--out", str(directory / "result.json"), *OPTIONS, *options),
    ]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


def saved_step(directory: Path) -> int:
    """Return the step of the newest checkpoint, 0 if there is none."""
    found = checkpoints.latest(RunPaths(directory / "run"))
    return found.step if found else 0


def wait_for_checkpoint(directory: Path, step: int) -> None:
    """Wait until a checkpoint of at least that step is durable."""
    wait_until(lambda: saved_step(directory) >= step, f"a checkpoint of step {step}", timeout_s=LIMIT_S)


def has_agreed_to_stop(directory: Path) -> bool:
    """Tell whether the step is known after which all ranks stop."""
    return any(isinstance(one.entry, StopAgreed) for one in read_records(RunPaths(directory / "run")))


@pytest.fixture
def expected(tmp_path: Path) -> bytes:
    """Return the result of a run that nothing disturbed."""
    assert 0 == start(tmp_path / "undisturbed").wait(LIMIT_S)
    return (tmp_path / "undisturbed" / "result.json").read_bytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_crash(tmp_path: Path, expected: bytes, rank: int) -> None:
    """A rank that crashes once costs one restart, and the result is the same."""
    crash = ("--crash-at", "35", "--crash-rank", str(rank))
    assert 0 == start(tmp_path / "crash", *crash, max_restarts=1).wait(LIMIT_S)
    assert expected == (tmp_path / "crash" / "result.json").read_bytes()


def test_each_run_keeps_its_files_to_itself(tmp_path: Path) -> None:
    """Two runs in one work directory share neither checkpoints nor results."""
    argv = [sys.executable, "-m", "hpc_elastic", "run", "--standalone", str(SCRIPT), *OPTIONS]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    told = [
        subprocess.run(argv, env=environ, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
        for _ in range(2)
    ]
    assert ["hpc_elastic_runs"] == os.listdir(tmp_path)
    runs = list((tmp_path / "hpc_elastic_runs").iterdir())
    assert 2 == len(runs)
    for run in runs:
        assert run.name.startswith("run-2")
        assert (run / "result.json").exists()
        assert (run / "saved" / "step-60.json").exists()
        assert 1 == sum(text.count(f"run directory: {run}\n") for text in told)


def test_preemption(tmp_path: Path, expected: bytes) -> None:
    """SIGTERM to the agent saves a checkpoint between two regular ones; the next start goes on from it."""
    directory = tmp_path / "preempt"
    agent = start(directory, held_at=14)
    wait_for_checkpoint(directory, 10)
    agent.send_signal(signal.SIGTERM)
    wait_until(lambda: has_agreed_to_stop(directory), "the step of the stop", timeout_s=LIMIT_S)
    (directory / "hold").unlink()
    assert 128 + signal.SIGTERM == agent.wait(LIMIT_S)
    assert not (directory / "result.json").exists()
    assert 10 < saved_step(directory) < 60
    assert 0 == start(directory).wait(LIMIT_S)
    assert expected == (directory / "result.json").read_bytes()


@pytest.mark.slow
def test_killed_agent(tmp_path: Path, expected: bytes) -> None:
    """SIGKILL of the agent ends its workers; the next start goes on from the last save."""
    directory = tmp_path / "kill"
    agent = start(directory, held_at=24)
    wait_for_checkpoint(directory, 20)
    agent.kill()
    agent.wait(LIMIT_S)
    assert 0 == start(directory).wait(LIMIT_S)
    assert expected == (directory / "result.json").read_bytes()
