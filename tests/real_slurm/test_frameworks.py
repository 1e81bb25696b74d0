"""Lightning, accelerate and Hydra on a real Slurm: preempted, requeued, and with the right result."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.record.journal import Cause, Decision, Drained, RoundFormed
from tests.frameworks import forked
from tests.frameworks.local_runs import GATE, STEP_TIME_S
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import EXAMPLES, PYTHON, USER, Run, example, installed_for_users, submit

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures(installed_for_users.__name__)]

TWO = ("--nodes", "2", "--workers-per-node", "2", "--time", "10m", "--partition", "low")
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
STEPS = 120
SAVE_EVERY = 5
LIMIT_S = 120.0


@pytest.fixture
def has() -> None:
    """Skip where the interpreter of the jobs lacks the frameworks."""
    names = ("lightning", "accelerate", "hydra")
    find = f"from importlib.util import find_spec; print(all(map(find_spec, {names})))"
    found = subprocess.run([PYTHON, "-c", find], capture_output=True, text=True, check=True).stdout
    if found.strip() != "True":
        pytest.skip(f"{PYTHON} has no Lightning, accelerate or Hydra (extra: frameworks)")


def undisturbed(place: Path, name: str, library: str) -> dict[str, Any]:
    """Return the result of the same training with the same number of ranks, on this machine alone."""
    script, words = EXAMPLES / name / "train.py", ("--steps", str(STEPS))
    with forked.training(place / name, 4, library, script, *words, python=PYTHON) as result:
        return result()


@pytest.fixture
def slow(cluster: Cluster) -> Path:
    """Return a file while which is there no training is over before the other has a checkpoint."""
    site = cluster.shared / "slow"
    site.mkdir()
    (site / "sitecustomize.py").write_text(GATE)
    (site / "gate").touch()
    return site / "gate"


@pytest.mark.usefixtures(has.__name__)
def test_lightning_and_accelerate_are_preempted(cluster: Cluster, tmp_path: Path, slow: Path) -> None:
    """Both on 2 nodes x 2 workers lose all nodes at once: all ranks save a step, and nothing is lost.

    Lightning takes its ranks from the agent, not from Slurm, and leaves the requeue to the agent.
    """
    names = {"lightning_trainer": "lightning", "accelerate_loop": "accelerate"}
    gated = ("--env", f"PYTHONPATH={slow.parent}", "--env", f"SLOW_WHILE={slow}")
    options = ("--step-time", str(STEP_TIME_S), "--save-every", str(SAVE_EVERY))
    runs = [
        submit(cluster, (*TWO, *ONE_THREAD, *gated), example(cluster, name, *options, steps=STEPS))
        for name in names
    ]
    for run in runs:
        run.wait_checkpoint(SAVE_EVERY, LIMIT_S)
    high = cluster.submit_high(4)
    for run in runs:
        run.wait(lambda state: state.requeues == 1, "the requeue", LIMIT_S)
    slow.unlink()
    expected = [undisturbed(tmp_path, name, library) for name, library in names.items()]
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
    """A sweep's job on 2 nodes x 2 workers is requeued by its own agent, and goes on where it stopped."""
    place = cluster.shared / "hydra"
    shutil.copytree(EXAMPLES / "hydra_submitit", place)
    place.chmod(0o1777)
    slurm = (
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=low",
        "hydra.launcher.nodes=2",
        "hydra.launcher.gpus_per_node=2",
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
    value = f"sweep/.submitit/{job_id}/{job_id}_0_result.pkl"
    cluster.wait_for((place / value).exists, LIMIT_S, "the value")
    first, second = run.entries(RoundFormed)
    assert first.checkpoint is None
    assert [2, 2] == [member.slots for member in second.members]
    assert run.entries(Drained)[0].step == second.checkpoint.step < 200
    assert 1 == int(run.job()["Restarts"]), "somebody else has requeued it, too"
    returned = f"import pickle; print(pickle.load(open({value!r}, 'rb'))[1].return_value)"
    said = cluster.run(USER, [PYTHON, "-c", returned], cwd=place)
    assert str(uninterrupted_x()) == said.stdout.strip(), said.stderr


def uninterrupted_x() -> float:
    """Return what the example returns, computed here."""
    x = 0.0
    for _ in range(200):
        x -= 0.01 * 2 * (x - 3)
    return abs(x - 3)
