"""Bad nodes on a real Slurm: what fails its probe stays out, what was lost is left out afterwards."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_elastic.record.journal import NodeTaken, NodeUnfit, RoundFormed
from hpc_elastic.store.node_ledger import place_for
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import (
    AGENT_PROCESS,
    PYTHON,
    SLOW,
    THREE,
    Run,
    elastic,
    installed_for_users,
    nodes_of,
    plain,
    submit,
)

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


@pytest.fixture
def ledger(cluster: Cluster) -> Path:
    """Return the ledger of the runs below the shared directory; it is empty."""
    return Path(place_for(str(cluster.shared / "run")))


def nodes(cluster: Cluster, *words: str) -> str:
    """Return what `hpc-elastic nodes` prints for the runs below the shared directory."""
    done = elastic(cluster, "nodes", *words, "--project", str(cluster.shared))
    assert done.returncode == 0, done.stderr
    return done.stdout


def excluded(run: Run) -> str:
    """Return the nodes that a job is to do without, as Slurm says."""
    return run.job().get("ExcNodeList", "")


def test_a_node_without_its_gpus_stays_out_and_the_run_goes_on(cluster: Cluster, ledger: Path) -> None:
    """Slurm promises 2 GPUs, a node has 1: the others form the round without waiting for it."""
    devices = cluster.directory / "dev"
    empty = cluster.shared / "one-gpu"
    empty.mkdir()
    (empty / "gpu0").touch()
    cluster.execute("node2", "mount", "--bind", str(empty), str(devices))
    try:
        flags = (*THREE, "--nodes", "2:3", "--nodelist", "node[1-3]", "--gpu-devices", f"{devices}/gpu*")
        run = submit(cluster, flags, plain(cluster))
        run.wait_ending()
        run.wait_gone()
    finally:
        cluster.execute("node2", "umount", str(devices))
    (unfit,) = run.entries(NodeUnfit)
    assert "node2" == unfit.node
    assert ["node1", "node3"] == nodes_of(run.entries(RoundFormed)[0])
    assert re.search(r"node2\] node2 is unfit and stays out: GPUs: 1 device file .*2 needed", run.log())
    assert "unfit" in elastic(cluster, "status", str(run.directory)).stdout
    assert re.search(r"^node2 +1\.00 +suspect +unfit ", nodes(cluster), re.MULTILINE)


def test_a_node_that_fails_the_users_check_is_replaced(cluster: Cluster, ledger: Path) -> None:
    """Of a run of fixed size the job is requeued without the node, by the user's own word for why."""
    check = 'test "$(hostname)" != node2 || { echo "the link is slow"; false; }'
    run = submit(cluster, (*THREE, "--health-check", "full", "--health-command", check), plain(cluster))
    run.wait(lambda state: state.requeues == 1, "the requeue", 40)
    cluster.wait_for(lambda: excluded(run) == "node2", 20, "the job to do without node2")
    run.wait_ending()
    run.wait_gone()
    assert "the link is slow" in run.entries(NodeUnfit)[0].reason
    assert ["node1", "node3", "node4"] == nodes_of(run.entries(RoundFormed)[0])
    assert "left out: node2 (health command ended with 1 (0 is needed): the link is slow" in run.log()


def test_a_lost_node_is_left_out_until_it_is_forgiven(cluster: Cluster, ledger: Path) -> None:
    """A node whose agent died, which Slurm takes for sound, is left out of the requeued and the next job."""
    run = submit(cluster, THREE, plain(cluster, *SLOW, steps=120))
    run.wait_checkpoint(20)
    lost = nodes_of(run.entries(RoundFormed)[0])[1]
    cluster.execute(lost, "pkill", "-KILL", "-f", AGENT_PROCESS)
    run.wait(lambda state: state.requeues == 1, "the requeue", 60)
    cluster.wait_for(lambda: excluded(run) == lost, 20, "the job to do without the lost node")
    run.wait_ending(90)
    run.wait_gone()
    assert lost not in nodes_of(run.entries(RoundFormed)[-1])
    assert [event.split(".")[1:3] for event in (path.name for path in ledger.iterdir())] == [
        [lost, "node_loss"]
    ]
    listed = json.loads(nodes(cluster, "--json"))
    assert [(lost, "suspect")] == [(one["node"], one["state"]) for one in listed["nodes"]]
    asked = elastic(cluster, "submit", "--dry-run", *where(cluster, "again"), *THREE, "--", *plain(cluster))
    assert f"left out: {lost} (node_loss: vanished in round 1" in asked.stderr
    assert f"--exclude={lost}" in asked.stdout
    assert lost == excluded(submit(cluster, THREE, plain(cluster)))
    assert f"{lost} counts as sound from now on" in nodes(cluster, "forgive", lost)
    asked = elastic(cluster, "submit", "--dry-run", *where(cluster, "again"), *THREE, "--", *plain(cluster))
    assert "--exclude" not in asked.stdout


FAILS_ON_NODE_2 = """
import os, sys, time
place, number = sys.argv[1], os.environ["HPC_ELASTIC_ROUND"]
if os.environ["HPC_ELASTIC_NODE"] == "node2":
    open(f"{place}/failed.{number}", "w").close()
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
if os.environ["WORLD_SIZE"] == "6" or sum(name.startswith("failed.") for name in os.listdir(place)) < 3:
    time.sleep(600)
"""


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_node_on_which_the_same_failure_always_comes_is_left_out_first(
    cluster: Cluster, ledger: Path, mode: str
) -> None:
    """The other two end the run; node2 is suspect afterwards, and the next job does without it."""
    script, place = cluster.shared / f"fails-{mode}.py", cluster.shared / f"failed-{mode}"
    script.write_text(FAILS_ON_NODE_2)
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    shape = (
        "--gpus-per-node",
        "2",
        "--exclusive",
        "--exclude",
        "node4",
        "--time",
        "10m",
        "--partition",
        "low",
    )
    flags = (*shape, "--mode", mode, "--nodes", "2:3", "--last-call-timeout", "5")
    run = submit(cluster, flags, [PYTHON, str(script), str(place)])
    run.wait_ending(120)
    run.wait_gone()
    (unfit,) = run.entries(NodeUnfit)
    assert ("node2", True) == (unfit.node, unfit.by_failures)
    assert "the same failure 3 times in a row, always on node2" in unfit.reason
    assert ["node1", "node3"] == nodes_of(run.entries(RoundFormed)[-1])
    assert re.search(r"^node2 +1\.00 +suspect +unfit ", nodes(cluster), re.MULTILINE)
    asked = elastic(cluster, "submit", "--dry-run", *where(cluster, "again"), *THREE, "--", *plain(cluster))
    assert "--exclude=node2" in asked.stdout


@pytest.mark.both_trackers
@pytest.mark.parametrize("how", ["down", "shrunk"])
def test_nodes_that_are_taken_away_have_not_failed(cluster: Cluster, ledger: Path, how: str) -> None:
    """An administrator sets one down, the owner gives one up: nothing is held against it."""
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, *SLOW, steps=120))
    run.wait_checkpoint(20)
    *kept, taken = nodes_of(run.entries(RoundFormed)[0])
    try:
        if how == "down":
            cluster.as_root("scontrol", "update", f"nodename={taken}", "state=down", "reason=repair")
        else:
            names = ",".join(kept)
            update = ("scontrol", "update", f"JobId={run.job_id}", f"NodeList={names}")
            assert cluster.run("alice", update).returncode == 0
        run.wait_ending(90)
        run.wait_gone()
    finally:
        if how == "down":
            cluster.as_root("scontrol", "update", f"nodename={taken}", "state=resume")
    assert kept == nodes_of(run.entries(RoundFormed)[-1])
    assert [taken] == [entry.node for entry in run.entries(NodeTaken)], run.log()
    assert not ledger.exists() or not [*ledger.iterdir()]
    assert re.search(f"nothing is held against {taken}: (it was set down in Slurm|Slurm took it)", run.log())


def where(cluster: Cluster, name: str) -> tuple[str, ...]:
    """Return the options that name a run directory."""
    return ("--run-dir", str(cluster.shared / name), "--allow-local-run-dir", "--cpus-per-task", "2")
