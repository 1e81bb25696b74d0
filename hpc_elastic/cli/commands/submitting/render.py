"""``hpc-elastic render``: print the job script."""

from __future__ import annotations

from typing import Any

from hpc_elastic.cli.job_options import wanted_job
from hpc_elastic.cli.say import hand_out
from hpc_elastic.clock import SystemClock
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.submit import request
from hpc_elastic.slurm.submit.request import read_template


def render(
    given: dict[str, Any], command: tuple[str, ...], job_file: str | None = None, profile: str | None = None
) -> None:
    """Print the job script that submit would queue; nothing is checked on disk or queued."""
    with wanted_job(job_file, given, command, profile=profile) as job:
        names = job.spec.option_names()
        options.check_known(names, Slurm().option_names(names))
    template, now_s = read_template(job.spec.mode), SystemClock().wall()
    wanted = request.plan(
        job.spec, template, now_s=now_s, starts_python=job.is_python_own, own=job.own_script
    )
    hand_out(wanted.script)
