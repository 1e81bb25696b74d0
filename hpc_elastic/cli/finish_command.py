"""``hpc-elastic finish``: the last line of the job script decides what becomes of the job. Light."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from hpc_elastic.clock import SystemClock, clock_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.ids import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.journal import Decision
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.slurm.commands import Slurm
from hpc_elastic.slurm.finish import Finish, Start
from hpc_elastic.slurm.lifecycle import MAX_RELAUNCH, MAX_REQUEUES, Budgets


def main(argv: Sequence[str]) -> int:
    """Decide what becomes of the job; print only the node count of another srun to stdout.

    Returns:
        The exit code for the job script; 80 asks for another srun.
    """
    arguments = _parser().parse_args(argv)
    paths = RunPaths(arguments.run_dir)
    start = Start.from_environ(
        paths,
        os.environ,  # noqa: TID251 - the batch script's
        relaunch=arguments.relaunch,
        srun_exit_code=arguments.srun_exit_code,
    )
    budgets = Budgets(arguments.max_relaunch, arguments.max_requeues)
    try:
        ended = Finish(start, budgets, Slurm(), SystemClock(), _say).run()
    except HpcElasticError as error:
        _say(f"the job is not requeued: {error}")
        if start.is_submitted:
            _say_how_to_go_on(start)
        return ExitCode.FAILED
    if ended.code == ExitCode.RELAUNCH:
        sys.stdout.write(f"{ended.nodes}\n")
        sys.stdout.flush()
    _tell_the_end(ended.state, start)
    return ended.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpc-elastic finish",
        description="Called by the job script after srun: reads the run's records, asks Slurm about the job, "
        "then ends, requeues, or asks for another srun (exit code 80, node count on stdout).",
    )
    parser.add_argument("--run-dir", required=True, help="run directory")
    parser.add_argument("--srun-exit-code", type=int, required=True, metavar="RC", help="exit code of srun")
    parser.add_argument(
        "--relaunch", type=int, default=0, metavar="K", help="how often srun was started again"
    )
    parser.add_argument(
        "--max-relaunch", type=int, default=MAX_RELAUNCH, metavar="N",
        help="how often srun may be started again in one start of the job (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-requeues", type=int, default=MAX_REQUEUES, metavar="N",
        help="how often the job may be requeued (default: %(default)s)",
    )  # fmt: skip
    return parser


def _say(text: str) -> None:
    _print(f"[{clock_text(SystemClock().wall())}] hpc_elastic finish: {text}")


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _tell_the_end(state: RunState, start: Start) -> None:
    """Print, as the last thing in the log, why a run failed or how to take it up again."""
    ending = state.ending
    if ending is None or ending.decision is Decision.DONE:
        return
    if ending.failure is not None:
        from hpc_elastic.multiprocessing.errors import FailureRecord, failure_summary  # noqa: PLC0415 - rare

        _print(failure_summary(start.paths.name, [FailureRecord.from_json(ending.failure)]))
    _say_how_to_go_on(start)


def _say_how_to_go_on(start: Start) -> None:
    paths = start.paths
    if not start.is_submitted and not os.path.exists(paths.identity):  # a user's own script
        _print(f"  another job with this --run-dir goes on from the last checkpoint: {paths.root}")
        return
    command = f"hpc-elastic submit --resume {shlex.quote(paths.root)}"
    _print(f"  to go on from the last checkpoint: {command}")
