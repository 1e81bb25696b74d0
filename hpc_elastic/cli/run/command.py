"""``hpc-elastic run``: torchrun's command line in front of one agent.

This module is on the path of every agent's start, so it imports nothing it does not need.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import OF_MPI, Env
from hpc_elastic.lazy_names import no_look_for_garbage
from hpc_elastic.processes.guard import Guard
from hpc_elastic.slurm.watch.process_tree import is_searched, read_cgroups, run_apart
from hpc_elastic.text import visible_lines

if TYPE_CHECKING:
    from hpc_elastic.cli.run.options import RunPlan

_SEVERAL = 2  # nodes that have to meet


def main(argv: Sequence[str], *, owns_process: bool = False) -> int:
    """Run one agent and return the exit code of the process.

    Args:
        argv: the arguments without the program's name.
        owns_process: this process does nothing else, so that another one may take its place.
    """
    _open_standard_streams()
    if owns_process:
        _forget_place_in_mpi()
    if owns_process and not os.isatty(0) and is_searched(os.environ, read_cgroups()):
        return run_apart(lambda held: _run(argv, held))
    return _run(argv, None)


def _run(argv: Sequence[str], held: int | None) -> int:
    guard = Guard.start(held)  # before the imports, so that it stays small
    try:
        with no_look_for_garbage():
            plan = _plan(argv)
            from hpc_elastic.start.agent import run_agent  # noqa: PLC0415 - usage errors need none of it
        if plan.slurm is None or plan.options.node in plan.slurm.node_names[:1]:
            _tell(plan)
        return run_agent(plan.options, plan.slurm, guard)
    except InputError as error:
        print(f"error: {visible_lines(_complaint(error, argv))}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.USAGE
    except HpcElasticError as error:  # not the user's: another start may do better
        print(f"error: {visible_lines(str(error))}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.FAILED
    except KeyboardInterrupt:  # before the agent waits for signals
        return 128 + signal.SIGINT
    finally:
        guard.stop()


def _complaint(error: InputError, argv: Sequence[str]) -> str:
    """Return the text of an error, with the variable that the value comes from where no flag gives it."""
    from argparse import Namespace  # noqa: PLC0415 - only for an error

    from hpc_elastic.argparse_util import value_of, variable_of  # noqa: PLC0415
    from hpc_elastic.cli.run.flags import parser  # noqa: PLC0415

    dest = error.where.removeprefix("--").replace("-", "_")
    variable = variable_of(dest)
    if not error.where.startswith("--") or value_of(variable) is None:
        return str(error)
    given = parser().parse_args(argv, Namespace(**{dest: None}))  # which no default replaces
    source = f" (from {variable})" if getattr(given, dest) is None else ""
    return str(InputError(f"{error.message}{source}", where=error.where, fix=error.fix))


def _plan(argv: Sequence[str]) -> RunPlan:
    from hpc_elastic.cli.run.flags import parser  # noqa: PLC0415 - the guard needs none of it

    args = parser().parse_args(argv)
    from hpc_elastic.cli.run import options  # noqa: PLC0415 - usage errors need none of it

    return options.resolve(args, os.environ)


def _open_standard_streams() -> None:
    """Open the closed ones of descriptors 0 to 2: a file of the agent's would get the number otherwise.

    Workers have these three from the agent, and would write into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _forget_place_in_mpi() -> None:
    """Leave workers nothing of this task's place in MPI: each would take it for its own."""
    for name in [name for name in os.environ if name.startswith(OF_MPI)]:
        del os.environ[name]


def _tell(plan: RunPlan) -> None:
    """Print the run's directory if no flag named it, and the flags without effect."""
    lines = [f"note: {note}\n" for note in (*plan.notes, *unshared(plan))]
    if not plan.place.is_named:
        lines.insert(0, f"run directory: {plan.options.paths.root}\n")
    with suppress(OSError):  # a full disk below stderr keeps no agent from running
        os.write(2, "".join(lines).encode(errors="surrogateescape"))


def unshared(plan: RunPlan) -> list[str]:
    """Return a hint if the nodes of a step meet where only this one can look.

    A run that was submitted needs none: `submit` has looked.
    """
    if plan.slurm is None or len(plan.slurm.node_names) < _SEVERAL or Env.SUBMISSION in os.environ:
        return []
    from hpc_elastic.store import mount  # noqa: PLC0415 - the agent needs it, too

    root = plan.options.paths.root
    found = mount.mount_at(root)
    if mount.sharing(os.path.realpath(root), found) is not mount.Sharing.LOCAL:
        return []
    where = f"{found.kind} on {found.point}"
    return [
        f"{root} is on {where}, which only this node sees; without a --run-dir that all see no node joins"
    ]
