"""The environment and arguments of a worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpc_elastic.ids import Env
from hpc_elastic.node.workers.task_env import task_env
from hpc_elastic.record.journal import Member, RoundFormed


class Place(NamedTuple):
    """Where the workers of one node stand in a round."""

    group_rank: int
    base_rank: int  # global rank of this node's first worker
    world_size: int
    role_base: int
    role_world_size: int

    def worker(self, local_rank: int) -> tuple[int, int]:
        """Return a worker's global rank and role rank."""
        return self.base_rank + local_rank, self.role_base + local_rank


class RunEnv(NamedTuple):
    """What is the same for all workers of an agent."""

    run_id: str
    run_dir: str
    node: str
    max_restarts: int
    master_addr: str | None = None  # a fixed one instead of the round's
    master_port: int | None = None
    defaults: tuple[tuple[str, str], ...] = ()  # set unless the agent's environment has them
    is_slurm_task: bool = False  # the agent's environment tells of a task, which no worker is
    cpus_per_task: str | None = None  # SLURM_CPUS_PER_TASK there
    names_coordinator: bool = False  # of JAX: its own choice rests on one job for all nodes


def place_of(members: tuple[Member, ...], node_id: str) -> Place:
    """Return the place of a node's workers; nodes may have different numbers of workers and roles."""
    group_rank = next(i for i, member in enumerate(members) if member.node_id == node_id)
    me = members[group_rank]
    before = members[:group_rank]
    return Place(
        group_rank=group_rank,
        base_rank=_slots(before),
        world_size=_slots(members),
        role_base=_slots(member for member in before if member.role == me.role),
        role_world_size=_slots(member for member in members if member.role == me.role),
    )


def _slots(members: Iterable[Member]) -> int:
    return sum(member.slots for member in members)


def worker_env(
    formed: RoundFormed, node_id: str, local_rank: int, run: RunEnv, *, restarts: int
) -> dict[str, str]:
    """Return what a worker gets beside the agent's own environment.

    Args:
        formed: the round.
        node_id: the agent's id in it.
        local_rank: the worker.
        run: what is the same for all workers.
        restarts: rounds of this submission that have ended by a failure of workers, or a hang.
    """
    place = place_of(formed.members, node_id)
    me = formed.members[place.group_rank]
    rank, role_rank = place.worker(local_rank)
    checkpoint = formed.checkpoint
    task = task_env(formed.members, place.group_rank, local_rank, run.cpus_per_task)
    address, port = run.master_addr or formed.master_addr, str(run.master_port or formed.master_port)
    return {
        **dict(run.defaults),
        **(task if run.is_slurm_task else {}),
        **({"JAX_COORDINATOR_ADDRESS": f"{address}:{port}"} if run.names_coordinator else {}),
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(place.group_rank),
        "ROLE_RANK": str(role_rank),
        "ROLE_NAME": me.role,
        "LOCAL_WORLD_SIZE": str(me.slots),
        "WORLD_SIZE": str(place.world_size),
        "GROUP_WORLD_SIZE": str(len(formed.members)),
        "ROLE_WORLD_SIZE": str(place.role_world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(run.max_restarts),
        "TORCHELASTIC_RUN_ID": run.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        Env.RUN_DIR: run.run_dir,
        Env.RUN_ID: run.run_id,
        Env.ROUND: str(formed.number),
        Env.NODE: run.node,
        Env.CHECKPOINT: json.dumps(checkpoint._asdict()) if checkpoint else "",
    }


def substitute_texts(args: Iterable[Any], local_rank: int) -> tuple[Any, ...]:
    """Return arguments with ``${local_rank}`` replaced in texts; anything else stays as it is."""
    return tuple(substitute([arg], local_rank)[0] if isinstance(arg, str) else arg for arg in args)


def substitute(args: Iterable[object], local_rank: int) -> list[str]:
    """Return arguments with ``${local_rank}`` replaced; every other ``$`` stays as it is."""
    return [str(arg).replace("${local_rank}", str(local_rank)) for arg in args]
