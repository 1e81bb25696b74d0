"""``hpc-elastic sbatch``: a line of sbatch, with one word in front."""

from __future__ import annotations

import os
import sys
import tempfile

from hpc_elastic.cli.commands.submitting.submit import AS_SBATCH, queue_job
from hpc_elastic.cli.job_options import wanted_job
from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.own_script import SbatchCall, parse_call, text_of_wrap
from hpc_elastic.slurm.job.own_script_file import is_script

_STDIN = "/dev/stdin"


def sbatch(line: tuple[str, ...]) -> int:
    """Queue a job script as sbatch does; it starts again after preemption, node failure and time limit."""
    call = parse_call(line, is_script)
    if call.wrap is not None:
        return _queue_wrapped(call, call.wrap)
    if not call.script and sys.stdin.isatty():
        raise InputError(
            "no job script is named, and a terminal is none",
            where="sbatch",
            fix="hpc-elastic sbatch [OPTIONS] job.sbatch [ARGS]",
        )
    return _queue(call, call.script or _STDIN)


def _queue_wrapped(call: SbatchCall, command: str) -> int:
    """Queue the script that sbatch makes of ``--wrap``; the run directory has a copy of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "wrap")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text_of_wrap(command))
        return _queue(call, path)


def _queue(call: SbatchCall, script: str) -> int:
    given = {**call.given, "sbatch_options": call.options, "mode": "script"}
    with wanted_job(script, given, call.arguments, profile=call.profile) as job:
        return queue_job(job, "--parsable" if call.is_parsable else AS_SBATCH)
