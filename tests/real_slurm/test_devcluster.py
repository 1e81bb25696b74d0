"""The development cluster is what it says: separate nodes, real faults, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.real_slurm.cluster import Cluster, devcluster
from tests.real_slurm.conftest import StartCluster

TRY_PORT = "import socket, sys; socket.create_connection((sys.argv[1], 6818), timeout=1)"


def in_namespace(pid_namespace: str) -> list[int]:
    """Processes of this machine that live in a PID namespace such as `pid:[4026532200]`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns" / "pid") == pid_namespace:
                found.append(int(entry.name))
        except OSError:  # gone meanwhile, or a zombie
            continue
    return found


def reaches(cluster: Cluster, source: str, target: str) -> bool:
    """Whether a process on `source` can connect to slurmd on `target`."""
    done = devcluster(
        "exec", "--dir", str(cluster.directory), source, "/usr/bin/python3", "-c", TRY_PORT, target
    )
    return done.returncode == 0


def test_all_nodes_are_idle_after_start(cluster: Cluster) -> None:
    """A started cluster can give every node to a job at once."""
    assert ["idle"] * 4 == [cluster.node_state(name) for name in cluster.node_names]


def test_step_sees_its_gpus(cluster: Cluster) -> None:
    """Slurm tells a step of an unprivileged user which GPUs it has."""
    step = ["srun", "--nodes=4", "--gpus-per-node=2", "printenv", "USER", "CUDA_VISIBLE_DEVICES"]
    done = cluster.run("alice", step)
    assert sorted(["alice", "0,1"] * 4) == sorted(done.stdout.split())


def test_nodes_are_separate(cluster: Cluster) -> None:
    """Every node has its own name, network, processes and /dev/shm."""
    kinds = ("net", "uts", "pid", "mnt")
    links = [f"/proc/self/ns/{kind}" for kind in kinds]
    seen = [cluster.execute(name, "readlink", *links).split() for name in cluster.node_names]
    here = [os.readlink(link) for link in links]
    for column in zip(*seen, here, strict=True):
        assert len(set(column)) == 5
    assert cluster.node_names == [cluster.execute(name, "hostname").strip() for name in cluster.node_names]
    cluster.execute("node1", "touch", "/dev/shm/mark")
    assert "mark" not in cluster.execute("node2", "ls", "/dev/shm")


def test_steps_are_tracked_as_asked(cluster: Cluster) -> None:
    """The tracker in force is the one of the command line."""
    setting = cluster.as_root("scontrol", "show", "config")
    assert f"proctrack/{cluster.tracker.removesuffix('2')}" in setting


def test_steps_have_cgroups_of_version_2(start_cluster: StartCluster) -> None:
    """Each node has a tree of its own, also on a machine that has version 1 as well."""
    modern = start_cluster(nodes=2, tracker="cgroup2")
    own = modern.run("alice", ["srun", "-N2", "cat", "/proc/self/cgroup"]).stdout.splitlines()
    found = {line for line in own if line.startswith("0::/system.slice/")}
    assert {"node1_slurmstepd.scope", "node2_slurmstepd.scope"} == {line.split("/")[2] for line in found}


def test_crashed_node_is_dead_and_its_job_requeued(cluster: Cluster) -> None:
    """Power loss ends every process of the node; Slurm notices later and requeues the job."""
    job_id = cluster.submit("alice", "--nodes=2", "--nodelist=node[3-4]", wrap="srun sleep 600")
    cluster.wait_state(job_id, "RUNNING")
    namespace = cluster.execute("node4", "readlink", "/proc/self/ns/pid").strip()
    cluster.wait_for(lambda: len(in_namespace(namespace)) > 2, 10, "the step to start on node4")
    cluster.crash("node4")
    assert [] == in_namespace(namespace)
    assert not reaches(cluster, "node1", "node4")
    cluster.wait_for(lambda: cluster.is_missed("node4"), 60, "Slurm to give node4 up")
    cluster.wait_for(lambda: cluster.job(job_id).get("Restarts") == "1", 60, "the job to be requeued")
    cluster.boot("node4")
    cluster.wait_for(lambda: not cluster.is_missed("node4"), 30, "node4 to be back")


def test_cut_node_runs_on_alone(cluster: Cluster) -> None:
    """A partition stops the network and nothing else, until it is healed."""
    cluster.cut("node2")
    assert not reaches(cluster, "node1", "node2")
    assert not reaches(cluster, "node2", "node1")
    cluster.execute("node2", "touch", str(cluster.shared / "written-by-node2"))
    assert (cluster.shared / "written-by-node2").exists()
    cluster.wait_for(lambda: "not_responding" in cluster.node_state("node2"), 30, "Slurm to miss node2")
    cluster.heal("node2")
    assert reaches(cluster, "node1", "node2")
    cluster.wait_idle()


def test_step_outlives_slurmd(cluster: Cluster) -> None:
    """Killing slurmd leaves the job alone; started again, it knows the job."""
    job_id = cluster.submit("alice", "--nodes=1", "--nodelist=node1", wrap="sleep 600")
    cluster.wait_state(job_id, "RUNNING")
    cluster.command("kill-slurmd", "node1")
    assert not reaches(cluster, "node2", "node1")
    cluster.command("start-slurmd", "node1")
    cluster.wait_for(lambda: reaches(cluster, "node2", "node1"), 10, "slurmd to listen")
    assert "RUNNING" == cluster.job(job_id)["JobState"]


def test_preemption_requeues(cluster: Cluster) -> None:
    """A job in `high` takes the nodes of one in `low0`, which is requeued and later runs again."""
    victim = cluster.submit("alice", "--partition=low0", "--nodes=4", "--requeue", wrap="srun sleep 600")
    cluster.wait_state(victim, "RUNNING")
    winner = cluster.submit_high(4)
    cluster.wait_state(winner, "RUNNING")
    assert ("PENDING", "1") == (cluster.job(victim)["JobState"], cluster.job(victim)["Restarts"])
    cluster.run("bob", ["scancel", winner])
    cluster.wait_state(victim, "RUNNING", timeout=60)


def test_nothing_is_left_after_purge(start_cluster: StartCluster, session_cluster: Cluster) -> None:
    """A second cluster runs beside the first and leaves no process, namespace, interface or file."""
    second = start_cluster(nodes=1)
    state = json.loads((second.directory / "devcluster.json").read_text())
    tag = f"dc{state['slot']:04x}"
    namespaces = [second.execute(host, "readlink", "/proc/self/ns/pid").strip() for host in ("ctl", "node1")]
    assert tag in os.listdir("/sys/class/net")
    second.purge()
    assert [[], []] == [in_namespace(namespace) for namespace in namespaces]
    assert tag not in os.listdir("/sys/class/net")
    assert tag not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not second.directory.exists()
    assert "idle" == session_cluster.node_state("node1")


def test_accounting_knows_finished_jobs(start_cluster: StartCluster) -> None:
    """With --accounting, sacct tells a user how a job ended."""
    if devcluster("install", "--accounting", timeout_s=900).returncode != 0:
        pytest.skip("the packages for accounting cannot be installed")
    books = start_cluster(nodes=1, options=("--accounting",))
    job_id = books.submit("alice", wrap="exit 3")
    query = ["sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State,ExitCode"]
    books.wait_for(lambda: books.run("alice", query).stdout == "FAILED|3:0\n", 30, "sacct to know the job")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["crash", "node9"], "this cluster has node1"),
        (["boot", "node1"], "is running"),
        (["start"], "already running"),
        (["start", "--nodes", "0"], "--nodes must be between"),
    ],
    ids=["unknown node", "boot of a running node", "second start", "no nodes"],
)
def test_wrong_usage_is_one_sentence(cluster: Cluster, words: list[str], hint: str) -> None:
    """A command that makes no sense says so in one line and changes nothing."""
    done = devcluster(words[0], "--dir", str(cluster.directory), *words[1:])
    assert (1, "") == (done.returncode, done.stdout)
    assert hint in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_slurms_own_authentication(cluster: Cluster, start_cluster: StartCluster) -> None:
    """With it users submit, and requeue what is theirs; an older Slurm says that it has no such plugin."""
    own = ("--auth", "slurm")
    if cluster.fact("own auth") == "absent":
        with pytest.raises(RuntimeError, match="--auth slurm: this Slurm has no such plugin"):
            start_cluster(nodes=1, options=own)
        return
    site = start_cluster(nodes=1, options=own)
    assert "AuthType=auth/slurm\n" in site.slurm_conf.read_text()
    job = site.submit("alice", "--requeue", wrap="srun sleep 600")
    site.wait_state(job, "RUNNING")
    assert 0 != site.run("bob", ["scontrol", "requeue", job]).returncode
    assert 0 == site.run("alice", ["scontrol", "requeue", job]).returncode
    site.wait_for(lambda: site.job(job)["Restarts"] == "1", 60, "the requeue")
