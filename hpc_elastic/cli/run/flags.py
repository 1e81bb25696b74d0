"""The command line of ``hpc-elastic run``: torchrun's flags, then ours; on every agent's path."""

from __future__ import annotations

import argparse
from typing import Any, Final

from hpc_elastic.argparse_util import check_env
from hpc_elastic.cli.arguments import SHELLS
from hpc_elastic.cli.parser import Parser, add_agent_flags, add_help, completion_script
from hpc_elastic.settings.of_commands import OF_TORCHRUN, OWN

DESCRIPTION: Final = """\
Run one agent, which starts and supervises the workers of this node. A line that works
with torchrun works here; the differences: hpc-elastic help coming-from-torchrun.
One agent per node: under Slurm start it with srun --ntasks-per-node=1.

Flags can be written with underscores, too. PET_<NAME> in the environment sets a flag's
default: PET_NPROC_PER_NODE=4, PET_STANDALONE=1."""

EPILOG: Final = """\
where the nodes meet: in --run-dir (or HPC_ELASTIC_RUN_DIR); else in --rdzv-endpoint if
  that is a directory; else below ./hpc_elastic_runs, in a directory named by --rdzv-id
  and host and port, or by the Slurm job. No server is run and no host is special.
signals: TERM, HUP, QUIT, INT and the others of --signals-to-handle: save and leave
  within --stop-timeout, a second INT ends the workers at once; USR1, USR2: within
  --warn-timeout. Below nohup HUP is ignored. Workers are asked by
  hpc_elastic.worker.should_stop, those that do not ask get SIGTERM.
OMP_NUM_THREADS, if it is not set, is the CPUs of this process divided by its workers.
exit codes: 0 done; the failed worker's own code, 128+n if signal n ended it; 2 wrong flags;
  128+n left for signal n (75 below a job script of ours); 76 the run failed for another
  reason; 77 a newer start of this run exists; 78 workers hang in the kernel; 79 this node
  is unfit and stays out; 83 the workers hung once too often."""


def parser() -> Parser:
    """Return the command line; flags that are not given are None where the surroundings decide."""
    made = torchs_parser()
    made.add_argument_group().add_argument(  # of torch.distributed.launch; it is always so
        "--use-env", "--use_env", dest="use_env", action=check_env, help=argparse.SUPPRESS
    )
    return made


def torchs_parser() -> Parser:
    """Return the same without the flags of torch.distributed.launch, whose users add them."""
    made = Parser(
        "run",
        "[FLAG ...] training_script [ARGUMENT ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=True,
    )
    script = made.add_argument_group("positional arguments")
    options = made.add_argument_group("options")
    add_help(options, "show this help message and exit")
    for title, rows in OF_TORCHRUN.items():
        add_agent_flags(made.add_argument_group(title), rows)
    options.add_argument(
        "--print-completion",
        "--print_completion",
        action=_PrintCompletion,
        dest=argparse.SUPPRESS,
        metavar="|".join(SHELLS),
        help="print the completion of a shell",
    )
    made.torchs = {flag for flag in made.known_flags() if flag not in ("-h", "--help")}
    add_agent_flags(made.add_argument_group("beyond torchrun"), OWN)
    script.add_argument("training_script", help="script, module (-m) or program (--no-python)")
    rest = script.add_argument(
        "training_script_args", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments"
    )
    rest.required = False  # else it is named as missing beside the script
    return made


class _PrintCompletion(argparse.Action):
    """Prints the lines for a shell that complete ``hpc-elastic`` and its commands, and ends."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, _flag: str | None = None
    ) -> None:
        """Print them, as ``--show-completion``."""
        if shell not in SHELLS:
            raise argparse.ArgumentError(self, f"{shell!r} is none of {', '.join(SHELLS)}")
        from hpc_elastic.cli.say import say  # noqa: PLC0415 - rare

        say(completion_script(shell))
        parser.exit()
