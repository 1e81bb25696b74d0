"""From the parameters of a submitit executor to the fields of a job spec. Pure.

Names are those of submitit's Slurm executor, then ours: the fields of `JobSpec` (docs/reference/job-file.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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

RENAMED = {
    "job_name": "name",
    "ntasks_per_node": "workers_per_node",
    "num_gpus": "gpus_per_node",
    "signal_delay_s": "checkpoint_lead",
}
"""Parameters of submitit's Slurm executor that are called otherwise here."""

_OF_OTHERS_TEXT = (
    "job_name partition time nodes ntasks_per_node cpus_per_task cpus_per_gpu num_gpus gpus_per_node "
    "gpus_per_task qos setup teardown mem mem_per_gpu mem_per_cpu signal_delay_s comment constraint exclude "
    "account gres mail_type mail_user nodelist dependency exclusive array_parallelism wckey "
    "stderr_to_stdout additional_parameters srun_args use_srun"
)
OF_OTHERS = frozenset(_OF_OTHERS_TEXT.split())
"""Parameters that executors of submitit's own have, too."""

AS_SBATCH = ("cpus_per_gpu", "gres", "wckey", "gpus_per_task", "mem_per_gpu")
"""Parameters of submitit's Slurm executor that are options of sbatch."""

HANDLED = ("additional_parameters", "min_nodes", "array_parallelism", "stderr_to_stdout", "profile")
WITHOUT_EFFECT = ("srun_args", "use_srun", "teardown", "map_count", "local")
"""Parameters of submitit's Slurm executor that would do harm, with what to do instead."""

_INSTEAD = {
    "srun_args": "leave it out; options of the job go into additional_parameters",
    "use_srun": "leave it out: one agent per node is always started by srun",
    "teardown": "leave it out, or do it at the end of the function",
    "map_count": "leave it out",
    "local": "give it to the constructor: AutoExecutor(folder, cluster='hpcelastic', hpcelastic_local=2)",
}


_AS_HERE = {"use_srun": True, "srun_args": [], "teardown": []}
"""Values of those that say what is done here anyway."""
_NO_KEY = ("wckey", "")  # with submitit's Slurm executor the way to have none


def array_parallelism(parameters: Mapping[str, Any], instead: str = "") -> int | None:
    """Return how many calls of one `map_array` may run at once; None if not given.

    Args:
        parameters: of the executor.
        instead: why the calls do not become one array, if they do not.

    Raises:
        InputError: it is no number of calls, or there is nothing that could keep it.
    """
    value = parameters.get("array_parallelism")
    if value is None:
        return None
    where = "hpcelastic_array_parallelism"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"array_parallelism = {value!r} is no number of calls", where=where, fix="1, 2, ...")
    if instead:
        raise InputError(
            f"array_parallelism = {value} is for calls that are one job array, and {instead}",
            where=where,
            fix="leave one of them out; without it nothing limits how many calls run at once",
        )
    return value


def joins_stderr(parameters: Mapping[str, Any]) -> bool:
    """Tell whether the stderr of workers goes to their stdout.

    Raises:
        InputError: the value is neither True nor False.
    """
    value = parameters.get("stderr_to_stdout")
    if value in (None, False, True):
        return bool(value)
    raise InputError(
        f"stderr_to_stdout = {value!r} is no truth value",
        where="hpcelastic_stderr_to_stdout",
        fix="True or False",
    )


def parameter_of(field: str) -> str:
    """Return the parameter of `AutoExecutor` that sets a field of a job spec."""
    generic = {ours: theirs for theirs, ours in GENERIC.items()}
    return generic.get(field, f"hpcelastic_{field}")


class ValidNames(set[str]):
    """The names of all parameters, of which a loop sees only those that no other executor has.

    submitit takes a parameter without an executor's name in front for one of the last executor that
    lists it. If this one did, ``partition="gpu"`` of a user of Slurm would be lost on its way.
    """

    def __iter__(self) -> Iterator[str]:
        """Return the names that may be listed, and a word about the others for submitit's error."""
        yield from sorted(set(super().__iter__()) - OF_OTHERS)
        yield "and those of submitit's Slurm executor"


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
        if value is None or name in HANDLED or _AS_HERE.get(name, ...) == value or (name, value) == _NO_KEY:
            continue
        if name in WITHOUT_EFFECT:
            raise InputError(
                f"{name} = {value!r} has no meaning here", where=f"hpcelastic_{name}", fix=_INSTEAD[name]
            )
        if name in AS_SBATCH or (name == "exclusive" and isinstance(value, str)):
            sbatch[name] = value
        else:
            fields[RENAMED.get(name, name)] = _minutes(value) if name == "time" else value
    sbatch.update(_additional(parameters.get("additional_parameters")))
    if sbatch:
        fields["sbatch"] = {**(fields.get("sbatch") or {}), **sbatch}
    least = parameters.get("min_nodes")
    if least is not None:
        fields["nodes"] = f"{least}:{fields.get('nodes', least)}"
    return fields


def _minutes(value: Any) -> Any:
    """Return a time limit; parts of a minute, as submitit takes them, in seconds."""
    return f"{math.ceil(60 * value)}s" if isinstance(value, float) and math.isfinite(value) else value


def _additional(given: Any) -> Mapping[str, Any]:
    if not isinstance(given or {}, Mapping):
        raise InputError(
            f"additional_parameters = {given!r} is no dict",
            where="hpcelastic_additional_parameters",
            fix='write options of sbatch so: {"hint": "nomultithread"}',
        )
    return given or {}


def memory_text(gigabytes: float) -> str:
    """Return a size as Slurm takes it.

    Raises:
        InputError: it is less than nothing.
    """
    if gigabytes < 0:
        raise InputError(
            f"mem_gb = {gigabytes} is no size", where="mem_gb", fix="0 is all of a node's memory"
        )
    whole = int(gigabytes)
    return f"{whole}G" if gigabytes == whole else f"{int(gigabytes * 1024)}M"
