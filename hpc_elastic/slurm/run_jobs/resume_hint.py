"""Words for people whose run has ended or is left alone: what starts it again, and from where."""

from __future__ import annotations

import os
import shlex

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.slurm.run_jobs.job_start import Start


def to_go_on(paths: RunPaths) -> str:
    """Return from where a run goes on: from the step that it has a checkpoint of, if it has marked one."""
    try:
        found = checkpoints.latest(paths)
    except (OSError, HpcElasticError):
        return "to go on"
    if found is None:
        return "to start it again (it has marked no checkpoint)"
    return f"to go on from the checkpoint of step {found.step}"


def same_script(root: str) -> str:
    """Return what a user's own job script needs to go on with a run.

    Args:
        root: its directory, quoted for a shell.
    """
    adopted = f"one that adopt has changed: {Env.RESUME}={root} sbatch SCRIPT"
    return f"the same job script again, with --run-dir {root}; {adopted}"


def resume_command(start: Start) -> str:
    """Return what starts the run of a job again; one that `submit` did not make has no script to queue."""
    root = shlex.quote(start.paths.root)
    if not start.is_submitted and not os.path.exists(start.paths.identity):
        return f"submit {same_script(root)}"
    return f"hpc-elastic submit --resume {root}"


def look_first(start: Start) -> str:
    """Return the steps for a job or task of which it is not known whether Slurm starts it again."""
    command = resume_command(start) if start.task is None else f"scontrol requeue {start.job_ref}"
    return f"later: squeue -j {start.job_ref}; if it is not in the queue: {command}"
