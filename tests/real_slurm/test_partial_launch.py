"""Steps in a user's own script that go wrong: a node without an agent, a failure, agents that are killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from hpc_elastic.slurm.run_jobs.signs_of_life import SILENT_S
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import PYTHON, USER, elastic, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

AGENT = f"export PYTHONPATH={REPOSITORY}; exec {PYTHON} -m hpc_elastic run --run-dir run --nproc-per-node 1"
EXIT_3 = f"{PYTHON} -c 'raise SystemExit(3)'"


def start(cluster: Cluster, nodes: int, task: str, after: str = "true") -> tuple[Path, str]:
    """Start a step whose tasks are a shell line each; return its directory and the job."""
    place = Path(tempfile.mkdtemp(dir=cluster.shared))
    place.chmod(0o1777)
    (place / "task.sh").write_text(f"{task}\n")
    srun = f"srun -N{nodes} -n{nodes} --ntasks-per-node=1 -c2 --kill-on-bad-exit=0 sh task.sh"
    options = (f"--nodes={nodes}", "--cpus-per-task=2", f"--chdir={place}", "--output=out", "--time=5")
    done = cluster.run(USER, ["sbatch", "--parsable", *options, f"--wrap={srun}; {after}"], cwd=place)
    assert done.returncode == 0, done.stderr
    return place, done.stdout.strip()


def test_what_a_users_own_script_is_told(cluster: Cluster) -> None:
    """Who never came, by name; a root cause once for all nodes; and that killed agents are silent."""
    silent, silent_job = start(cluster, 1, f"{AGENT} --no-python sleep 600", "sleep 600")
    run = RunPaths(silent / "run")
    cluster.wait_for(lambda: (silent / "run").exists() and read_state(run).running is not None, 60, "workers")
    cluster.execute(
        cluster.job(silent_job)["BatchHost"], "pkill", "-KILL", "-f", r"python[^ ]* (-I )?-m hpc_elastic run"
    )
    killed_at = SystemClock().monotonic()
    partial, partial_job = start(
        cluster,
        3,
        f"[ $SLURM_PROCID != 2 ] || exec sleep 20\n{AGENT} --nnodes 3 --join-timeout 5 --no-python true",
    )
    cluster.wait_for(lambda: "RUNNING" == cluster.job(partial_job).get("JobState"), 60, "the job to start")
    lost = cluster.job(partial_job)["NodeList"]
    failing, failing_job = start(cluster, 2, f"{AGENT} --nnodes 2 --max-restarts 0 --no-python {EXIT_3}")
    cluster.wait_state(failing_job, "COMPLETED", 60)
    said = (failing / "out").read_text()
    assert 1 == said.count("Root Cause"), said
    assert 2 == said.count("leaving: a worker failed"), said
    cluster.wait_for(lambda: "missing" in (partial / "out").read_text(), 60, "the join timeout")
    assert "node3" in (partial / "out").read_text(), lost
    cluster.wait_for(
        lambda: SystemClock().monotonic() - killed_at > SILENT_S, SILENT_S + 30, "the agents to be silent"
    )
    shown = elastic(cluster, "status", str(silent / "run")).stdout
    assert "no agent has given a sign of life for" in shown, shown
    assert f"Slurm says: job {silent_job} RUNNING" in shown
    stopped = elastic(cluster, "stop", str(silent / "run"))
    assert (0, True) == (stopped.returncode, "no agent has given a sign of life" in stopped.stdout), stopped
    cluster.wait_state(silent_job, "CANCELLED", 60)
