"""The variables by which a Slurm task knows its place, as a worker gets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.node.workers.worker_env import RunEnv, task_env, worker_env
from hpc_elastic.record.journal import RoundFormed
from tests.meet.build import E0, member, node_id

MEMBERS = (member("n1", 2), member("n2", 2), member("n3", 1))


def test_each_worker_is_a_task_of_its_own() -> None:
    """As if srun had started as many tasks as there are workers, on the nodes of the round."""
    assert {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "5",
        "SLURM_NPROCS": "5",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_NODELIST": "n1,n2,n3",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_GTIDS": "2,3",
    } == task_env(MEMBERS, 1, 1, None)


@pytest.mark.parametrize(("of_agent", "of_worker"), [(8, "4"), (7, "3"), (1, "1"), (None, None)])
def test_the_cpus_of_a_node_are_shared(of_agent: int | None, of_worker: str | None) -> None:
    """Programs start as many loader processes as SLURM_CPUS_PER_TASK says."""
    assert of_worker == task_env(MEMBERS, 0, 0, of_agent).get("SLURM_CPUS_PER_TASK")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_every_rank_is_there_once(slots: list[int]) -> None:
    """Places are those of RANK and LOCAL_RANK, whatever the sizes of the nodes."""
    members = tuple(member(f"n{number}", count) for number, count in enumerate(slots))
    formed = RoundFormed(1, E0, members, "n0", 29_000, None)
    run = RunEnv("run", "/run", "n0", 0, is_slurm_task=True)
    found = [
        worker_env(formed, node_id(one.node), local_rank, run, restarts=0)
        for one in members
        for local_rank in range(one.slots)
    ]
    assert [str(rank) for rank in range(sum(slots))] == [env["SLURM_PROCID"] for env in found]
    for name, ours in (("RANK", "PROCID"), ("LOCAL_RANK", "LOCALID"), ("WORLD_SIZE", "NTASKS")):
        assert [env[name] for env in found] == [env[f"SLURM_{ours}"] for env in found]


def test_without_slurm_nothing_is_made_up() -> None:
    """Libraries would take a terminal for a step."""
    formed = RoundFormed(1, E0, MEMBERS, "n1", 29_000, None)
    env = worker_env(formed, node_id("n1"), 0, RunEnv("run", "/run", "n1", 0), restarts=0)
    assert [] == [name for name in env if name.startswith(("SLURM_", "JAX_"))]
    run = RunEnv("run", "/run", "n1", 0, names_coordinator=True)
    named = worker_env(formed, node_id("n1"), 0, run, restarts=0)
    assert "n1:29000" == named["JAX_COORDINATOR_ADDRESS"]
