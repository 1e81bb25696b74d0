"""The arguments of a command as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import SWITCH, ValueKind

PROGRAM: Final = "hpc-elastic"
SHELLS: Final = ("bash", "zsh", "fish")
"""The shells that complete a line."""
ARGUMENTS: Final = "Arguments"
"""The heading of arguments that are given by their place."""
OPTIONS_HEADING: Final = "Options"
"""The heading of the options that are no settings of a job."""
Offered = Callable[
    [Any], Sequence[str]
]  # gets the arguments of the line so far, returns the words that a shell offers


class Word(NamedTuple):
    """An argument that is given by its place.

    Args:
        name: of the parameter of the command's function.
        metavar: its name in the help.
        help: one sentence.
        is_needed: whether the command refuses to go without it.
        is_list: whether it takes all such words.
        offers: the words that a shell offers; None: files.
    """

    name: str
    metavar: str
    help: str
    is_needed: bool = False
    is_list: bool = False
    offers: Offered | None = None


class Option(NamedTuple):
    """An argument that is given by its flag.

    Args:
        name: of the parameter of the command's function; its flag has dashes.
        help: one sentence.
        kind: how a value is written; a switch takes none.
        metavar: the name of its value in the help; empty: that of the kind.
        short: a flag of one letter.
        off: the flag that says no to a switch; empty: there is none.
        is_needed: whether the command refuses to go without it.
        offers: the values that a shell offers; None: those of the kind, else files.
    """

    name: str
    help: str
    kind: ValueKind[Any] = SWITCH
    metavar: str = ""
    short: str = ""
    off: str = ""
    is_needed: bool = False
    offers: Offered | None = None

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.name.replace("_", "-")


class CommandRow(NamedTuple):
    """A command; its function has its name, and a parameter for each of its arguments.

    Args:
        module: of the function, in `hpc_elastic.cli.commands`.
        panel: where the help shows it.
        summary: one sentence.
        words: the arguments that are given by their place.
        options: the others.
        details: more paragraphs of its help, with an empty line between two.
        takes_job: it has the options that describe a job, too; they arrive in the parameter ``given``.
        behind: the parameter that takes the words behind ``--``; empty: they are words like others.
        behind_metavar: their name in the help.
        takes_line: all words are those of another program; they arrive in the parameter ``line``.
    """

    module: str
    panel: str
    summary: str
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()
    details: str = ""
    takes_job: bool = False
    behind: str = ""
    behind_metavar: str = ""
    takes_line: bool = False
