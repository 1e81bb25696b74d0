"""The facts of Slurm about a process in a job, read from the environment. Pure and light."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.slurm.client import parse

ARRAY = "array"  # value of Env.MODE


class SlurmEnv(NamedTuple):
    """The facts about one process in a Slurm job; None or empty where Slurm has given none."""

    job_ref: str  # how to name this job to scontrol and scancel; an array task never by the array's id
    job_id: str
    link: int  # how many jobs of the same submission came before this one
    restart_count: int  # how often Slurm started this job before
    in_step: bool  # started by srun, not the batch script itself
    node_name: str
    node_index: int  # position in node_names; 0 if unknown
    node_names: tuple[str, ...]  # of the step, else of the job
    gpus_on_node: int | None  # None as well where the environment names those of the batch host alone
    has_gpus_untold: bool  # the job has GPUs, but how many of them here Slurm alone knows
    end_time_s: float | None  # end of the allocation [s since the epoch]; None before Slurm 23.02: ask squeue
    task: TaskStart | None = None  # in array mode: which start of which task this is

    @property
    def run_job(self) -> str:
        """The job that the whole run belongs to: in array mode the array, else this one."""
        return self.task.array if self.task is not None else self.job_ref

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SlurmEnv | None:
        """Read the environment of a process; None outside a Slurm job.

        Raises:
            InputError: a variable of Slurm's holds a text that Slurm never writes.
        """
        job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        if not job_id:
            return None
        in_step = environ.get("SLURM_STEP_ID", "").isdecimal()
        names = _node_names(environ, in_step=in_step)
        node = environ.get("SLURMD_NODENAME", "")
        is_elsewhere = in_step and _count(environ, "SLURM_JOB_NUM_NODES") != 1
        gpus = _gpus(environ, is_elsewhere=is_elsewhere)
        return cls(
            job_ref=job_ref(environ) or job_id,
            job_id=job_id,
            link=_count(environ, Env.LINK) or 0,
            restart_count=_count(environ, "SLURM_RESTART_COUNT") or 0,
            in_step=in_step,
            node_name=node,
            node_index=_node_index(environ, node, names),
            node_names=names,
            gpus_on_node=gpus,
            has_gpus_untold=gpus is None and _gpus(environ, is_elsewhere=False) is not None,
            end_time_s=_count(environ, "SLURM_JOB_END_TIME"),
            task=task_start(environ),
        )


def task_start(environ: Mapping[str, str]) -> TaskStart | None:
    """Return which start of which array task a process belongs to, None outside of array mode."""
    if environ.get(Env.MODE) != ARRAY:
        return None
    array, index = _count(environ, "SLURM_ARRAY_JOB_ID"), _count(environ, "SLURM_ARRAY_TASK_ID")
    if array is None or index is None:
        return None
    restart, relaunch = _count(environ, "SLURM_RESTART_COUNT"), _count(environ, Env.RELAUNCH)
    return TaskStart(f"{array}_{index}", restart or 0, relaunch or 0)


def job_ref(environ: Mapping[str, str]) -> str | None:
    """Return how to name the job of a process: an array's last task has the id of the whole array."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not re.fullmatch(r"\d+", text):
        raise InputError(f"{name}={text!r} is not a number", where="environment", fix=f"unset {name}")
    return int(text)


def _node_names(environ: Mapping[str, str], *, in_step: bool) -> tuple[str, ...]:
    step = environ.get("SLURM_STEP_NODELIST") if in_step else None
    return parse.expand(step or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or "")


def _node_index(environ: Mapping[str, str], node: str, names: tuple[str, ...]) -> int:
    if node in names:
        return names.index(node)
    return _count(environ, "SLURM_NODEID") or 0


def _gpus(environ: Mapping[str, str], *, is_elsewhere: bool) -> int | None:
    """Count the GPUs of this node; a count may carry a type (``a100:4``).

    Args:
        environ: of the process.
        is_elsewhere: the process may run on another node than the batch script, whose SLURM_JOB_GPUS srun
            hands on: it names the GPUs of the batch host.
    """
    text = environ.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2]
    if text.isdecimal():
        return int(text)
    listed = environ.get("SLURM_STEP_GPUS") or ("" if is_elsewhere else environ.get("SLURM_JOB_GPUS"))
    return len(listed.split(",")) if listed else None
