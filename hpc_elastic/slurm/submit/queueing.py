"""Having sbatch queue the script of a run, which nobody else has had in his hands."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_elastic.slurm.client.commands import Slurm, submit_environment
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.store.trust import exposures

_STDIN = "/dev/stdin"  # sbatch takes no arguments of a script that it reads without a name


def queue(slurm: Slurm, request: SubmitRequest, arguments: Sequence[str]) -> str:
    """Queue the script of a request and return the id of the job.

    Whoever can rename a directory above the script could have sbatch find one of his own under its name,
    which would run as the user. There sbatch gets the text instead.

    Args:
        slurm: Slurm's commands.
        request: has the script.
        arguments: options, the script's path and the script's arguments.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    environ = submit_environment(slurm.environ, request.header_names)
    if _is_private(request.script_file):
        return slurm.sbatch(arguments, environ)
    words = [_STDIN if word == request.script_file else word for word in arguments]
    return slurm.sbatch(words, environ, text=request.script)


def _is_private(path: str) -> bool:
    """Tell whether nobody else can put another file in the place of one."""
    try:
        return not exposures(os.path.abspath(path), with_groups=False)
    except OSError:
        return False
