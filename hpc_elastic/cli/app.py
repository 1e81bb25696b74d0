"""The commands of the command line: the call of one, and the message of an error."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from hpc_elastic.cli.arguments import OPTIONS_HEADING, CommandRow
from hpc_elastic.cli.commands import BY_SCRIPTS, COMMANDS, OF_NODES, function_of, parser_of_nodes
from hpc_elastic.cli.parser import Parser, Slip, add_help, parser_of
from hpc_elastic.cli.say import complain, hand_out, named, say
from hpc_elastic.errors import HpcElasticError, InputError, SlurmCommandError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.lazy_names import no_look_for_garbage

_PROGRAM_ROW = CommandRow(
    "",
    "",
    "Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss.",
    details="Begin with: hpc-elastic submit --nodes 2 --gpus-per-node 8 --exclusive --time 4h -- train.py",
)
_INSTALL, _SHOW = "--install-completion", "--show-completion"


def run(words: Sequence[str]) -> int:
    """Run a command and return its exit code.

    Args:
        words: the arguments; those after the first ``--`` are the worker command of a command that takes one.
    """
    try:
        with named("RUN"):
            code = _call(words)
    except HpcElasticError as error:
        return complain(str(error), _hint_for(error))
    except KeyboardInterrupt:
        say("\ninterrupted", err=True)
        return 130
    except SystemExit as stop:  # the help, or an error of the parser
        return stop.code if isinstance(stop.code, int) else ExitCode.OK
    except OSError as error:
        return _os_error(error)
    return code


def _call(words: Sequence[str]) -> int:
    name, *rest = words or [""]
    if name not in COMMANDS:
        return _call_program(words)
    values = values_of(name, rest)
    with no_look_for_garbage():
        function = function_of(name)
    code = function(**values)
    return code if isinstance(code, int) else ExitCode.OK


def values_of(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values that words give to the parameters of a command; those not given have no value.

    Args:
        name: of the command.
        words: those behind the name.

    Raises:
        InputError: an option of a job has no value that it could have.
        SystemExit: the words are none of the command's, or ask for its help.
    """
    command = COMMANDS[name]
    parser = parser_of(name, command)
    parser.advise = _advice
    if command.takes_line and not (words and words[0] in ("-h", "--help")):
        return {"line": tuple(words)}
    mine = list(words)
    if command.takes_job and (own := _behind_script(parser, mine)) is not None:
        _refuse_late_options(parser, own)
        mine, parser.behind = mine[: len(mine) - len(own)], tuple(own[own[:1] == ["--"] :])
    elif command.behind and "--" in mine:
        at = mine.index("--")
        mine, parser.behind = mine[:at], tuple(mine[at + 1 :])
    mine = joined(parser, mine)
    has_list = any(word.is_list for word in command.words)
    values = vars(parser.parse_mixed_args(mine) if has_list else parser.parse_args(mine))
    if command.takes_job:
        from hpc_elastic.cli.job_options import with_fields  # noqa: PLC0415 - heavy; for two commands

        values = with_fields(values)
    return {**values, command.behind: parser.behind} if command.behind else values


def _behind_script(parser: Parser, words: Sequence[str]) -> list[str] | None:
    """Return the words behind a job script, which are its own as with sbatch; None: there is none."""
    from hpc_elastic.slurm.job.own_script_file import is_job_script  # noqa: PLC0415 - for two commands

    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("-"):
            return rest if is_job_script(word) else None
        action = parser.action_of(word)
        if action is not None and action.nargs is None:
            del rest[:1]
    return None


def _refuse_late_options(parser: Parser, words: Sequence[str]) -> None:
    """Refuse options of the command behind a job script, which would get them; ``--`` before them allows it.

    Raises:
        InputError: naming the first one.
    """
    for word in takewhile(lambda word: word != "--", words):
        flag = word.partition("=")[0]
        if flag.startswith("--") and parser.action_of(flag) is not None:
            raise InputError(
                f"{flag} is an option of this command, and stands behind the job script, which would get it",
                where=flag,
                fix="write it before the job script; if it is for the script, write -- before the script's "
                "arguments",
            )


def joined(parser: Parser, words: Sequence[str]) -> list[str]:
    """Return words with the values that begin with a dash joined to their flags: ``--grep=-x``.

    A word that is itself a flag of the command is no value.
    """
    done: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        action = parser.action_of(word)
        takes_value = action is not None and action.nargs is None
        if word == "--":
            return [*done, word, *rest]
        if takes_value and rest and rest[0][:1] == "-" and rest[0] not in ("-", "--"):
            if parser.action_of(rest[0].partition("=")[0]) is None:
                word = f"{word}={rest.pop(0)}" if word.startswith("--") else word + rest.pop(0)
        elif takes_value and rest:
            done.append(word)
            word = rest.pop(0)
        done.append(word)
    return done


def _call_program(words: Sequence[str]) -> int:
    """Answer a line that begins with no command."""
    parser = program_parser()
    if not words and "_ARGCOMPLETE" in os.environ:  # noqa: TID251 - a shell asks by variables
        from hpc_elastic.cli.completion import answer  # noqa: PLC0415 - as above

        answer(parser)
    if not words:
        parser.show_help()
        return ExitCode.USAGE  # nothing was asked for
    if words[0] == "help":
        return _help(parser, words[1:])
    if not words[0].startswith("-"):
        return _unknown_command(words)
    found, unknown = parser.parse_known_args(words)
    given = vars(found)
    if given.get("version"):
        function_of("version")()
        return ExitCode.OK
    if unknown:
        parser.refuse(unknown, words)
    from hpc_elastic.cli.completion import install, script  # noqa: PLC0415 - once per user

    say(script() if given.get("show_completion") else install())
    return ExitCode.OK


def program_parser() -> Parser:
    """Return the parser of a line without a command."""
    parser = Parser(words="[OPTIONS] COMMAND [ARGS]...", argument_default=argparse.SUPPRESS)
    parser.row = _PROGRAM_ROW
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, row in COMMANDS.items():
        panels.setdefault(row.panel, []).append((name, row.summary))
    parser.panels = {**panels, BY_SCRIPTS: list(OF_NODES.items())}
    group = parser.add_argument_group(OPTIONS_HEADING)
    group.add_argument("--version", action="store_true", help="Print the version.")
    group.add_argument(_INSTALL, action="store_true", help="Install completion for the current shell.")
    group.add_argument(
        _SHOW, action="store_true", help="Show completion for the current shell, to copy it or change it."
    )
    add_help(group, "Show this message and exit.")
    return parser


def _parser_of(name: str) -> Parser:
    return parser_of_nodes(name) if name in OF_NODES else parser_of(name, COMMANDS[name])


def _advice(slip: Slip) -> str:
    from hpc_elastic.cli.usage import advice_on  # noqa: PLC0415 - only after a mistake

    return advice_on(slip)


def _unknown_command(words: Sequence[str]) -> int:
    from hpc_elastic.cli.usage import advice_on_command  # noqa: PLC0415 - only after a mistake

    return complain(f"No such command '{words[0]}'.", advice_on_command(words))


def _help(program: Parser, words: Sequence[str]) -> int:
    """Print the help of a command, the entry of one of its options, or a page of the documentation.

    Args:
        program: the parser of the program.
        words: the name of the command and an option, both optional; or that of a page.
    """
    from hpc_elastic.cli.help_page import entry_of  # noqa: PLC0415 - for help alone

    name = next((word for word in words if not word.startswith("-") and word != "help"), "")
    flag = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    if name and name not in OF_NODES and name not in COMMANDS:
        return _page(name)
    parser = _parser_of(name) if name else program
    action = parser.action_of(flag) if name else None
    if action is None:
        parser.show_help()
        return ExitCode.OK
    shown, text = entry_of(action)
    every = "--help-all" if parser.row is not None and parser.row.takes_job else "--help"
    say(f"{shown}\n  {text}\n\nall options: {parser.prog} {every}")
    return ExitCode.OK


def _page(name: str) -> int:
    """Print a page of the documentation, or the names of all."""
    from hpc_elastic.cli import pages  # noqa: PLC0415 - for help alone

    text = pages.text_of(name)
    if text is None:
        from hpc_elastic.cli.usage import advice_on_page  # noqa: PLC0415 - only after a mistake

        return complain(f"No such command or page '{name}'.", advice_on_page(name))
    hand_out(text)
    return ExitCode.OK


def _hint_for(error: HpcElasticError) -> str:
    if not isinstance(error, SlurmCommandError):
        return ""
    from hpc_elastic.slurm.client.commands import hint_for  # noqa: PLC0415 - only for an error

    return hint_for(error)


def _os_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):  # as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return complain("the working directory does not exist any more", "cd to a directory that exists")
    return complain(f"{error.filename or 'a file'}: {error.strerror or error}", "look at the file system")


def _is_nowhere() -> bool:
    """Tell whether the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
