"""The parser of all command lines: flags from rows, one form of errors; on every agent's path.

A parser is made for the command that is called, and for no other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from hpc_elastic.argparse_util import check_env, env, value_of, variable_of
from hpc_elastic.cli.arguments import ARGUMENTS, OPTIONS_HEADING, PROGRAM, CommandRow, Option, Word
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import (
    LINES,
    LOCAL_RANKS,
    MODULES,
    NAMES,
    STREAMS,
    SWITCH,
    TABLES,
    TEXTS,
    Setting,
    ValueKind,
    flags_of,
)
from hpc_elastic.settings.values import BadValueError
from hpc_elastic.text import visible_lines

REPEATED: Final = (*TABLES, NAMES, MODULES, LINES)


class _BadFlagError(argparse.ArgumentTypeError):
    """A value that a flag does not take; knows a better one."""

    def __init__(self, error: BadValueError) -> None:
        super().__init__(error.message)
        self.error = error


class FlagValue:
    """Reads the value of a flag.

    Args:
        kind: of the value.
    """

    def __init__(self, kind: ValueKind[Any]) -> None:
        self.kind = kind

    def __call__(self, text: str) -> Any:
        """Return the value.

        Raises:
            argparse.ArgumentTypeError: it cannot be read, or is not allowed.
        """
        try:
            return self.kind.parse(text)
        except BadValueError as error:
            raise _BadFlagError(error) from None


class FlagTexts(FlagValue):
    """Reads the texts of a flag as a list, as torchrun has them."""

    def __call__(self, text: str) -> list[str]:
        """Return the texts."""
        return list(super().__call__(text))


class Slip(NamedTuple):
    """Words that a command does not know.

    Args:
        command: its name.
        unknown: the words.
        words: all of the line behind the command, without those that it takes apart.
        behind: the words behind ``--`` that it takes apart.
        flags: its flags, and whether they take a value.
    """

    command: str
    unknown: Sequence[str]
    words: Sequence[str]
    behind: tuple[str, ...]
    flags: Mapping[str, bool]

    @property
    def flag(self) -> str:
        """The first unknown flag; empty: there are only other words."""
        return next((word.partition("=")[0] for word in self.unknown if word.startswith("-")), "")


LIKE = 0.6
"""How like a flag must be that is proposed, as difflib counts it."""


def near(slip: Slip, cutoff: float = LIKE) -> str:
    """Return the flags of a command that are like an unknown one, as a question; empty if none is."""
    if not slip.flag.startswith("--"):
        return ""
    import difflib  # noqa: PLC0415 - only after a mistake

    flags = [each for each in slip.flags if "_" not in each]
    found = difflib.get_close_matches(slip.flag.replace("_", "-"), flags, n=2, cutoff=cutoff)
    return f"did you mean {' or '.join(found)}?" if found else ""


class Parser(argparse.ArgumentParser):
    """The words of one command; names the error first, then the way on, and leaves the usage to ``--help``.

    Args:
        command: its name; empty for the program itself.
        words: for the line of the usage.

    Attributes:
        torchs: torchrun's flags: an abbreviation that is clear there is clear here.
        behind: the words behind ``--`` that the command takes apart from the others.
        line: the words that it reads.
        row: describes the command; None: its help is that of argparse.
        panels: more entries of the help, by headings.
        advise: returns the words to write in place of unknown ones; empty if these are not known either.
    """

    def __init__(self, command: str = "", words: str = "", **others: Any) -> None:
        prog = f"{PROGRAM} {command}".strip()
        super().__init__(
            prog=prog,
            usage=f"{prog} {words}",
            add_help=False,
            exit_on_error=False,
            **{"allow_abbrev": False, **others},
        )
        self.command = command
        self.torchs: Iterable[str] = ()
        self.behind: tuple[str, ...] = ()
        self.line: Sequence[str] = ()
        self.row: CommandRow | None = None
        self.panels: Mapping[str, Sequence[tuple[str, str]]] = {}
        self.advise: Callable[[Slip], str] = near

    def read_as_torchrun(self) -> None:
        """Have a list where a setting has a tuple, and a text where torchrun reads it behind its parser."""
        for action in self._actions:
            kind = action.type.kind if isinstance(action.type, FlagValue) else None
            if kind in (STREAMS, LOCAL_RANKS):
                action.type = str
            if kind is TEXTS:
                action.type = FlagTexts(TEXTS)
                if isinstance(
                    action.default, tuple
                ):  # else it is the text of a variable, which is read by type
                    action.default = list(action.default)

    def known_flags(self) -> list[str]:
        """Return all spellings of all flags."""
        return list(self._option_string_actions)

    def action_of(self, flag: str) -> argparse.Action | None:
        """Return the action of a flag; None if there is no such flag."""
        return self._option_string_actions.get(flag)

    def groups(self) -> list[tuple[str, list[argparse.Action]]]:
        """Return the arguments that the help shows, by headings."""
        shown = [
            (group.title or "", [one for one in group._group_actions if one.help != argparse.SUPPRESS])  # noqa: SLF001 - argparse has no other way to ask
            for group in self._action_groups
        ]
        return [(title, actions) for title, actions in shown if actions]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the values of words; end the process with exit code 2 at one that is not known."""
        words = sys.argv[1:] if args is None else list(args)
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.refuse(unknown, words)
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the values of words, and those that are not known; errors end as in `parse_args`."""
        self.line = sys.argv[1:] if args is None else list(args)
        with self._told():
            return super().parse_known_args(args, namespace)

    def parse_mixed_args(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the values of words, where flags stand between the words of a list; as `parse_args` else."""
        with self._told():
            found, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.refuse(unknown, words)
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except argparse.ArgumentError as error:
            self._refuse_value(error)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        of_torch = [match for match in found if match[1] in self.torchs]
        by_action = {id(match[0]): match for match in reversed(of_torch or found)}  # dashes go first
        return list(reversed(by_action.values()))

    def _get_formatter(self, *_arguments: Any, **_words: Any) -> argparse.HelpFormatter:
        from hpc_elastic.cli.help_page import RunFormatter  # noqa: PLC0415 - for help alone

        return RunFormatter(self.prog)

    def show_help(self, *, is_whole: bool = False) -> None:
        """Print the help.

        Args:
            is_whole: with all settings of a job.
        """
        from hpc_elastic.cli.help_page import page, show  # noqa: PLC0415 - for help alone

        if self.row is None:
            show(self.format_help().rstrip("\n").split("\n"))
        else:
            show(page(self.row, self.usage or self.prog, self.groups(), self.panels, is_whole=is_whole))

    def error(self, message: str, fix: str = "") -> NoReturn:
        """Print the error and exit with 2.

        Args:
            message: one line.
            fix: the way on; the help, if it is empty.
        """
        text = f"error: {message}\n  fix: {fix or f'see {self.prog} --help'}"
        self.exit(ExitCode.USAGE, f"{visible_lines(text)}\n")

    def refuse(self, unknown: Sequence[str], words: Sequence[str]) -> NoReturn:
        """Print the words that are not known, and those to write instead, and exit with 2.

        Args:
            unknown: the words.
            words: all of the line, without those that the command takes apart.
        """
        flags = {flag: action.nargs != 0 for flag, action in self._option_string_actions.items()}
        slip = Slip(self.command, unknown, words, self.behind, flags)
        self.error(f"unrecognized arguments: {' '.join(unknown)}", self.advise(slip))

    def _refuse_value(self, error: argparse.ArgumentError) -> NoReturn:
        names = (error.argument_name or "").split("/")
        action = self.action_of(names[0])
        if action is None:
            self.error(f"{error.argument_name}: {error.message}" if error.argument_name else error.message)
        flag = max((name for name in names if "_" not in name), key=len, default=names[0])
        value = error.__context__
        fix = value.error.fix if isinstance(value, _BadFlagError) else ""
        if not fix and action.nargs is None and action.metavar is not None:
            fix = f"write {flag} {action.metavar}; see {self.prog} --help"
        source = "" if any(_names_flag(word, names) for word in self.line) else source_of(flag)
        self.error(f"{flag}: {error.message}{source}", fix)


def _names_flag(word: str, names: Iterable[str]) -> bool:
    """Tell whether a word of a line is a flag of these names, or the begin of one, or has its value."""
    name = word.partition("=")[0]
    begins = len(name) > len("--") and name.startswith("--") and any(one.startswith(name) for one in names)
    return name in names or begins or any(len(one) == len("-x") and word.startswith(one) for one in names)


def source_of(flag: str) -> str:
    """Name the variable that a wrong value comes from if no flag gives it."""
    name = variable_of(flag.lstrip("-").replace("-", "_"))
    given = any(word.partition("=")[0].replace("_", "-") == flag for word in sys.argv)
    return "" if given or value_of(name) is None else f" (from {name})"


class _ShowHelp(argparse.Action):
    """A flag that prints the help and ends the process."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, _values: Any, _flag: str | None = None
    ) -> None:
        """Print it."""
        if isinstance(parser, Parser):
            parser.show_help(is_whole=bool(self.const))
        parser.exit()


class _OnOff(argparse.Action):
    """A switch with a flag that says yes and one that says no."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: Any, _values: Any, flag: str | None = None
    ) -> None:
        """Take the one that is given."""
        setattr(namespace, self.dest, flag == self.option_strings[0])


class _Added(env):
    """A flag that may be repeated, as that of submit."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _flag: str | None = None,
    ) -> None:
        """Add the names, or the entries of a table, to those given so far, which replace the default."""
        had = getattr(namespace, self.dest)
        more = values if had is self.default else had | values if isinstance(values, dict) else had + values
        setattr(namespace, self.dest, more)


def add_help(group: argparse._ArgumentGroup, text: str) -> None:
    """Add ``-h`` and ``--help``."""
    group.add_argument(
        "-h", "--help", action=_ShowHelp, nargs=0, dest="help", default=argparse.SUPPRESS, help=text
    )


def add_agent_flags(group: argparse._ArgumentGroup, rows: Iterable[Setting]) -> None:
    """Add the flags of settings that agents read, each in both spellings: with dashes and underscores."""
    for flag in flags_of(rows):
        if flag.kind is SWITCH:
            group.add_argument(*flag.names, dest=flag.dest, action=check_env, help=flag.help)
            continue
        group.add_argument(
            *flag.names,
            dest=flag.dest,
            action=_Added if flag.kind in REPEATED else env,
            default=flag.default,
            type=FlagValue(flag.kind),
            metavar=flag.metavar,
            help=flag.help,
        )


def add_finish_flags(group: argparse._ArgumentGroup, rows: Iterable[Setting]) -> None:
    """Add the flags of settings that ``finish`` reads."""
    for flag in flags_of(rows):
        if flag.kind is SWITCH:
            action = "store_false" if flag.default else "store_true"
            group.add_argument(*flag.names, dest=flag.dest, action=action, help=flag.help)
            continue
        group.add_argument(
            *flag.names,
            required=flag.dest == "run_dir",
            default=flag.default,
            type=FlagValue(flag.kind),
            metavar=flag.metavar,
            help=flag.help,
        )


def completion_script(shell: str) -> str:
    """Return the lines by which a shell asks this program for the words of a line.

    Args:
        shell: one of `SHELLS`.
    """
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - once per user

    text: str = shellcode([PROGRAM], shell=shell)
    return text.strip()


def parser_of(name: str, command: CommandRow) -> Parser:
    """Return the parser of a command that people type; an argument that is not given has no value."""
    places = [f"[{word.metavar}]" if not word.is_needed else word.metavar for word in command.words]
    behind = [f"[-- {command.behind_metavar}]"] if command.behind else []
    made = Parser(name, " ".join(["[OPTIONS]", *places, *behind]), argument_default=argparse.SUPPRESS)
    made.row = command
    arguments, options = made.add_argument_group(ARGUMENTS), made.add_argument_group(OPTIONS_HEADING)
    for word in command.words:
        _add_word(arguments, word)
    for option in command.options:
        _add_option(options, option)
    if command.takes_job:
        options.add_argument(
            "--help-all", action=_ShowHelp, nargs=0, const=True, help="Show all options and exit."
        )
        _add_job_options(made)
    add_help(options, "Show this message and exit.")
    return made


def _add_word(group: argparse._ArgumentGroup, word: Word) -> None:
    nargs = None if word.is_needed else "*" if word.is_list else "?"
    group.add_argument(word.name, nargs=nargs, metavar=word.metavar, help=word.help)


def _add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    names = [*filter(None, [option.short]), option.flag]
    words: dict[str, Any] = {"dest": option.name, "help": option.help}
    if option.off:
        group.add_argument(*names, option.off, action=_OnOff, nargs=0, **words)
    elif option.kind is SWITCH:
        group.add_argument(*names, action="store_true", **words)
    else:
        group.add_argument(
            *names,
            type=FlagValue(option.kind),
            metavar=option.metavar or option.kind.metavar,
            required=option.is_needed,
            **words,
        )


def _add_job_options(made: Parser) -> None:
    """Add an option for each setting of a job, below the headings of the table."""
    from hpc_elastic.settings.table import JOB  # noqa: PLC0415 - for two commands

    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in JOB.values():
        if row.name == "command":  # which stands behind --
            continue
        if row.panel not in groups:
            groups[row.panel] = made.add_argument_group(row.panel)
        group = groups[row.panel]
        names = [*filter(None, [row.written.short]), row.flag]
        if row.is_switch:
            group.add_argument(
                *names, f"--no-{row.flag[2:]}", action=_OnOff, nargs=0, dest=row.name, help=row.help_text()
            )
            continue
        is_repeated = row.kind in REPEATED
        group.add_argument(
            *names,
            action="append" if is_repeated else "store",
            dest=row.name,
            metavar=row.metavar,
            help=f"{row.help_text()} Repeat for more." if is_repeated else row.help_text(),
        )
