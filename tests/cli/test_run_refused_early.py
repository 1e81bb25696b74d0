"""What `hpc-elastic run` refuses before it makes anything or waits for anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.run.command import main, unshared
from hpc_elastic.cli.run.flags import parser
from hpc_elastic.cli.run.options import resolve
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from hpc_elastic.testing.waiting import wait_until

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURMD_NODENAME": "n1",
}

STEP_OF_ONE = {**STEP, "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_log_directory_that_cannot_be_made(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is told at once, not after the other node has come."""
    (tmp_path / "file").touch()
    words = ["--nnodes=2", "--run-dir=run", "--log-dir=file/logs/deep", "--no-python", "true"]
    assert 2 == main(words)
    assert f"{tmp_path}/file is no directory" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_log_directory_that_takes_no_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of root the kernel's own file systems say that it may write there."""
    assert 2 == main(["--run-dir=run", "--log-dir=/proc/logs", "--no-python", "true"])
    error = capfd.readouterr().err
    assert "--log-dir: logs cannot be written to /proc/logs: /proc " in error
    assert "fix: give a directory that this user can write to" in error
    assert not (tmp_path / "run").exists()


def test_an_agents_log_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is told in one line with the place, and ends with no traceback."""
    agents = tmp_path / "run" / "logs" / "agents"
    (agents / "n1.log").mkdir(parents=True)
    (tmp_path / "run").chmod(0o700)
    words = [sys.executable, "-I", "-m", "hpc_elastic", "run", "--run-dir=run", "--no-python", "true"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **STEP_OF_ONE}
    )
    assert 2 == done.returncode
    assert f"the agent's log {agents}/n1.log cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HPC_ELASTIC_METRICS", "graphite:here"),
        ("HPC_ELASTIC_METRICS", "jsonl:/nowhere/below/this"),
        ("HPC_ELASTIC_METRICS", "prometheus-http:many"),
        ("HPC_ELASTIC_EVENTS", "jsonl:"),
        ("HPC_ELASTIC_EVENTS", "no_such_module:make"),
    ],
)
def test_listeners_that_cannot_be_had_leave_no_run_directory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: str,
) -> None:
    """The variable and its value are named; the directory is free for another try."""
    monkeypatch.setenv(name, value)
    assert 2 == main(["--run-dir=run", "--no-python", "true"])
    assert f"{name}={value} cannot be used" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_agents_of_different_sizes_do_not_meet(tmp_path: Path) -> None:
    """The second is refused with both values, and the first goes on to wait for its own kind."""
    words = [sys.executable, "-m", "hpc_elastic", "run", "--run-dir=run", "--no-python"]
    first = subprocess.Popen([*words, "--nnodes=2", "true"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    paths = RunPaths(tmp_path / "run")
    made = Path(paths.members)
    wait_until(lambda: made.is_dir() and read_state(paths).sizes == "2:2", "the first record", timeout_s=60)
    other = subprocess.run(
        [*words, "--nnodes=1:3", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 2 == other.returncode
    assert "started with --nnodes 1:3, the others with --nnodes 2\n" in other.stderr
    own = subprocess.run([*words, "--nnodes=2", "true"], cwd=tmp_path, timeout=60, check=False)
    assert (0, 0) == (own.returncode, first.wait(60))


def test_a_run_directory_that_only_one_node_sees_is_hinted_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Several nodes of a step and a directory in memory: the first node says why nobody will come."""
    monkeypatch.delenv("HPC_ELASTIC_SUBMISSION", raising=False)
    words = ["--run-dir=/dev/shm/hpc-elastic-not-made", "--no-python", "true"]
    plan = resolve(parser().parse_args(words), STEP)
    (hint,) = unshared(plan)
    assert "/dev/shm/hpc-elastic-not-made is on tmpfs on /dev/shm, which only this node sees" in hint
    one = resolve(parser().parse_args(words), {**STEP, "SLURM_STEP_NODELIST": "n1"})
    assert [] == unshared(one)
    monkeypatch.setenv("HPC_ELASTIC_SUBMISSION", "0")  # `submit` has looked already
    assert [] == unshared(plan)
