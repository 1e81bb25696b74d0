"""Whether a run may still do something: asked where a command would change the wrong one."""

from __future__ import annotations

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.run_status import RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.run_files import ask_job, read_run
from hpc_elastic.text import visible


def line_of_living(paths: RunPaths) -> str:
    """Return a line that tells a run from others, or nothing if it has ended or its job is gone.

    A run that cannot be read, or whose job nobody can be asked about, may live.
    """
    try:
        run = read_run(paths)
        asked = ask_job(run, Slurm())
    except (HpcElasticError, OSError) as error:
        why = str(error).partition("\n")[0]
        return f"  {visible(paths.name)}  cannot be read: {visible(why)}"
    is_over = asked.job is not None and asked.job.state is JobState.ENDED
    if is_over or (asked.job is None and run.state.ending is not None):
        return ""
    where = status_of(RunView.of(run, asked.job)).text
    return f"  {visible(paths.name)}  job {run.job_id or '?'}: {visible(where)}"
