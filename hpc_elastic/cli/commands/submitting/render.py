"""``hpc-elastic render``: print the job script."""

from __future__ import annotations

from typing import Any

import typer

from hpc_elastic.cli.job_options import JobFileArgument, job_spec
from hpc_elastic.cli.say import hand_out
from hpc_elastic.clock import SystemClock
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.submit import request
from hpc_elastic.slurm.submit.request import read_template


def render(context: typer.Context, given: dict[str, Any], job_file: JobFileArgument = None) -> None:
    """Print the job script that submit would queue; nothing is checked on disk or queued.

    Example: hpc-elastic render --nodes 2:4 --gpus-per-node 8 --exclusive --time 4h -- train.py
    """
    with job_spec(job_file, given, context.obj or ()) as spec:
        names = spec.option_names()
        options.check_known(names, Slurm().option_names(names))
    hand_out(request.plan(spec, read_template(spec.mode), now_s=SystemClock().wall()).script)
