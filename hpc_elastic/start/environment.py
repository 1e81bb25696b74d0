"""The variables of all workers of an agent, apart from their ranks in a round."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpc_elastic.node.workers.worker_env import RunEnv

if TYPE_CHECKING:
    from hpc_elastic.start.options import LaunchOptions


def run_env(options: LaunchOptions) -> RunEnv:
    """Return the variables that are the same for all workers; those of the agent's environment stay."""
    cpus = len(os.sched_getaffinity(0))
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cpus // options.slots)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",  # what a program prints is in its log while it runs
    }
    if options.tracker_ids:
        from hpc_elastic.node.workers.tracker_ids import tracker_env  # noqa: PLC0415 - on request

        defaults.update(tracker_env(options.run_id, options.paths.root))
    given = tuple((name, value) for name, value in defaults.items() if name not in os.environ)
    if options.virtual_local_rank:  # a worker's own device is one of these
        given += tuple((name, os.environ[name]) for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ)
    is_slurm_task = "SLURM_PROCID" in os.environ
    return RunEnv(
        run_id=options.run_id,
        run_dir=options.paths.root,
        node=options.node,
        max_restarts=options.max_restarts,
        master_addr=options.master_addr,
        master_port=options.master_port,
        defaults=given,
        is_slurm_task=is_slurm_task,
        cpus_per_task=os.environ.get("SLURM_CPUS_PER_TASK"),
        names_coordinator=is_slurm_task and "JAX_COORDINATOR_ADDRESS" not in os.environ,
    )
