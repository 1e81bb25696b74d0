"""Completion of command lines by bash, zsh and fish; imported for a shell alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any, Final

from argcomplete.completers import FilesCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line

from hpc_elastic.cli.arguments import PROGRAM, SHELLS, CommandRow, Offered
from hpc_elastic.cli.commands import COMMANDS, OF_NODES, parser_of_nodes
from hpc_elastic.cli.parser import Parser, completion_script, parser_of
from hpc_elastic.errors import InputError
from hpc_elastic.settings.table import JOB
from hpc_elastic.store.plain_file import OTHERS_WRITE
from hpc_elastic.store.users_file import users_file, write_users_file

_SOURCED: Final = {  # shell -> file of ours, the user's file that reads it, and the line there
    "bash": (f"~/.bash_completions/{PROGRAM}.sh", "~/.bashrc", f"source ~/.bash_completions/{PROGRAM}.sh"),
    "zsh": (f"~/.zfunc/_{PROGRAM}", "~/.zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (f"~/.config/fish/completions/{PROGRAM}.fish", "", ""),
}


def answer(program: Parser) -> None:
    """Give the shell that asks the words that may follow in its line, and end the process.

    Args:
        program: the parser of a line without a command.
    """
    parser = with_commands(program, _asked_words()[1:])
    _Finder()(parser, always_complete_options=False, default_completer=_Files())


def _asked_words() -> list[str]:
    """Return the words before the one that is completed."""
    environ = os.environ  # noqa: TID251 - a shell asks by variables
    words: list[str] = split_line(environ.get("COMP_LINE", ""), int(environ.get("COMP_POINT") or 0))[3]
    return words


def with_commands(program: Parser, words: list[str]) -> Parser:
    """Return the parser of a whole line: the arguments of its command alone are known to it.

    Args:
        program: the parser of a line without a command.
        words: those before the one that is completed, without the program.
    """
    called = next((word for word in words if not word.startswith("-")), "")
    commands: argparse._SubParsersAction[Any] = program.add_subparsers(prog=PROGRAM, parser_class=_Uncalled)
    for name, summary in {**{name: row.summary for name, row in COMMANDS.items()}, **OF_NODES}.items():
        commands.add_parser(name, help=summary)
    if called in COMMANDS or called in OF_NODES:
        made = parser_of_nodes(called) if called in OF_NODES else _offering(called, COMMANDS[called])
        commands.choices[called] = made
    return program


class _Uncalled(Parser):
    """The parser of a command that is not called."""

    def __init__(self, **_words: Any) -> None:
        super().__init__()


def _offering(name: str, command: CommandRow) -> Parser:
    """Return the parser of a command; its arguments know the words that they offer."""
    parser = parser_of(name, command)
    offers: dict[str, Offered | None] = {word.name: word.offers for word in command.words}
    for option in command.options:
        offers[option.name] = option.offers or _fixed(option.kind.choices)
    if command.takes_job:
        offers = {**{row.name: _fixed(row.kind.choices) for row in JOB.values()}, **offers}
    for _, actions in parser.groups():
        for action in actions:
            offered = offers.get(action.dest)
            if offered is not None:
                action.completer = _completer(offered)  # type: ignore[attr-defined]
    return parser


def _fixed(words: tuple[str, ...]) -> Offered | None:
    return (lambda _line: words) if words else None


def _completer(offered: Offered) -> Any:
    def words(parsed_args: argparse.Namespace, **_asked: Any) -> Iterable[str]:
        return offered(parsed_args)

    return words


class _Files(FilesCompleter):
    """Offers files; none to bash, which finds them by itself where nothing is offered."""

    def __call__(self, prefix: str, **asked: Any) -> Any:
        """Return those with a begin."""
        is_bash = os.environ.get("_ARGCOMPLETE_SHELL") == "bash"  # noqa: TID251 - a shell asks by variables
        return [] if is_bash else super().__call__(prefix, **asked)


class _Finder(CompletionFinder):
    """Offers flags in one spelling, and behind ``--`` files alone."""

    def collect_completions(self, active_parsers: Any, parsed_args: Any, cword_prefix: str) -> list[str]:
        """Return the words that may follow."""
        if "--" in _asked_words():
            found = list(_Files()(cword_prefix))
        else:
            found = super().collect_completions(active_parsers, parsed_args, cword_prefix)
        found = [word for word in found if not word.startswith("--") or "_" not in word.partition("=")[0]]
        self._display_completions = {word: self._display_completions.get(word) or "" for word in found}
        return found


def script() -> str:
    """Return the lines for the shell that this process was started from.

    Raises:
        InputError: it is none of those that are known.
    """
    return completion_script(_shell())


def install() -> str:
    """Have the user's shell complete this program from its next start on; return a sentence about it.

    Raises:
        InputError: it is none of those that are known.
        OSError: a file cannot be written.
    """
    shell = _shell()
    own, users, line = _SOURCED[shell]
    path = os.path.expanduser(own)
    umask = os.umask(OTHERS_WRITE)
    os.umask(umask | OTHERS_WRITE)  # a shell runs these files, also where a group may write to all others
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_users_file(path, f"{completion_script(shell)}\n".encode())
        if users:
            _add_line(os.path.expanduser(users), line)
    finally:
        os.umask(umask)
    return f"completion of {shell} is in {path}; it begins with the next start of {shell}"


def _add_line(path: str, line: str) -> None:
    """Add a line to a file of the user's, which need not be there, unless it has that line already."""
    try:
        with users_file(path) as held:
            content, added = held.read(), line.encode()
            if added not in content:
                held.exchange(b"%s\n%s\n" % (content, added))
    except FileNotFoundError:
        write_users_file(path, f"\n{line}\n".encode())


def _shell() -> str:
    """Return the name of the shell that has started this process, or of the user's own.

    Raises:
        InputError: it is none of those that are known.
    """
    asked, pid = os.environ, os.getppid()  # noqa: TID251 - the user's shell
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                before, _, after = file.read().rpartition(")")
        except OSError:
            break
        name = before.partition("(")[2].lstrip("-")
        if name in SHELLS:
            return name
        pid = int(after.split()[1])
    name = os.path.basename(asked.get("SHELL", ""))
    if name in SHELLS:
        return name
    raise InputError(
        f"the shell {name or 'of this terminal'} is not known",
        where="--show-completion",
        fix=f"call it from {', '.join(SHELLS)}",
    )
