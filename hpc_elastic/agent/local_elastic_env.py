"""The environment of a worker of `LocalElasticAgent`, with the variables of torchrun. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.multiprocessing.logs import log_line_prefix
from hpc_elastic.node.spec import Worker, WorkerGroup
from hpc_elastic.node.workers.worker_env import DEVICES_ENV, visible_devices

_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_THREADS = "OMP_NUM_THREADS"


def elastic_env(
    worker: Worker, group: WorkerGroup, environ: Mapping[str, str], run: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a worker in addition to the agent's own environment.

    Args:
        worker: the worker.
        group: the workers of the agent, in their round.
        environ: the agent's environment.
        run: the values of the rendezvous and the agent, the same for all workers.

    Raises:
        TooFewDevicesError: each worker is to see a GPU of its own, and there is none for this one.
    """
    spec = group.spec
    env = {
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(worker.local_rank),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        _ASYNC_ERRORS: environ.get(_ASYNC_ERRORS, "1"),
        **run,
    }
    devices = visible_devices(worker.local_rank, environ.get(DEVICES_ENV), virtual=spec.virtual_local_rank)
    if devices is not None:
        env[DEVICES_ENV] = devices
    if _THREADS in environ:
        env[_THREADS] = environ[_THREADS]
    return env


def log_prefixes(template: str | None, group: WorkerGroup, node: str) -> dict[int, str] | None:
    """Return the header of each worker's lines on the console; None: the default.

    Args:
        template: may use ``${role_name}``, ``${rank}``, ``${local_rank}`` and ``${node}``.
        group: the workers, in their round.
        node: this node's name.
    """
    if not template:
        return None
    return {
        worker.local_rank: log_line_prefix(
            template,
            role_name=group.spec.role,
            rank=worker.global_rank,
            local_rank=worker.local_rank,
            node=node,
        )
        for worker in group.workers
    }
