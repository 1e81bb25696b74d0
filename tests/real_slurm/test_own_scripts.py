"""The job scripts in the documentation, on a real Slurm: what they start is preempted and goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.run_log import read_state
from tests.docs.pages import all_blocks
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import PYTHON, USER, elastic, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

STEPS = """
import os, time
from hpc_elastic import worker

def train():
    found = worker.latest_checkpoint()
    if found is not None:
        return f"from {found.step}"
    open("started." + os.environ["RANK"], "w").close()
    step = 0
    while not worker.should_stop():
        time.sleep(0.02)
        step += 1
        worker.tick(step)
    if os.environ["RANK"] == "0":
        worker.checkpoint_saved(step)
"""


def shown(language: str, part: str) -> str:
    """Return the code of the documentation that holds these words."""
    [code] = [block.code for block in all_blocks() if block.language == language and part in block.code]
    return code


def programs() -> dict[str, str]:
    """Return the programs that the job scripts start."""
    launch = shown("python", "# launch_nodes.py")
    body = launch[launch.index("def train") : launch.index("if __name__")]
    return {
        "train.py": f"{STEPS}\nprint(train(), flush=True)\n",
        "launch_nodes.py": launch.replace(body, f"{STEPS}\n\n"),
    }


def place_for(cluster: Cluster) -> Path:
    """Return a directory of the user with the programs, and the commands that the scripts name."""
    place = Path(tempfile.mkdtemp(dir=cluster.shared))
    for name, code in programs().items():
        (place / name).write_text(code)
    for name, words in (("python", PYTHON), ("hpc-elastic", f"{PYTHON} -m hpc_elastic")):
        (place / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (place / name).chmod(0o755)
    place.chmod(0o1777)
    return place


def sbatch(cluster: Cluster, place: Path, part: str) -> str:
    """Queue the job script of the documentation that holds these words; return the job id."""
    setting = f'export PYTHONPATH={REPOSITORY} PATH="{place}:$PATH"'
    options, _, commands = shown("bash", part).partition("\n")
    (place / "job.sh").write_text(f"#!/bin/bash\n{options}\n{setting}\n{commands}")
    shape = ["--partition=low", "--cpus-per-task=2", "--time=5", "--output=out"]
    done = cluster.run(USER, ["sbatch", "--parsable", *shape, "job.sh"], cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("part", "run"), [(" 3 train.py", "run"), (" launch_nodes.py", "run-{job}")], ids=["run", "launch"]
)
def test_a_preempted_script_is_requeued(cluster: Cluster, part: str, run: str) -> None:
    """The script ends within the grace time, so that Slurm alone would not start it again."""
    place = place_for(cluster)
    job = sbatch(cluster, place, part)
    cluster.wait_for((place / "started.0").exists, 30, "the workers")
    high = cluster.submit_high(4)
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    cluster.wait_state(job, "COMPLETED", 90)
    state = read_state(RunPaths(place / run.format(job=job)))
    log = (place / "out").read_text()
    assert 1 == state.requeues, log
    assert state.ending is not None, log
    assert Decision.DONE is state.ending.decision
    assert state.round is not None
    assert state.round.checkpoint is not None


def test_another_job_takes_a_stopped_run_up(cluster: Cluster) -> None:
    """After a stop on the user's wish the job is not requeued; the next one counts as the next submission."""
    place = place_for(cluster)
    job = sbatch(cluster, place, " 3 train.py")
    cluster.wait_for((place / "started.0").exists, 30, "the workers")
    assert elastic(cluster, "stop", str(place / "run")).returncode == 0
    cluster.wait_state(job, "COMPLETED")
    assert "stopped" in elastic(cluster, "status", str(place / "run")).stdout
    cluster.wait_state(sbatch(cluster, place, " 3 train.py"), "COMPLETED", 60)
    state = read_state(RunPaths(place / "run"))
    assert 1 == state.epoch.submission
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
