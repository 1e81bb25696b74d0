"""Lightning, accelerate and Hydra on a real Slurm: preempted, requeued, and with the right result."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.rendezvous.journal import Cause, Decision, Drained, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import EXAMPLES, PYTHON, USER, Run, example, installed_for_users, submit

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures(installed_for_users.__name__)]

TWO = ("--nodes", "2", "--workers-per-node", "2", "--time", "10m", "--partition", "low")
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
STEPS = 300
SLOW = ("--step-time", "0.06")
LIMIT_S = 120.0


@pytest.fixture
def has() -> None:
    """Skip where the interpreter of the jobs lacks the frameworks."""
    names = ("lightning", "accelerate", "hydra")
    find = f"from importlib.util import find_spec; print(all(map(find_spec, {names})))"
    found = subprocess.run([PYTHON, "-c", find], capture_output=True, text=True, check=True).stdout
    if found.strip() != "True":
        pytest.skip(f"{PYTHON} has no Lightning, accelerate or Hydra (extra: frameworks)")


class Undisturbed:
    """The same training with the same number of ranks, on this machine alone."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory / name
        where = ("--run-dir", str(self._directory), "--nproc-per-node", "4", "--standalone")
        script = (str(EXAMPLES / name / "train.py"), "--steps", str(STEPS))
        self.process = subprocess.Popen([PYTHON, "-m", "hpc_elastic", "run", *where, *script])

    def result(self) -> dict[str, Any]:
        """Return what it has written."""
        assert 0 == self.process.wait(LIMIT_S)
        found: dict[str, Any] = json.loads((self._directory / "result.json").read_text())
        return found


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[list[Undisturbed]]:
    """Return a list of trainings that end with the test."""
    made: list[Undisturbed] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(LIMIT_S)


@pytest.mark.usefixtures(has.__name__)
def test_lightning_and_accelerate_are_preempted(
    cluster: Cluster, tmp_path: Path, undisturbed: list[Undisturbed]
) -> None:
    """Both on 2 nodes x 2 workers lose all nodes at once: all ranks save a step, and nothing is lost.

    Lightning takes its ranks from the agent, not from Slurm, and leaves the requeue to the agent.
    """
    names = ("lightning_trainer", "accelerate_loop")
    runs = [
        submit(cluster, (*TWO, *ONE_THREAD), example(cluster, name, *SLOW, steps=STEPS)) for name in names
    ]
    for run in runs:
        run.wait_checkpoint(20, LIMIT_S)
    high = cluster.submit_high(4)
    for run in runs:
        run.wait(lambda state: state.requeues == 1, "the requeue", LIMIT_S)
    undisturbed += [Undisturbed(tmp_path, name) for name in names]
    expected = [each.result() for each in undisturbed]
    cluster.as_root("scancel", high)
    for run, whole in zip(runs, expected, strict=True):
        state = run.wait_ending(LIMIT_S)
        assert state.ending is not None
        assert Decision.DONE is state.ending.decision
        drained = run.entries(Drained)
        assert [Cause.PREEMPTION] == [entry.cause for entry in drained]
        first, second = run.entries(RoundFormed)
        assert [2, 2] == [member.slots for member in second.members]
        assert first.checkpoint is None
        assert drained[0].step == second.checkpoint.step < STEPS
        assert whole == run.result()
        assert 1 == int(run.job()["Restarts"]), "somebody else has requeued it, too"
    printed = "".join(path.read_text() for path in (runs[0].directory / "logs").rglob("stdout.log"))
    assert 8 == printed.count("TorchElasticEnvironment")


@pytest.mark.usefixtures(has.__name__)
def test_hydras_launcher_is_preempted(cluster: Cluster) -> None:
    """A job of a sweep is requeued by its own agent, and goes on at the step where it stopped."""
    place = cluster.shared / "hydra"
    shutil.copytree(EXAMPLES / "hydra_submitit", place)
    place.chmod(0o777)
    slurm = (
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=low",
        "hydra.launcher.cpus_per_task=2",
    )
    words = ("--multirun", "lr=0.01", "steps=200", "step_time=0.05", "hydra.sweep.dir=sweep", *slurm)
    extra = {"HYDRA_FULL_ERROR": "1", "HOME": str(place)}
    argv = ["bash", "-c", 'exec "$@" > log 2>&1 &', "bash", PYTHON, "train.py", *words]
    done = cluster.run(USER, argv, env=extra, cwd=place)
    assert 0 == done.returncode, done.stderr

    def found() -> list[Path]:
        return [path for path in place.glob("sweep/.submitit/*/*_run") if (path / "journal").is_dir()]

    try:
        cluster.wait_for(lambda: bool(found()), LIMIT_S, "the run to begin")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(place / 'log').read_text()}") from None
    job_id = found()[0].name.removesuffix("_run")
    run = Run(cluster, found()[0], job_id)
    run.wait_checkpoint(20)
    high = cluster.submit_high(4)
    run.wait(lambda state: state.requeues == 1, "the requeue", LIMIT_S)
    cluster.wait_state(high, "RUNNING", 60)
    cluster.as_root("scancel", high)
    run.wait_checkpoint(200, LIMIT_S)
    cluster.wait_for(lambda: bool(list(place.glob("sweep/.submitit/*/*_result.pkl"))), LIMIT_S, "the value")
    first, second = run.entries(RoundFormed)
    assert first.checkpoint is None
    assert run.entries(Drained)[0].step == second.checkpoint.step
