"""The command line of ``hpc-elastic run``: torchrun's flags, then ours; on every agent's path."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, NoReturn

from hpc_elastic.argparse_util import check_env, env, value_of, variable_of
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.settings.of_commands import OF_TORCHRUN, OWN
from hpc_elastic.settings.setting import (
    BUDGET,
    INTERVAL,
    LONGEST_S,
    MOST,
    NAMES,
    NUMBER,
    SECONDS,
    SWITCH,
    TEXTS,
    Setting,
    ValueKind,
    flags_of,
)

_COMPLETION: Final = ("--print-completion", "--print_completion")
_SHELLS: Final = ("bash", "zsh", "fish")
_COMMA: Final = "\0"  # stands for a comma that was written twice
_MOST_DIGITS = 100
_MOST_SHOWN = 60


def whole(text: str) -> int:
    """Return the whole number that is the value of a flag.

    Raises:
        argparse.ArgumentTypeError: it is none, or too large to mean anything.
    """
    try:
        number = int(text) if len(text) <= _MOST_DIGITS else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a whole number") from None
    if number is None or abs(number) > MOST:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is no whole number up to {MOST}")
    return number


def seconds(text: str) -> float:
    """Return the seconds that are the value of a flag; infinitely many are for the flag to judge.

    Raises:
        argparse.ArgumentTypeError: it is no number, or longer than 30 years.
    """
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number of seconds") from None
    is_infinite = text.strip().lstrip("+-").isalpha()
    if abs(number) > LONGEST_S and not is_infinite:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is more than {LONGEST_S:g} seconds")
    return number


def comma_list(text: str) -> list[str]:
    """Return the texts of a list joined by commas, in which ``,,`` is a comma of a text."""
    parts = text.replace(",,", _COMMA).split(",")
    return [part.replace(_COMMA, ",") for part in parts if part]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_TYPES: dict[ValueKind[Any], Callable[[str], Any]] = {
    BUDGET: whole,
    NUMBER: whole,
    SECONDS: seconds,
    INTERVAL: seconds,
    TEXTS: comma_list,
}


def add_settings(group: argparse._ArgumentGroup, rows: Iterable[Setting]) -> None:
    """Add the flags of settings that agents read, each in both spellings: with dashes and underscores."""
    for flag in flags_of(rows):
        if flag.kind is SWITCH:
            group.add_argument(*flag.names, dest=flag.dest, action=check_env, help=flag.help)
            continue
        group.add_argument(
            *flag.names,
            dest=flag.dest,
            action=_Names if flag.kind is NAMES else env,
            default=list(flag.default) if flag.kind is TEXTS else flag.default,
            type=_TYPES.get(flag.kind, str),
            metavar=flag.metavar,
            help=flag.help,
        )


class _Names(env):
    """A flag with names, which may be repeated, as that of submit."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _flag: str | None = None,
    ) -> None:
        """Add the names to those given so far, which take the place of the default."""
        had = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if had is self.default else f"{had},{values}")


DESCRIPTION: Final = """\
Run one agent, which starts and supervises the workers of this node. A line that works
with torchrun works here; the differences: docs/coming-from-torchrun.md.
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
    made.add_argument(  # of torch.distributed.launch; it is always so
        "--use-env", "--use_env", dest="use_env", action=check_env, help=argparse.SUPPRESS
    )
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
    for title, rows in OF_TORCHRUN.items():
        add_settings(made.add_argument_group(title), rows)
    made.add_argument(
        *_COMPLETION,
        action=_PrintCompletion,
        dest=argparse.SUPPRESS,
        metavar="|".join(_SHELLS),
        help="Print the completion of a shell",
    )
    made.torchs = {flag for flag in made.known_flags() if flag not in ("-h", "--help")}
    add_settings(made.add_argument_group("beyond torchrun"), OWN)
    made.add_argument("training_script", help="script, module (-m) or program (--no-python)")
    rest = made.add_argument(
        "training_script_args", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments"
    )
    rest.required = False  # else it is named as missing beside the script
    return made


class _PrintCompletion(argparse.Action):
    """Prints the lines for a shell that complete ``hpc-elastic`` and its commands, and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        shell: Any,
        _flag: str | None = None,
    ) -> None:
        """Have the command print them as for ``--show-completion``."""
        if shell not in _SHELLS:
            parser.error(f"argument {_COMPLETION[0]}: {_cut(shell)!r} is none of {', '.join(_SHELLS)}")
        from hpc_elastic.isolated.lookup import argv_here  # noqa: PLC0415 - rare

        argv = ("env", f"_HPC_ELASTIC_COMPLETE=source_{shell}", *argv_here())
        parser.exit(os.spawnvp(os.P_WAIT, argv[0], argv))  # noqa: S606 - a program of ours


class Parser(argparse.ArgumentParser):
    """Names the error first, with the flags that are near, and leaves the long usage to --help.

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
        names, colon, what = message.removeprefix("argument ").partition(": ")
        if colon and message.startswith("argument -"):
            flag = max((name for name in names.split("/") if "_" not in name), key=len, default=names)
            kind = getattr(self._option_string_actions.get(flag), "type", None)
            example = "2" if kind is whole else "30" if kind is seconds else ""
            message = f"{flag}: {what}{source_of(flag)}"
            fix = f"give one number, for example {flag} {example}" if example else fix
        self.exit(ExitCode.USAGE, f"error: {message}\n  fix: {fix}\n")


def source_of(flag: str) -> str:
    """Name the variable that a wrong value comes from if no flag gives it."""
    name = variable_of(flag.lstrip("-").replace("-", "_"))
    given = any(word.partition("=")[0].replace("_", "-") == flag for word in sys.argv)
    return "" if given or value_of(name) is None else f" (from {name})"


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
