"""From the parameters of a submitit executor to the fields of a job spec. Pure.

Names are those of submitit's Slurm executor, then ours: the fields of `JobSpec` (docs/reference/runs.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_elastic.errors import InputError

GENERIC = {
    "name": "name",
    "timeout_min": "time",
    "mem_gb": "mem",
    "nodes": "nodes",
    "cpus_per_task": "cpus_per_task",
    "gpus_per_node": "gpus_per_node",
    "tasks_per_node": "workers_per_node",
}
"""What submitit calls the parameters that all its executors have, and we."""

RENAMED = {"job_name": "name", "ntasks_per_node": "workers_per_node", "signal_delay_s": "checkpoint_lead"}
"""Parameters of submitit's Slurm executor that are called otherwise here."""

AS_SBATCH = ("cpus_per_gpu", "gres", "wckey", "num_gpus", "gpus_per_task", "mem_per_gpu")
"""Parameters of submitit's Slurm executor that are options of sbatch."""

HANDLED = ("additional_parameters", "min_nodes", "local")
WITHOUT_EFFECT = ("stderr_to_stdout", "srun_args", "use_srun", "teardown", "array_parallelism", "map_count")
"""Parameters of submitit's Slurm executor that would do harm, with what to do instead."""

_INSTEAD = {
    "srun_args": "leave it out; options of the job go into additional_parameters",
    "use_srun": "leave it out: one agent per node is always started by srun",
    "teardown": "leave it out, or do it at the end of the function",
    "array_parallelism": "leave it out: each call is a job of its own",
    "stderr_to_stdout": "leave it out: both are in the worker's logs",
    "map_count": "leave it out",
}


def fields_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job spec.

    Args:
        parameters: of the executor, by their names in `JobSpec` or in submitit.

    Raises:
        InputError: a parameter makes no sense here.
    """
    fields: dict[str, Any] = {}
    sbatch: dict[str, Any] = {}
    for name, value in parameters.items():
        if value is None or name in HANDLED:
            continue
        if name in WITHOUT_EFFECT:
            raise InputError(
                f"{name} = {value!r} has no meaning here", where=f"hpcelastic_{name}", fix=_INSTEAD[name]
            )
        if name in AS_SBATCH:
            sbatch[name] = value
        else:
            fields[RENAMED.get(name, name)] = value
    sbatch.update(parameters.get("additional_parameters") or {})
    if sbatch:
        fields["sbatch"] = {**fields.get("sbatch", {}), **sbatch}
    least = parameters.get("min_nodes")
    if least is not None:
        fields["nodes"] = f"{least}:{fields.get('nodes', least)}"
    return fields


def memory_text(gigabytes: float) -> str:
    """Return a size as Slurm takes it."""
    whole = int(gigabytes)
    return f"{whole}G" if gigabytes == whole else f"{int(gigabytes * 1024)}M"
