"""How Slurm shapes, groups, shrinks and describes jobs. No code of ours runs here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.probes import LASTING, Probe, Shape, running

TELL = """
import json, os, sys
names = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "CUDA"))}
names["CPUS"] = len(os.sched_getaffinity(0))
open(f"{sys.argv[1]}.{os.environ['SLURM_PROCID']}", "w").write(json.dumps(names))
"""
ENVIRONMENTS = {  # name: (options of sbatch, options of srun)
    "plain": (("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=2"), "-N2 -n2 --ntasks-per-node=1"),
    "gres": (("--nodes=1", "--gres=gpu:2"), "-N1 -n1"),
    "gpus": (("--nodes=2", "--gpus=4", "--ntasks=2"), "-N2 -n2"),
    "two tasks": (("--nodes=1", "--ntasks=2", "--gpus-per-node=2"), "-N1 -n2"),
    "gpu per task": (("--nodes=1", "--ntasks=2", "--gpus-per-task=1"), "-N1 -n2 --gpus-per-task=1"),
    "no gpu": (("--nodes=1",), "-N1 -n1"),
    "ignored tasks per node": (("--nodes=2", "--ntasks-per-node=2"), "--ntasks-per-node=1"),
}


@pytest.fixture(scope="module")
def environments(session_cluster: Cluster) -> dict[str, list[dict[str, str]]]:
    """The environment of each task of jobs with different requests."""
    place = session_cluster.shared / "environments"
    place.mkdir(exist_ok=True)
    place.chmod(0o1777)
    (place / "tell.py").write_text(TELL)
    ids = [
        session_cluster.submit(
            "alice",
            "--partition=low",
            *options,
            wrap=f"srun {srun} /usr/bin/python3 -IS {place}/tell.py '{place}/{name}'",
        )
        for name, (options, srun) in ENVIRONMENTS.items()
    ]
    for job_id in ids:
        session_cluster.wait_state(job_id, "COMPLETED", 60)
    return {name: _read(place, name) for name in ENVIRONMENTS}


def _read(place: Path, name: str) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(place.glob(f"{name}.*"))]


def test_an_agent_is_told_who_and_where_it_is(
    session_cluster: Cluster, environments: dict[str, list[dict[str, str]]]
) -> None:
    """What `slurm.environment` reads is there on every node; what 22.05 lacks is looked up elsewhere."""
    first, second = environments["plain"]
    for name in (
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
        *("SLURM_CLUSTER_NAME", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_JOB_PARTITION", "SLURM_SUBMIT_DIR"),
    ):
        assert first[name] == second[name]
    assert ["0", "1"] == [task["SLURM_NODEID"] for task in (first, second)]
    assert ["0", "1"] == [task["SLURM_PROCID"] for task in (first, second)]
    assert 2 == len({task["SLURMD_NODENAME"] for task in (first, second)})
    assert ("2", "2", "1(x2)") == (
        first["SLURM_JOB_NUM_NODES"],
        first["SLURM_STEP_NUM_NODES"],
        first["SLURM_TASKS_PER_NODE"],
    )
    assert "SLURM_RESTART_COUNT" not in first  # from the second start on only
    assert 2 == int(first["SLURM_CPUS_ON_NODE"])
    assert session_cluster.fact("tres per task") == first.get("SLURM_TRES_PER_TASK", "")
    times = {"SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"} & first.keys()
    assert session_cluster.fact("job times") == ("set" if len(times) == 2 else "absent")


@pytest.mark.parametrize("name", ["plain", "gres", "gpus", "two tasks"])
def test_gpus_of_a_node_are_told(
    environments: dict[str, list[dict[str, str]]], name: str, session_cluster: Cluster
) -> None:
    """However they were asked for, every task sees all GPUs that the job has on its node."""
    gpus = session_cluster.fact("node gpus")
    for task in environments[name]:
        assert ("0,1", gpus) == (task["CUDA_VISIBLE_DEVICES"], task.get("SLURM_GPUS_ON_NODE", ""))


def test_gpus_per_task_are_split(
    environments: dict[str, list[dict[str, str]]], session_cluster: Cluster
) -> None:
    """With --gpus-per-task each task is told of one device; without a request of none."""
    told = 2 * [int(session_cluster.fact("gpus per task"))]
    assert told == [len(task["CUDA_VISIBLE_DEVICES"].split(",")) for task in environments["gpu per task"]]
    assert "CUDA_VISIBLE_DEVICES" not in environments["no gpu"][0]
    assert "1" == environments["no gpu"][0]["SLURM_CPUS_ON_NODE"]  # hence -c or --exclusive


def test_tasks_per_node_of_srun_do_not_override_the_job(
    environments: dict[str, list[dict[str, str]]],
) -> None:
    """With SLURM_NTASKS inherited, --ntasks-per-node=1 alone starts 4 tasks: so -N and -n are given."""
    assert 4 == len(environments["ignored tasks per node"])


def test_a_range_of_nodes_gives_what_is_free(cluster: Cluster) -> None:
    """The most that is free now, in Slurm 22.05 the least with --ntasks-per-node; too many never start."""
    sizes = {"--exclusive": "4", "--ntasks-per-node=1": cluster.fact("node range")}
    for option, nodes in sizes.items():
        job_id = cluster.submit("alice", "--partition=high", "--nodes=1-4", option, wrap="sleep 600")
        cluster.wait_state(job_id, "RUNNING")
        assert nodes == cluster.job(job_id)["NumNodes"]
        cluster.as_root("scancel", job_id)
        cluster.wait_idle()
    if cluster.fact("too many nodes") == "refused":
        asked = cluster.run("alice", ["sbatch", "--nodes=5-8", "--wrap=true"])
        assert "Requested node configuration is not available" in asked.stderr
        return
    job_id = cluster.submit("alice", "--nodes=5-8", wrap="true")
    cluster.wait_for(lambda: cluster.job(job_id)["Reason"] == "PartitionNodeLimit", 30, "the reason to wait")
    assert "PENDING" == cluster.job(job_id)["JobState"]


@pytest.fixture
def job(session_cluster: Cluster) -> Iterator[Probe]:
    """A job on three nodes."""
    options = ("--partition=low", "--requeue", "--no-kill", "--nodelist=node[1-3]")
    shape = Shape(options, nodes=3, srun=(*LASTING, "--no-kill"))
    with running(session_cluster, {"job": shape}) as probes:
        yield probes["job"]


def test_a_job_shrinks_but_does_not_grow(job: Probe) -> None:
    """Nodes can be given back under a running step, not the batch host, and never be had again."""
    cluster = job.cluster

    def update(setting: str) -> int:
        return cluster.run("alice", ["scontrol", "update", f"jobid={job.job_id}", setting]).returncode

    assert 0 != update("NodeList=node[2-3]")
    assert 0 == update("NodeList=node[1,3]")
    job.wait_dead("agent", "node2")
    assert "TERM" not in job.heard("agent", "node2")
    assert (["node1", "node3"], []) == (job.nodes, job.heard("agent", "node1"))
    assert 0 != update("NumNodes=3")


def test_a_second_step_needs_overlap(job: Probe) -> None:
    """While the agents' step runs, another one gets no CPU without --overlap; others may start none."""
    cluster = job.cluster
    step = ["srun", f"--jobid={job.job_id}", "-N1", "-n1", "-w", "node1", "--immediate=2", "hostname"]
    overlapping = [*step[:1], "--overlap", *step[1:]]
    assert "" == cluster.run("alice", step).stdout
    assert "node1\n" == cluster.run("alice", overlapping).stdout
    assert "" == cluster.run("bob", overlapping).stdout


def test_array_tasks_are_requeued_by_their_full_name(cluster: Cluster) -> None:
    """ARRAY_TASK requeues one task alone; the array's id requeues all, and so does the last task's own."""
    array = cluster.submit("alice", "--array=0-2", "--requeue", wrap="sleep 600")
    tasks = [f"{array}_{number}" for number in range(3)]
    for task in tasks:
        cluster.wait_state(task, "RUNNING")
    assert array == cluster.job(tasks[2])["JobId"]  # of the last task
    cluster.run("alice", ["scontrol", "requeue", tasks[1]])
    cluster.wait_for(lambda: cluster.job(tasks[1]).get("Restarts") == "1", 30, "the requeue of one task")
    assert ["0", "0"] == [cluster.job(task)["Restarts"] for task in (tasks[0], tasks[2])]
    cluster.run("alice", ["scontrol", "requeue", array])
    cluster.wait_for(
        lambda: all(cluster.job(task).get("Restarts") != "0" for task in tasks),
        30,
        "the requeue of all tasks",
    )


def test_dependencies_wait_for_the_final_state(cluster: Cluster) -> None:
    """A requeue releases nobody who waits for the end; afterok of a failed job never starts."""
    first = cluster.submit("alice", "--requeue", "--job-name=one", wrap="sleep 600")
    failed = cluster.submit("alice", wrap="exit 3")
    after = {
        kind: cluster.submit("alice", f"--dependency={kind}", "--job-name=one", wrap="true")
        for kind in (f"afterany:{first}", "singleton", f"afterok:{failed}", f"afternotok:{failed}")
    }
    cluster.wait_state(first, "RUNNING")
    cluster.run("alice", ["scontrol", "requeue", first])
    cluster.wait_state(after[f"afternotok:{failed}"], "COMPLETED", 60)
    cluster.wait_for(lambda: cluster.job(first).get("Restarts") == "1", 30, "the requeue")
    cluster.wait_state(first, "RUNNING", 60)
    for kind in (f"afterany:{first}", "singleton"):
        assert "PENDING" == cluster.job(after[kind])["JobState"]
    cluster.as_root("scancel", first)
    for kind in (f"afterany:{first}",):
        cluster.wait_state(after[kind], "COMPLETED", 60)
    never = cluster.job(after[f"afterok:{failed}"])
    assert ("PENDING", "DependencyNeverSatisfied") == (never["JobState"], never["Reason"])


def test_components_of_a_hetjob_make_one_step(cluster: Cluster) -> None:
    """`srun --het-group=0,1` runs one step over both components, with ranks merged."""
    script = cluster.shared / "het.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N1 --output=het.out\n#SBATCH hetjob\n#SBATCH -N1\n"
        "srun --het-group=0,1 printenv SLURM_PROCID\n"
    )
    done = cluster.run("alice", ["sbatch", "--wait", str(script)], timeout=90)
    assert 0 == done.returncode, done.stderr
    assert ["0", "1"] == sorted((cluster.shared / "het.out").read_text().split())


def test_what_the_queries_of_this_version_can_say(cluster: Cluster) -> None:
    """Time left, host lists and names come from the commands that our code calls."""
    job_id = cluster.submit("alice", "--time=7", wrap="sleep 600")
    cluster.wait_state(job_id, "RUNNING")
    left = cluster.run("alice", ["squeue", "--noheader", f"--jobs={job_id}", "--format=%L"]).stdout.strip()
    assert left.startswith(("6:", "7:00"))
    hosts = cluster.run("alice", ["scontrol", "show", "hostnames", "node[1-3,7]"]).stdout.split()
    assert ["node1", "node2", "node3", "node7"] == hosts
    fields = cluster.job(job_id)
    needed = ("JobState", "Reason", "Restarts", "Requeue", "EndTime", "NodeList", "BatchHost", "NumNodes")
    assert set(needed) <= fields.keys()
    rounded = cluster.submit("alice", "--time=3:30", wrap="true")
    assert "00:04:00" == cluster.job(rounded)["TimeLimit"]


def test_a_script_that_traps_outlives_its_srun(cluster: Cluster) -> None:
    """With `trap : TERM` bash goes on after srun has ended; without one, or with exec, it is gone."""
    scripts = {
        "trap": "trap : TERM; srun sleep 600; echo trap > after.$SLURM_JOB_ID",
        "none": "srun sleep 600; echo none > after.$SLURM_JOB_ID",
        "exec": "trap : TERM; exec srun sleep 600; echo exec > after.$SLURM_JOB_ID",
    }
    ids = {name: cluster.submit("alice", wrap=script) for name, script in scripts.items()}
    for job_id in ids.values():
        _wait_for_step(cluster, job_id)
    for job_id in ids.values():
        cluster.run("alice", ["scancel", job_id])
    cluster.wait_for((cluster.shared / f"after.{ids['trap']}").exists, 30, "the script to go on")
    cluster.cancel_all()
    assert [f"after.{ids['trap']}"] == [path.name for path in cluster.shared.glob("after.*")]


def _wait_for_step(cluster: Cluster, job_id: str) -> None:
    def has_step() -> bool:
        return f"{job_id}.0" in cluster.as_root("squeue", "--steps", "--noheader", "--format=%i")

    cluster.wait_for(has_step, 30, f"the step of job {job_id}")
