"""``hpc-elastic run``: torchrun's command line in front of one agent.

This module is on the path of every agent's start, so it imports nothing it does not need.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpc_elastic.cli import run_options
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.ids import ExitCode


def main(argv: Sequence[str]) -> int:
    """Run one agent and return the exit code of the process."""
    args = parser().parse_args(argv)
    try:
        from hpc_elastic.launch import run_agent  # noqa: PLC0415 - usage errors need none of it

        options, slurm = run_options.resolve(args, os.environ)
        is_first = slurm is None or options.node in slurm.node_names[:1]
        if is_first and run_options.names_own_dir(args, os.environ):
            print(f"run directory: {options.paths.root}", file=sys.stderr)  # noqa: T201
        return run_agent(options, slurm)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.USAGE
    except HpcElasticError as error:  # not the user's: another start may do better
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return ExitCode.FAILED


class _Parser(argparse.ArgumentParser):
    """Says what is wrong first, with the flags that are near, and leaves the long usage to --help."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        unknown = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        fix = f"see {self.prog} --help"
        if unknown and message.startswith("unrecognized"):
            import difflib  # noqa: PLC0415 - only after a mistake

            flags = [flag for flag in self._option_string_actions if "_" not in flag]
            near = difflib.get_close_matches(unknown[0].replace("_", "-"), flags, n=2)
            fix = f"did you mean {' or '.join(near)}?" if near else fix
        self.exit(ExitCode.USAGE, f"error: {message}\n  fix: {fix}\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line: torchrun's flags first, ours after them."""
    made = _Parser(
        prog="hpc-elastic run",
        description="Run one agent, which starts and supervises the workers of this node.",
        epilog="One agent per node: under Slurm start it with srun --ntasks-per-node=1.",
        formatter_class=_formatter,
    )
    _add_torchrun_flags(made)
    _add_own_flags(made)
    made.add_argument(
        "training_script", help="script, module (-m) or program (--no-python) that a worker runs"
    )
    rest = made.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")
    rest.required = False  # else it is named as missing beside the script
    return made


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Format help for a fixed width: asking the terminal for its own imports 8 ms worth of modules."""
    return argparse.RawDescriptionHelpFormatter(prog, width=100)


def _flag(made: argparse._ActionsContainer, name: str, **options: object) -> None:
    """Add a flag in both spellings, with dashes and with underscores; PET_<NAME> sets its default."""
    dest = name.lstrip("-").replace("-", "_")
    spelled = f"PET_{dest.upper()}"
    names = list(dict.fromkeys((name, "--" + dest)))
    default = os.environ.get(spelled, options.pop("default", None))
    if options.get("action") == "store_true":
        default = str(default) in ("1", "True", "true")
    made.add_argument(*names, dest=dest, default=default, **options)  # type: ignore[arg-type]


def _add_torchrun_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("as in torchrun")
    _flag(group, "--nnodes", metavar="N|MIN:MAX", help="nodes; under Slurm the step's nodes")
    _flag(
        group, "--nproc-per-node", metavar="N|auto|gpu|cpu", help="workers per node; under Slurm one per GPU"
    )
    _flag(group, "--max-restarts", type=int, default=0, metavar="N", help="restarts of the run after a crash")
    _flag(group, "--rdzv-backend", default="shared_fs", help="shared_fs: the run directory; static: one node")
    _flag(group, "--rdzv-endpoint", default="", metavar="DIR", help="directory below which runs live")
    _flag(group, "--rdzv-id", default="", metavar="ID", help="id of the run")
    _flag(
        group, "--rdzv-conf", default="", metavar="K=V,...", help="join_timeout, last_call_timeout, lease ..."
    )
    _flag(group, "--standalone", action="store_true", help="one node, by itself")
    _flag(group, "--role", default="default_role", help="name of what the workers do")
    _flag(group, "--log-dir", metavar="DIR", help="where logs go; default: in the run directory")
    group.add_argument(
        "-r", "--redirects", default=os.environ.get("PET_REDIRECTS", "0"), help="0-3 or RANK:N,..."
    )
    group.add_argument("-t", "--tee", default=os.environ.get("PET_TEE", "0"), help="0-3 or RANK:N,...")
    _flag(group, "--local-ranks-filter", default="", metavar="R,R", help="show only these local ranks")
    _flag(group, "--local-addr", metavar="ADDR", help="address of this node for the others")
    _flag(group, "--master-addr", metavar="ADDR", help="fixed address of the workers' process group")
    _flag(group, "--master-port", type=int, metavar="PORT", help="fixed port; default: a free one per round")
    _flag(group, "--node-rank", type=int, metavar="N", help="place of this node if Slurm does not tell")
    _flag(group, "--shutdown-timeout", type=float, default=30.0, metavar="S", help="SIGTERM to SIGKILL")
    _flag(group, "--monitor-interval", type=float, default=0.1, help="accepted; exits are seen at once")
    _flag(group, "--start-method", default="spawn", help="accepted; commands are executed")
    group.add_argument("-m", "--module", action="store_true", help="the script is a Python module")
    _flag(group, "--no-python", action="store_true", help="the script is a program of its own")


def _add_own_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("beyond torchrun")
    _flag(group, "--run-dir", metavar="DIR", help="the run directory, on a file system all nodes share")
    _flag(group, "--container", default="", metavar="PREFIX", help="put before each worker's command")
    _flag(group, "--join-timeout", type=float, metavar="S", help="wait for enough nodes (600)")
    _flag(group, "--last-call-timeout", type=float, metavar="S", help="wait for more than the minimum (30)")
    _flag(group, "--heartbeat-interval", type=float, metavar="S", help="(1)")
    _flag(group, "--lease", type=float, metavar="S", help="a node that is silent so long is lost (4)")
    _flag(group, "--exit-barrier-timeout", type=float, default=300.0, metavar="S", help="(300)")
    _flag(
        group, "--stop-timeout", type=float, default=25.0, metavar="S", help="time to save after SIGTERM (25)"
    )
    _flag(
        group,
        "--warn-timeout",
        type=float,
        default=90.0,
        metavar="S",
        help="time to save after a warning (90)",
    )
    _flag(
        group, "--drain-signals", default="TERM,HUP", metavar="SIG,..", help="the nodes are wanted back now"
    )
    _flag(group, "--warning-signals", default="USR1,USR2", metavar="SIG,..", help="the time limit is near")
    _flag(
        group, "--log-line-prefix-template", default="[rank ${rank}] ", metavar="TEXT", help="console prefix"
    )
