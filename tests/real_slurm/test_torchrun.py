"""A user's own job script with torchrun: kept, over our rendezvous, and adopted; both are preempted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, RoundFormed
from hpc_elastic.record.run_log import read_records, read_state
from tests.frameworks import forked
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import EXAMPLES, PYTHON, USER, elastic, installed_for_users

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures(installed_for_users.__name__)]

EXAMPLE = EXAMPLES / "torchrun"
STEPS = 60
SIZES = f"--steps {STEPS} --save-every 2"
SLOW_AT_FIRST = "--step-time $((SLURM_RESTART_COUNT ? 0 : 2))"  # cannot be over before the preemption
LIMIT_S = 120.0
C10D = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID \\
    --rdzv-backend=c10d --rdzv-endpoint=$head:29500 \\
    train.py {SIZES} {SLOW_AT_FIRST} --out out
"""


class Job:
    """A job script of the user in a directory of its own."""

    def __init__(self, cluster: Cluster, place: Path, runs: str = "") -> None:
        self._cluster = cluster
        self.place = place
        self._runs = place / runs
        self.id = ""
        self.run = place
        place.mkdir()
        shutil.copy(EXAMPLE / "train.py", place)
        for name, module in (("torchrun", "torch.distributed.run"), ("hpc-elastic", "hpc_elastic")):
            (place / name).write_text(f'#!/bin/sh\nexec {PYTHON} -m {module} "$@"\n')
            (place / name).chmod(0o755)
        place.chmod(0o1777)

    def submit(self) -> None:
        """Queue it as its user would."""
        path = f"{self.place}:{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
        mine = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        shape = ("--partition=low", "--cpus-per-task=2", "--time=10", "--output=log")
        argv = ["sbatch", "--parsable", *shape, "train.sbatch"]
        done = self._cluster.run(USER, argv, env=mine, cwd=self.place)
        assert 0 == done.returncode, done.stderr
        self.id = done.stdout.strip()
        self.run = self._runs / f"run-{self.id}"

    def wait(self, state: str, restarts: int) -> None:
        """Wait until the job is in a state, after so many requeues."""

        def holds() -> bool:
            found = self._cluster.job(self.id)
            return (state, str(restarts)) == (found.get("JobState"), found.get("Restarts"))

        try:
            self._cluster.wait_for(
                holds, LIMIT_S, f"{self.place.name} to be {state} after {restarts} requeues"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def log(self) -> str:
        """Return what the job has printed, over all its starts."""
        return (self.place / "log").read_text()

    def first_steps(self) -> set[int]:
        """Return at which steps its workers have started."""
        logs = (path.read_text() for path in [self.place / "log", *self.run.glob("logs/**/stdout.log")])
        return {
            int(line.split()[-1]) for log in logs for line in log.splitlines() if " start at step " in line
        }


@pytest.fixture
def jobs(cluster: Cluster) -> Iterator[dict[str, Job]]:
    """The job script of the example as it stands, and one that was adopted."""
    found = {
        name: Job(cluster, cluster.shared / f"torchrun-{name}", runs)
        for name, runs in (("kept", ""), ("adopted", RUNS_FOLDER))
    }
    script = (EXAMPLE / "train.sbatch").read_text()
    assert "--steps 600 --step-time 0.1 " in script
    shorter = script.replace("--steps 600 --step-time 0.1 ", f"{SIZES} {SLOW_AT_FIRST} ")
    (found["kept"].place / "train.sbatch").write_text(shorter)
    (found["adopted"].place / "train.sbatch").write_text(C10D)
    shutil.chown(found["adopted"].place / "train.sbatch", USER, USER)
    yield found
    for job in found.values():
        shutil.rmtree(job.place)


def undisturbed(place: Path) -> dict[str, Any]:
    """Return the result of the same training with as many ranks, on this machine alone."""
    words = (*SIZES.split(), "--out", ".")
    with forked.training(place, 4, "torch", EXAMPLE / "train.py", *words, python=PYTHON) as result:
        return result()


def adopt(cluster: Cluster, script: Path) -> None:
    """Have a job script changed; look at what is told about it."""
    before = script.read_text()
    done = elastic(cluster, "adopt", "--write", str(script))
    assert 0 == done.returncode, done.stderr
    after = script.read_text()
    assert before == Path(f"{script}.orig").read_text()
    removed = [line[1:] for line in done.stdout.splitlines() if line.startswith("-") and line[1] != "-"]
    assert ["srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID \\"] == removed
    added = [line[1:] for line in done.stdout.splitlines() if line.startswith("+") and line[1] != "+"]
    assert set(after.splitlines()) - set(before.splitlines()) == set(added)
    for told in ("#SBATCH --requeue", "instead of torchrun", "hpc-elastic finish at the end"):
        assert told in done.stderr


def test_a_script_with_torchrun_is_preempted(cluster: Cluster, jobs: dict[str, Job], tmp_path: Path) -> None:
    """On 2 nodes with 2 workers: requeued, met again in one directory, and with the right result.

    The old members are known to be gone by the job's restart count: the second start waits for nobody.
    """
    adopt(cluster, jobs["adopted"].place / "train.sbatch")
    for job in jobs.values():
        job.submit()
    outs = [jobs["kept"].run / "out", jobs["adopted"].place / "out"]
    cluster.wait_for(lambda: all((out / "newest.pt").exists() for out in outs), LIMIT_S, "checkpoints")
    high = cluster.submit_high(4)
    cluster.wait_state(high, "RUNNING", LIMIT_S)
    expected = undisturbed(tmp_path / "undisturbed")
    cluster.as_root("scancel", high)
    for job, out in zip(jobs.values(), outs, strict=True):
        job.wait("COMPLETED", 1)
        assert expected == json.loads((out / "result.json").read_text()), job.log()
        first, second = sorted(job.first_steps())
        assert 0 == first < second < STEPS, "nothing was saved, or nothing was disturbed"
        records = [record.entry for record in read_records(RunPaths(job.run))]
        assert "None" == cluster.job(job.id)["PreemptTime"], "a failure now would be taken for a preemption"
        rounds = [entry for entry in records if isinstance(entry, RoundFormed)]
        assert [(0, 2), (1, 2)] == [(entry.epoch.restart, len(entry.members)) for entry in rounds]
    ending = read_state(RunPaths(jobs["adopted"].run)).ending
    assert ending is not None
    assert Decision.DONE is ending.decision
    for command in ("status", "logs"):  # the run is known by its job
        words = [PYTHON, "-m", "hpc_elastic", command, jobs["adopted"].id]
        done = cluster.run(USER, words, cwd=jobs["adopted"].place)
        assert 0 == done.returncode, done.stderr
        assert "all workers succeeded" in done.stdout
