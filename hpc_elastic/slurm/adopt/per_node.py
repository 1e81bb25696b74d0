"""A script with torchrun that srun runs on each node of a job: changed in place, srun stays. Pure."""

from __future__ import annotations

import re
import shlex

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.adopt.script import (
    SIGNALS,
    Adopted,
    Change,
    agent_command,
    ended_of,
    find,
    finish_line,
)
from hpc_elastic.slurm.job.shell_text import code_of

_SRUN = re.compile(r"(?<![\w./-])srun(?=\s)")
_TRAP = Change(
    f"trap : {SIGNALS}", "Slurm signals this shell, too; it must not end before the agent has saved"
)
_LEAVE = Change(
    '[ "$ended" = 0 ] || exit "$ended"', "what comes behind runs where the training is over, and nowhere else"
)
_SRUN_LINE = 'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill'


def is_per_node(text: str) -> bool:
    """Tell whether only srun can run a script: sbatch takes none without a first line ``#!``."""
    return not text.startswith("#!") and "#SBATCH" not in text and not _SRUN.search(code_of(text))


def adopt_per_node(text: str, name: str, *, is_found_isolated: bool = True) -> Adopted:
    """Return a script whose torchrun is replaced by our agent, with what its job script is to have.

    Args:
        text: of the script.
        name: of the script, for messages.
        is_found_isolated: as `adopt`.

    Raises:
        InputError: as `adopt`, or the script starts srun itself.
    """
    plain, _shell, line = find(text, name, is_found_isolated=is_found_isolated)
    if line.has_srun:
        raise InputError(
            f"torchrun in line {line.number} is started by srun: no script that srun runs on each node",
            where=name,
            fix="leave --per-node out",
        )
    lines = plain.split("\n")
    rest = [each for each in lines[line.last + 1 :] if each.strip()]
    leave = [f"ended={ended_of(line)}", _LEAVE.what] if rest or line.is_piped else []
    command = f"{line.head}{line.options.lstrip()}{agent_command(line)}"
    changed = [*lines[: line.first], _TRAP.what, *command.split("\n"), *leave, *lines[line.last + 1 :]]
    changes = (
        Change(
            f"{line.program} run instead of torchrun, in its place",
            "srun runs this script on each node already; the nodes meet in the run directory",
        ),
        _TRAP,
        *([_LEAVE] if leave else []),
    )
    return Adopted("\n".join(changed).rstrip("\n") + "\n", changes, _job_script(name, finish_line(line)))


def _job_script(name: str, finish: str) -> tuple[str, ...]:
    """Return the lines that the script is to have which runs this one."""
    return (
        "#SBATCH --requeue --open-mode=append --no-kill --signal=USR2@120",
        f"trap : {SIGNALS}",
        f"{_SRUN_LINE} bash {shlex.quote(name)}",
        "ended=$?",
        f"trap '' {SIGNALS}",
        finish,
    )
