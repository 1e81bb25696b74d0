"""``hpc-elastic run``: torchrun's command line in front of one agent.

This module is on the path of every agent's start, so it imports nothing it does not need.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.cli.run_flags import parser
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.ids import ExitCode

if TYPE_CHECKING:
    from hpc_elastic.cli.run_options import Plan

__all__ = ["main", "parser"]


def main(argv: Sequence[str]) -> int:
    """Run one agent and return the exit code of the process."""
    try:
        args = parser().parse_args(argv)
        from hpc_elastic.cli import run_options  # noqa: PLC0415 - usage errors need none of it
        from hpc_elastic.launch import run_agent  # noqa: PLC0415 - usage errors need none of it

        plan = run_options.resolve(args, os.environ)
        if plan.slurm is None or plan.options.node in plan.slurm.node_names[:1]:
            _tell(plan)
        return run_agent(plan.options, plan.slurm)
    except (InputError, ValueError) as error:
        if not isinstance(error, InputError) and not str(error).startswith("PET_"):
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.USAGE
    except HpcElasticError as error:  # not the user's: another start may do better
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.FAILED
    except KeyboardInterrupt:  # before the agent waits for signals
        return 128 + signal.SIGINT


def _tell(plan: Plan) -> None:
    """Print where the run lives if nobody has said it, and what of the flags comes to nothing."""
    if not plan.place.is_named:
        print(f"run directory: {plan.options.paths.root}", file=sys.stderr)  # noqa: T201 - a command's output
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201 - a command's output
