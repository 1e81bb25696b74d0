"""The environment and arguments of a worker. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from importlib import import_module
from itertools import groupby
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Member, RoundFormed

_UNSAFE = r"[^A-Za-z0-9_.-]+"
_NAME = 40  # characters of the run id that are kept for people
DEVICES_ENV = "CUDA_VISIBLE_DEVICES"  # ROCm reads it, too


class RankPlace(NamedTuple):
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
    """The common values of all workers of an agent."""

    run_id: str
    run_dir: str
    node: str
    max_restarts: int
    master_addr: str | None = None  # a fixed one instead of the round's
    master_port: int | None = None
    defaults: tuple[tuple[str, str], ...] = ()  # set unless the agent's environment has them
    is_slurm_task: bool = False  # the agent's environment tells of a task, which no worker is
    slurm_cpus: int | None = None  # that Slurm has given the agent; None: not known
    names_coordinator: bool = False  # of JAX: its own choice rests on one job for all nodes


def place_of(members: tuple[Member, ...], node_id: str) -> RankPlace:
    """Return the place of a node's workers; nodes may have different numbers of workers and roles."""
    group_rank = next(i for i, member in enumerate(members) if member.node_id == node_id)
    me = members[group_rank]
    before = members[:group_rank]
    return RankPlace(
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
    """Return the variables of a worker beside the agent's own environment.

    Args:
        formed: the round.
        node_id: the agent's id in it.
        local_rank: the worker.
        run: the common values of all workers.
        restarts: rounds of this submission that have ended by a failure of workers, or a hang.
    """
    place = place_of(formed.members, node_id)
    me = formed.members[place.group_rank]
    rank, role_rank = place.worker(local_rank)
    checkpoint = formed.checkpoint
    task = task_env(formed.members, place.group_rank, local_rank, run.slurm_cpus)
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
    return tuple(_substituted(arg, local_rank) if isinstance(arg, str) else arg for arg in args)


def substitute(args: Iterable[object], local_rank: int) -> list[str]:
    """Return arguments with ``${local_rank}`` replaced; every other ``$`` stays as it is."""
    return [_substituted(str(arg), local_rank) for arg in args]


def _substituted(text: str, local_rank: int) -> str:
    return text.replace("${local_rank}", str(local_rank))


def tracker_env(run_id: str, run_dir: str) -> dict[str, str]:
    """Return the variables that have trackers go on with one experiment over all starts of a run.

    The run directory tells runs apart that were given the same id.

    Args:
        run_id: the run's id.
        run_dir: absolute path of its directory.
    """
    key = _sha256(f"{run_id}\0{run_dir}".encode(errors="surrogateescape"))[:32]
    name = re.sub(_UNSAFE, "-", run_id)[:_NAME].strip("-.") or "run"
    return {
        "WANDB_RUN_ID": f"{name}-{key[:8]}",
        "WANDB_RESUME": "allow",
        "COMET_EXPERIMENT_KEY": key,  # alphanumeric, 32 to 50 characters
        "NEPTUNE_CUSTOM_RUN_ID": key,  # at most 36 characters
        "TENSORBOARD_LOGGING_DIR": f"{run_dir}/tensorboard",  # else one folder per start
    }


def _sha256(data: bytes) -> str:
    """Return a digest by a module of the interpreter; hashlib takes 3 MB of an agent for OpenSSL."""
    for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12, before, and where it is built without
        with suppress(ImportError):
            return str(import_module(name).sha256(data).hexdigest())
    raise ImportError("this Python has no SHA-256")


class TooFewDevicesError(InputError, ValueError):
    """A worker has no GPU of its own."""


def visible_devices(local_rank: int, environ_value: str | None, *, virtual: bool) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES for a worker; None leaves it unset.

    Args:
        local_rank: the worker.
        environ_value: CUDA_VISIBLE_DEVICES of the agent, if it is set.
        virtual: give the worker its own GPU alone; otherwise it sees the agent's GPUs.

    Raises:
        TooFewDevicesError: the agent sees no GPU for this worker.
    """
    if not virtual:
        return environ_value
    if environ_value is None:
        return str(local_rank)
    devices = [device.strip() for device in environ_value.split(",") if device.strip()]
    if local_rank >= len(devices):
        raise TooFewDevicesError(
            f"local_rank {local_rank} exceeds available GPUs in {DEVICES_ENV}={environ_value}",
            fix="start no more workers on this node than it has GPUs",
        )
    return devices[local_rank]


def give_own_device(
    env: MutableMapping[str, str], local_rank: int, environ: Mapping[str, str] | None = None
) -> None:
    """Have a worker see its own GPU alone, as local rank 0.

    Args:
        env: the worker's additional environment; changed.
        local_rank: the worker.
        environ: the agent's environment, below that.

    Raises:
        TooFewDevicesError: the agent sees no GPU for this worker.
    """
    value = env.get(DEVICES_ENV, (environ or {}).get(DEVICES_ENV))
    env[DEVICES_ENV] = visible_devices(local_rank, value, virtual=True) or str(local_rank)
    env["LOCAL_RANK"] = "0"


"""What srun tells a task of its place in MPI; a worker is no task, so nothing of it holds for one."""


def task_env(
    members: tuple[Member, ...], group_rank: int, local_rank: int, slurm_cpus: int | None
) -> dict[str, str]:
    """Return the variables of a worker, as if srun had started one task per worker.

    Args:
        members: the nodes of the round, in the order of their ranks.
        group_rank: the place of the worker's node among them.
        local_rank: the worker's place on its node.
        slurm_cpus: CPUs of the agent, which its workers share; None if that is not known.
    """
    slots = members[group_rank].slots
    first = sum(member.slots for member in members[:group_rank])
    world = str(sum(member.slots for member in members))
    per_node = _per_node(member.slots for member in members)
    found = {
        "SLURM_PROCID": str(first + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(group_rank),
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_STEP_NUM_TASKS": world,
        "SLURM_STEP_NUM_NODES": str(len(members)),
        "SLURM_STEP_NODELIST": ",".join(member.node for member in members),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_NTASKS_PER_NODE": str(slots),
        "SLURM_GTIDS": ",".join(str(first + rank) for rank in range(slots)),
    }
    if slurm_cpus is not None:
        found["SLURM_CPUS_PER_TASK"] = str(max(1, slurm_cpus // slots))
    return found


def _per_node(slots: Iterable[int]) -> str:
    """Return counts as Slurm writes them: ``2(x3),1``."""
    runs = ((count, len([*same])) for count, same in groupby(slots))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
