"""A setting: one row of a table. Pure.

A row is the value of a class attribute. A type checker takes it for a value of the setting: so it knows the
fields of all that is made from the class, and an agent reads the row without pydantic.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

T = TypeVar("T")
MOST = 10**12  # of anything that is counted
LONGEST_S = 1e9  # 31 years: no process everywhere can wait for longer


class Bounds(NamedTuple):
    """Which numbers are allowed."""

    least: float | None = None
    is_least_allowed: bool = True

    @property
    def is_positive(self) -> bool:
        """Whether the number must be more than zero."""
        return self.least == 0 and not self.is_least_allowed


ANY = Bounds()
AT_LEAST_0 = Bounds(0)
AT_LEAST_1 = Bounds(1)
POSITIVE = Bounds(0, is_least_allowed=False)


class ValueKind(Generic[T]):
    """How the values of a setting are written.

    Args:
        says: the values, for people.
        metavar: stands for a value in help.
        of_agent: the same for the flag of an agent, where it is written otherwise: in seconds alone.
        bounds: of a number.
        choices: the only words that are allowed; empty for any.
    """

    __slots__ = ("bounds", "choices", "metavar", "of_agent", "says")

    def __init__(
        self,
        says: str,
        metavar: str,
        of_agent: str = "",
        bounds: Bounds = ANY,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.says = says
        self.metavar = metavar
        self.of_agent = of_agent or metavar
        self.bounds = bounds
        self.choices = choices


def choice(*words: str) -> ValueKind[Any]:
    """Return the kind of a setting that is one of some words."""
    return ValueKind(", ".join(f"`{word}`" for word in words), "|".join(words), choices=words)


class Agent(NamedTuple):
    """The agent reads it, as a flag of ``hpc-elastic run``."""

    default: Any = ...
    """Where nothing is given; `...`: as in a job."""
    is_unset: bool = False
    """Whether the agent must know that nothing is given, as something else may decide then."""
    short: str = ""
    """A flag of one letter."""


class Sbatch(NamedTuple):
    """Slurm reads it, as an option of sbatch."""

    option: str


class FinishFlag(NamedTuple):
    """``hpc-elastic finish`` reads it at the end of the job script."""

    default: Any = ...
    """Where nothing is given; `...`: as in a job."""


class Written(NamedTuple):
    """The spellings of a setting that do not follow from its name and kind."""

    short: str = ""
    """An option of one letter, of the commands that make a job script."""
    metavar: str = ""
    default: str = ""
    """The default, for people, where it is no plain value."""


AS_NAMED = Written()


class Setting(NamedTuple):
    """One row of a table; `setting` makes it, `rows_of` fills in the name.

    Attributes:
        usual: the value where nothing is given and `default` is None; the reader has the same one.
        to: its readers beside the commands that make a job script.
        panel: the heading under which help shows it.
    """

    kind: ValueKind[Any]
    default: Any
    help: str
    usual: Any = None
    to: Agent | Sbatch | FinishFlag | None = None
    written: Written = AS_NAMED
    name: str = ""
    panel: str = ""

    @property
    def flag(self) -> str:
        """The long option on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def reader_flag(self) -> str:
        """The long option of ``run`` or ``finish``; a switch that is on unless it is given says no."""
        return f"--no-{self.flag[2:]}" if self.is_switch and self.reader_default else self.flag

    @property
    def is_switch(self) -> bool:
        """Whether its option takes no value."""
        return self.kind is SWITCH

    @property
    def holds(self) -> Any:
        """The value in a job in which nothing is given; None: no fixed value."""
        return self.usual if self.default is None else self.default

    @property
    def reader_default(self) -> Any:
        """The value of the agent or ``finish`` where its flag is not given; None: no fixed value."""
        default = getattr(self.to, "default", ...)
        return self.holds if default is ... else default

    def help_text(self) -> str:
        """Return its help for a command that makes a job script."""
        default = self.default_text()
        return f"{self.help}. Default: {default}." if default else f"{self.help}."

    def reader_help(self) -> str:
        """Return its help for ``run`` or ``finish``, where times are seconds."""
        text = self.help[0].lower() + self.help[1:] if self.help[1:2].islower() else self.help
        if self.is_switch and self.reader_default:
            return f"do not {text}"
        default = self.written.default or _value_text(self.reader_default, _number_text)
        if not default and isinstance(self.to, Agent) and not self.is_switch:
            default = "none"
        return f"{text} (default: {default})" if default else text

    def default_text(self) -> str:
        """Return the value in a job in which nothing is given, for people; empty if there is none."""
        return self.written.default or _value_text(self.holds, _time_text)

    @property
    def flag_default(self) -> Any:
        """The value of a flag that is not given; None where something else may decide then."""
        return None if isinstance(self.to, Agent) and self.to.is_unset else self.reader_default

    @property
    def metavar(self) -> str:
        """The word for a value in the help of ``submit``."""
        return self.written.metavar or self.kind.metavar

    @property
    def reader_metavar(self) -> str:
        """The word for a value in the help of ``run`` or ``finish``."""
        return self.written.metavar or self.kind.of_agent


def _value_text(value: Any, of_time: Callable[[float], str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return of_time(value) if isinstance(value, float) else "" if value in (None, (), {}) else str(value)


def _time_text(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m" if minutes > 1 and not rest else f"{seconds:g}s"


def _number_text(seconds: float) -> str:
    return f"{seconds:g}"


@overload
def setting(
    kind: ValueKind[T],
    default: None,
    help: str,
    usual: T | None = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = ...,
) -> T | None: ...
@overload
def setting(
    kind: ValueKind[T],
    default: T,
    help: str,
    usual: None = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = ...,
) -> T: ...
def setting(
    kind: ValueKind[Any],
    default: Any,
    help: str,  # noqa: A002 - the column's name
    usual: Any = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = AS_NAMED,
) -> Any:
    """Return a row, which a type checker takes for a value of the setting.

    Args:
        kind: how a value is written.
        default: the value in a job if nothing is given; None where the reader's own default holds.
        help: one sentence without its full stop and without the default.
        usual: that default of the reader; None where there is no fixed value.
        to: its readers beside the commands that make a job script.
        written: its spellings that do not follow from its name and kind.
    """
    return Setting(kind, default, help, usual, to, written)


def rows_of(*families: type) -> dict[str, Setting]:
    """Return the rows of some families by name, in the order in which they are written."""
    return {
        name: row._replace(name=name, panel=(family.__doc__ or "").partition("\n")[0].rstrip("."))
        for family in families
        for name, row in vars(family).items()
        if isinstance(row, Setting)
    }


class ReaderFlag(NamedTuple):
    """The option of ``run`` or ``finish`` for a setting, as the parser of a command line takes it."""

    names: tuple[str, ...]
    dest: str
    kind: ValueKind[Any]
    default: Any
    """Where nothing is given; of a switch whether it is on then."""
    metavar: str
    help: str


def flags_of(rows: Iterable[Setting]) -> list[ReaderFlag]:
    """Return the options of settings that agents or ``finish`` read; those of agents in both spellings."""
    return [
        ReaderFlag(
            _spellings(row), row.name, row.kind, row.flag_default, row.reader_metavar, row.reader_help()
        )
        for row in rows
    ]


def _spellings(row: Setting) -> tuple[str, ...]:
    if not isinstance(row.to, Agent):
        return (row.reader_flag,)
    names = (row.to.short, row.reader_flag, f"--{row.name}")
    return tuple(dict.fromkeys(name for name in names if name))


def flags_given(rows: Iterable[Setting], values: Mapping[str, Any]) -> list[str]:
    """Return the flags of those settings whose reader would use another value without them.

    Args:
        rows: the settings, of agents or of ``finish``.
        values: of a job, by the name of the setting.
    """
    found = []
    for row in rows:
        value, default = values[row.name], row.reader_default
        if value is None and row.holds != default:
            value = row.holds
        if row.is_switch:
            found += [] if value == default else [row.reader_flag]
        elif value is not None and value != ():
            found.append(f"{row.flag}={_flag_text(row, value)}")
    return found


def _flag_text(row: Setting, value: Any) -> str:
    if row.kind is NAMES:
        return ",".join(value)
    if row.kind is SIGNALS:
        return ",".join(name.removeprefix("SIG") for name in value)
    if isinstance(value, tuple):
        return shlex.join(value)  # noqa: TID251 - for the script and for programs
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def check_values(rows: Iterable[Setting], values: Mapping[str, Any]) -> None:
    """Refuse numbers beyond their bounds, and words that are none of those allowed.

    Args:
        rows: the settings.
        values: by the name of the setting; None is not looked at.

    Raises:
        InputError: names the flag.
    """
    for row in rows:
        value, kind = values[row.name], row.kind
        if value is None:
            continue
        if kind.choices and value not in kind.choices:
            known = kind.choices
            raise InputError(
                f"{value!r} is not one of {', '.join(known)}",
                where=row.flag,
                fix=f"write one of these, e.g. {row.flag} {known[0]}",
            )
        if not kind.choices:
            check_number(row.flag, value, kind.bounds)


def check_number(where: str, value: Any, bounds: Bounds) -> None:
    """Refuse a number beyond its bounds.

    Raises:
        InputError: it is.
    """
    if bounds.is_positive and not value > 0:
        raise InputError(f"it is {value:g}", where=where, fix="it must be positive")
    if bounds.least is not None and not value >= bounds.least:
        raise InputError(f"it is {value:g}", where=where, fix=f"it must be at least {bounds.least:g}")


def usual(value: T | None) -> T:
    """Return the value where nothing is given, of its type.

    Args:
        value: the row, written as a type checker sees it: ``JobSettings.lease``.
    """
    return cast("T", cast("Setting", value).holds)


def agents(value: T | None) -> T:
    """Return the value that an agent or ``finish`` uses where its flag is not given; as `usual` else."""
    return cast("T", cast("Setting", value).reader_default)


TEXT: ValueKind[str] = ValueKind("text", "TEXT")
PATH: ValueKind[str] = ValueKind("path", "DIR")
SWITCH: ValueKind[bool] = ValueKind("true or false", "")
NUMBER: ValueKind[int] = ValueKind("whole number", "N")
BUDGET: ValueKind[int] = ValueKind("whole number, 0 or more", "N", bounds=AT_LEAST_0)
COUNT: ValueKind[int] = ValueKind("whole number, 1 or more", "N", bounds=AT_LEAST_1)
SECONDS: ValueKind[float] = ValueKind("a time", "TIME", "S", AT_LEAST_0)
INTERVAL: ValueKind[float] = ValueKind("a time, more than 0", "TIME", "S", POSITIVE)
SILENCE: ValueKind[str | int | float] = ValueKind("a time, `auto` or `off`", "TIME|auto|off", "S|auto|off")
TIME_LIMIT: ValueKind[str | int] = ValueKind("a time limit", "TIME")
NODES: ValueKind[str | int] = ValueKind("`N` or `MIN:MAX`", "N|MIN:MAX")
GPUS: ValueKind[str | int] = ValueKind("`N` or `TYPE:N`", "N|TYPE:N")
MEMORY: ValueKind[str] = ValueKind("a size: `480G`, `500M`; 0 for all", "SIZE")
SIZE: ValueKind[str] = ValueKind("bytes, or with a unit of 1024: `500M`, `2G`", "SIZE")
UNASKED: ValueKind[str] = ValueKind("`term`, `run-on` or `signal:NAME`", "term|run-on|signal:NAME")
WORDS: ValueKind[tuple[str, ...]] = ValueKind(
    "a list of words, or text that is split as in a shell", "PREFIX"
)
LINES: ValueKind[tuple[str, ...]] = ValueKind("a list of lines, or text", "LINE")
NAMES: ValueKind[tuple[str, ...]] = ValueKind("a list of names, or text with blanks or commas", "NAME")
SIGNALS: ValueKind[tuple[str, ...]] = ValueKind("a list of signals, or text with commas", "SIG,...")
TEXTS: ValueKind[tuple[str, ...]] = ValueKind("texts with commas between them", "TEXT,...")
OPTIONS: ValueKind[dict[str, str | int | float | bool]] = ValueKind(
    "a table of options of sbatch", "NAME=VALUE"
)
VARIABLES: ValueKind[dict[str, str]] = ValueKind("a table of variables", "NAME=VALUE")
