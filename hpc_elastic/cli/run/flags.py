"""The flags of ``hpc-elastic run``: torchrun's first, ours after them; on every agent's path."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NoReturn

from hpc_elastic.argparse_util import value_of, variable_of
from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.cli.run.own_flags import add_own_flags
from hpc_elastic.ids import ExitCode

DESCRIPTION: Final = """\
Run one agent, which starts and supervises the workers of this node. A line that works
with torchrun works here; what differs: docs/coming-from-torchrun.md.
One agent per node: under Slurm start it with srun --ntasks-per-node=1.

Flags can be written with underscores, too. PET_<NAME> in the environment sets a flag's
default: PET_NPROC_PER_NODE=4, PET_STANDALONE=1."""

EPILOG: Final = """\
where the nodes meet: in --run-dir (or HPC_ELASTIC_RUN_DIR); else in --rdzv-endpoint if
  that is a directory; else below ./hpc_elastic_runs, in a directory named by --rdzv-id
  and host and port, or by the Slurm job. No server is run and no host is special.
signals: TERM, HUP, QUIT, INT and whatever else --signals-to-handle names: save and leave
  within --stop-timeout, a second INT ends the workers at once; USR1, USR2: within
  --warn-timeout. Below nohup HUP is ignored. Workers are asked by
  hpc_elastic.worker.should_stop, those that do not ask get SIGTERM.
OMP_NUM_THREADS, if it is not set, is the CPUs of this process divided by its workers.
exit codes: 0 done; the failed worker's own code, 128+n if signal n ended it; 2 wrong flags;
  128+n left for signal n (75 below a job script of ours); 76 the run failed for another
  reason; 77 a newer start of this run exists; 78 workers hang in the kernel; 79 this node
  is unfit and stays out; 83 the workers hung once too often."""

_COMMA: Final = "\0"  # stands for a comma that was written twice


def parser() -> Parser:
    """Return the command line; flags that are not given are None where the surroundings decide."""
    made = torchs_parser()
    # of torch.distributed.launch; it is always so
    FlagGroup(made.add_argument_group()).switch("--use-env", help=argparse.SUPPRESS)
    return made


def torchs_parser() -> Parser:
    """Return the same without the flags of torch.distributed.launch, whose users add them."""
    made = Parser(
        prog="hpc-elastic run",
        usage="hpc-elastic run [FLAG ...] training_script [ARGUMENT ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_Formatter,
    )
    _add_size_flags(FlagGroup(made.add_argument_group("how many (as in torchrun)")))
    _add_rendezvous_flags(FlagGroup(made.add_argument_group("how the nodes meet (as in torchrun)")))
    _add_worker_flags(FlagGroup(made.add_argument_group("what a worker is (as in torchrun)")))
    _add_log_flags(FlagGroup(made.add_argument_group("logs (as in torchrun)")))
    _add_end_flags(FlagGroup(made.add_argument_group("signals and events (as in torchrun)")))
    made.torchs = {flag for flag in made.known_flags() if flag not in ("-h", "--help")}
    own = FlagGroup(made.add_argument_group("beyond torchrun"))
    add_own_flags(own)
    made.add_argument("training_script", help="script, module (-m) or program (--no-python)")
    rest = made.add_argument(
        "training_script_args", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments"
    )
    rest.required = False  # else it is named as missing beside the script
    return made


def comma_list(text: str) -> list[str]:
    """Return the texts of a list joined by commas, in which ``,,`` is a comma of a text."""
    parts = text.replace(",,", _COMMA).split(",")
    return [part.replace(_COMMA, ",") for part in parts if part]


def _add_size_flags(flags: FlagGroup) -> None:
    flags.add("--nnodes", metavar="N|MIN:MAX", help="nodes (default: 1; under Slurm those of the step)")
    flags.add(
        "--nproc-per-node",
        metavar="N|auto|gpu|cpu",
        help="workers per node; auto: one per GPU, else one per CPU (default: 1; under Slurm one per GPU)",
    )
    flags.add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="restarts after a worker's failure, of the whole run; a lost node costs none (default: 0)",
    )
    flags.switch("--standalone", help="one node by itself; other --rdzv flags and --nnodes are not looked at")


def _add_rendezvous_flags(flags: FlagGroup) -> None:
    flags.add(
        "--rdzv-backend",
        default="static",
        metavar="NAME",
        help="static, c10d, etcd, etcd-v2, shared_fs: all meet in a directory; with c10d and etcd "
        "--master-addr and --master-port are not used, as in torchrun (default: static)",
    )
    flags.add(
        "--rdzv-endpoint",
        default="",
        metavar="DIR|HOST:PORT",
        help="directory below which runs live; of a host only the name is used (default: none)",
    )
    flags.add("--rdzv-id", default="none", metavar="ID", help="id of the run (default: none)")
    flags.add(
        "--rdzv-conf",
        default="",
        metavar="K=V,...",
        help="join_timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt, lease; "
        "torch's others are accepted and not needed (default: none)",
    )
    flags.add(
        "--node-rank",
        type=int,
        metavar="N",
        help="place of this node, with any backend; Slurm's order goes first (default: by host name)",
    )
    flags.add(
        "--master-addr", metavar="ADDR", help="fixed MASTER_ADDR of the workers (default: rank 0's node)"
    )
    flags.add(
        "--master-port", type=int, metavar="PORT", help="fixed MASTER_PORT (default: a free one per round)"
    )
    flags.add("--local-addr", metavar="ADDR", help="address of this node for the others (default: its name)")


def _add_worker_flags(flags: FlagGroup) -> None:
    flags.switch("-m", "--module", help="the script is a Python module, as in python -m")
    flags.switch("--no-python", help="the script is a program of its own")
    flags.switch(
        "--run-path", help="run the script in fresh interpreters by runpy; an exception leaves its traceback"
    )
    flags.add("--role", default="default", metavar="NAME", help="ROLE_NAME of the workers (default: default)")
    flags.add(
        "--start-method",
        default="spawn",
        metavar="spawn|fork|forkserver",
        help="how interpreters of --run-path start (default: spawn)",
    )
    flags.add(
        "--numa-binding",
        metavar="node|socket|exclusive|core-complex",
        help="bind workers to the CPUs near their GPU (default: no binding)",
    )
    flags.switch(
        "--virtual-local-rank", help="LOCAL_RANK is 0 for all; each worker sees its GPU alone, as device 0"
    )
    flags.add(
        "--monitor-interval",
        type=float,
        default=0.1,
        metavar="S",
        help="accepted; exits are seen at once (default: 0.1)",
    )


def _add_log_flags(flags: FlagGroup) -> None:
    flags.add(
        "--log-dir",
        metavar="DIR",
        help="logs in DIR/<run>/attempt_<round>/<rank> (default: logs/ in the run directory)",
    )
    streams = "0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,... (default: 0)"
    flags.add("-r", "--redirects", default="0", metavar="N", help=f"streams that go to log files: {streams}")
    flags.add(
        "-t",
        "--tee",
        default="0",
        metavar="N",
        help="streams that go to log files and the console (default: 0)",
    )
    flags.add(
        "--local-ranks-filter", default="", metavar="R,R", help="show only these local ranks (default: all)"
    )
    for name in ("stdout", "stderr"):
        flags.add(
            f"--duplicate-{name}-filters",
            type=comma_list,
            default=[],
            metavar="TEXT,...",
            help=f"teed lines with one of these texts also go to filtered_{name}.log; ,, is a comma "
            "(default: none)",
        )
    flags.add(
        "--logs-specs",
        metavar="NAME",
        help="log specs of an installed package, entry point group torchrun.logs_specs (default: ours)",
    )


def _add_end_flags(flags: FlagGroup) -> None:
    flags.add(
        "--signals-to-handle",
        metavar="SIG,...",
        help="signals that end the run in order; one of the default that is left out kills the agent, and "
        "its workers with it (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )
    flags.add(
        "--shutdown-timeout",
        type=float,
        metavar="S",
        help="from SIGTERM to SIGKILL of workers (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
    )
    flags.add("--event-log-handler", default="null", metavar="NAME", help="where events go (default: null)")


class Parser(argparse.ArgumentParser):
    """Says what is wrong first, with the flags that are near, and leaves the long usage to --help.

    Attributes:
        torchs: torchrun's flags: an abbreviation that is clear there is clear here.
    """

    torchs: Iterable[str] = ()

    def known_flags(self) -> list[str]:
        """Return all spellings of all flags."""
        return list(self._option_string_actions)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        of_torch = [match for match in found if match[1] in self.torchs]
        by_action = {id(match[0]): match for match in reversed(of_torch or found)}  # dashes go first
        return list(reversed(by_action.values()))

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        unknown = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        fix = f"see {self.prog} --help"
        if unknown and message.startswith("unrecognized"):
            import difflib  # noqa: PLC0415 - only after a mistake

            flags = [flag for flag in self.known_flags() if "_" not in flag]
            near = difflib.get_close_matches(unknown[0].replace("_", "-"), flags, n=2)
            fix = f"did you mean {' or '.join(near)}?" if near else fix
        self.exit(ExitCode.USAGE, f"error: {self._with_place(message)}\n  fix: {fix}\n")

    def _with_place(self, message: str) -> str:
        """Name the variable that a wrong value comes from if no flag gives it."""
        flag = message.removeprefix("argument ").partition(":")[0].rpartition("/")[2]
        name = variable_of(flag.lstrip("-").replace("-", "_"))
        given = any(word.partition("=")[0].replace("_", "-") == flag.replace("_", "-") for word in sys.argv)
        return message if given or value_of(name) is None else f"{message} (from {name})"


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows each flag in one spelling, within the width of the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        shown = ", ".join(name for name in action.option_strings if "_" not in name)
        return f"{shown} {action.metavar}" if action.nargs != 0 else shown


@lru_cache(maxsize=1)
def _columns() -> int:
    """Return the width of help; the standard library's way imports 8 ms worth of modules for it."""
    try:
        return max(60, min(100, os.get_terminal_size(1).columns - 1))
    except OSError:
        return 98
