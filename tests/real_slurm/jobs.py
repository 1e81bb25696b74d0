"""Runs on a development cluster as tests see them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Entry
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.record.state import RunState
from tests.real_slurm.cluster import REPOSITORY, Cluster

USER = "alice"
PYTHON = os.environ.get("HPC_ELASTIC_TEST_PYTHON", sys.executable)
"""Interpreter that all users can run and that has the package."""
EXAMPLES = REPOSITORY / "examples"
PLAIN = EXAMPLES / "plain" / "train.py"
AGENT_PROCESS = r"^[^ ]*python[^ ]* (-I )?(-m hpc_elastic|-S [^ ]+ [^ ]+/start\.bin) run"
"""The command line of an agent, as pkill takes it; not that of its srun."""
SLOW = ("--step-time", "0.05")
THREE = ("--nodes", "3", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
STEPS = 200
SAVE_EVERY = 20


class Run:
    """One submitted run."""

    def __init__(self, cluster: Cluster, directory: Path, job_id: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.job_id = job_id
        self.paths = RunPaths(directory)

    def entries(self, kind: type) -> list[Any]:
        """Return the journal's entries of one kind."""
        return [record.entry for record in read_records(self.paths) if isinstance(record.entry, kind)]

    def state(self) -> RunState:
        """Return the state of the run."""
        return read_state(self.paths)

    def wait(self, predicate: Callable[[RunState], bool], what: str, timeout: float = 60) -> RunState:
        """Wait until the run's state fulfils a condition and return it."""

        def holds() -> bool:
            return predicate(self.state())

        try:
            self.cluster.wait_for(holds, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}\n{self.journal()}") from None
        return self.state()

    def wait_round(self, number: int, timeout: float = 60) -> RunState:
        """Wait until a round has been formed."""
        return self.wait(lambda state: state.rounds >= number, f"round {number}", timeout)

    def wait_ending(self, timeout: float = 90) -> RunState:
        """Wait until the run has ended for good."""
        return self.wait(lambda state: state.ending is not None, "the run to end", timeout)

    def wait_gone(self, timeout: float = 60) -> None:
        """Wait until Slurm has no more use for the job."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
        self.cluster.wait_for(
            lambda: self.cluster.job(self.job_id).get("JobState") in over, timeout, "the job to be over"
        )

    def wait_checkpoint(self, step: int, timeout: float = 60) -> None:
        """Wait until a checkpoint of at least this step is durable."""
        marks = Path(self.paths.checkpoints)
        what = f"a checkpoint of step {step}"
        self.cluster.wait_for(
            lambda: any(int(mark.name.split(".")[0]) >= step for mark in marks.glob("[0-9]*")), timeout, what
        )

    def job(self) -> dict[str, str]:
        """Return what Slurm says of the job."""
        return self.cluster.job(self.job_id)

    def log(self) -> str:
        """Return the batch log; those of all tasks, if the job is an array."""
        own = sorted(self.directory.glob(f"slurm-{self.job_id}[._]*"))
        return "".join(path.read_text() for path in own if path.suffix == ".out")

    def journal(self) -> str:
        """Return the journal, a line per record, for a failing test's message."""
        return "\n".join(str(record) for record in read_records(self.paths))

    def result(self) -> dict[str, Any]:
        """Return what the training has written."""
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an `hpc-elastic` command as the run's owner; it must work."""
        done = elastic(self.cluster, *words)
        assert done.returncode == 0, done.stderr
        return done


def elastic(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `hpc-elastic` as an unprivileged user on the login host."""
    return cluster.run(USER, [PYTHON, "-m", "hpc_elastic", *words])


def submit(cluster: Cluster, flags: Sequence[str], worker: Sequence[str]) -> Run:
    """Submit a run of `worker` and return it; ``{run}`` in `worker` stands for the run directory."""
    directory = cluster.shared / f"run-{len(list(cluster.shared.glob('run-*'))):03d}"
    words = [word.replace("{run}", str(directory)) for word in worker]
    where = ("--run-dir", str(directory), "--allow-local-run-dir", "--cpus-per-task", "2")
    done = elastic(cluster, "submit", *where, *flags, "--", *words)
    assert done.returncode == 0, done.stderr
    found = re.search(r"job (\d+)", done.stdout)
    assert found is not None, done.stdout
    return Run(cluster, directory, found[1])


def plain(cluster: Cluster, *options: str, steps: int = STEPS) -> list[str]:
    """Return the command of the training without a framework."""
    return example(cluster, "plain", *options, steps=steps)


def example(cluster: Cluster, name: str, *options: str, steps: int = STEPS) -> list[str]:
    """Return the command of an example, copied to where every user can read it."""
    script = cluster.shared / f"{name}.py"
    if not script.exists():
        shutil.copyfile(EXAMPLES / name / "train.py", script)
        script.chmod(0o644)
    sizes = ("--steps", str(steps), "--save-every", str(SAVE_EVERY))
    return [PYTHON, str(script), *sizes, "--out", "{run}/result.json", *options]


def uninterrupted(tmp_path: Path, steps: int = STEPS) -> dict[str, Any]:
    """Return the result of the same training run by itself, without hpc_elastic."""
    out = tmp_path / "result.json"
    subprocess.run([sys.executable, str(PLAIN), "--steps", str(steps), "--out", str(out)], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def nodes_of(entry: Entry) -> list[str]:
    """Return the node names of a round, in rank order."""
    return [member.node for member in entry.members]  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def installed_for_users(session_cluster: Cluster) -> None:
    """Fail at once, with the reason, if the package cannot be used by unprivileged users."""
    done = elastic(session_cluster, "--help")
    if done.returncode != 0:
        pytest.fail(f"{USER} cannot run {PYTHON} -m hpc_elastic:\n{done.stderr}", pytrace=False)
