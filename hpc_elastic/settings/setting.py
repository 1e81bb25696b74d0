"""A setting: one row of a table. Pure.

A row is the value of a class attribute. In an object of the class a type checker takes it for a value of the
setting, so it knows the fields of a job and of an agent.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings import values
from hpc_elastic.settings.values import BadValueError

T = TypeVar("T")
J = TypeVar("J")  # a value of a job
A = TypeVar("A")  # of an agent


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
    """The values of a setting: how they are written, read, checked and handed on.

    Args:
        says: the values, for people.
        metavar: stands for a value in help.
        read: returns a value as it is used for one as it was written; raises `BadValueError`.
        of_agent: the word in the help of an agent, where times are in seconds.
        bounds: of a number.
        write: returns a value as the text of a flag.

    Attributes:
        choices: the only words that are allowed; empty for any.
    """

    __slots__ = ("bounds", "choices", "metavar", "of_agent", "read", "says", "write")

    def __init__(
        self,
        says: str,
        metavar: str,
        read: Callable[[object], T],
        of_agent: str = "",
        bounds: Bounds = ANY,
        write: Callable[[Any], str] = str,
    ) -> None:
        self.says = says
        self.metavar = metavar
        self.read = read
        self.of_agent = of_agent or metavar
        self.bounds = bounds
        self.choices: tuple[str, ...] = ()
        self.write = write

    def parse(self, written: object) -> T:
        """Return a value as it is used for one as people write it, or as it was stored.

        Raises:
            BadValueError: it cannot be read, or is not allowed.
        """
        value = self.read(written)
        if self.choices and value not in self.choices:
            *first, last = map(repr, self.choices)
            fix = f"write {', '.join(first)} or {last}" if first else f"write {last}"
            raise BadValueError(f"{values.shown(written)} cannot be used", fix)
        least: Any = self.bounds.least
        if self.bounds.is_positive and not value > least:
            raise BadValueError(f"{values.shown(written)} leaves no time", "write more than 0")
        if least is not None and not value >= least:
            raise BadValueError(f"{values.shown(written)} is less than {least}", f"write {least} or more")
        return value

    def texts(self, value: T) -> list[str]:
        """Return a value as the texts of its flag, which a table needs once for each entry."""
        if isinstance(value, dict):
            return [f"{name}={text}" for name, text in value.items()]
        return [self.write(value)]


def choice(*words: T) -> ValueKind[T]:
    """Return the kind of a setting that is one of some words."""
    says = ", ".join(f"`{word}`" for word in words)
    kind: ValueKind[Any] = ValueKind(says, "|".join(map(str, words)), values.raw)
    kind.choices = tuple(map(str, words))
    return kind


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
    if isinstance(value, tuple):
        return ",".join(value)
    return of_time(value) if isinstance(value, float) else "" if value in (None, (), {}) else str(value)


def _time_text(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m" if minutes > 1 and not rest else f"{seconds:g}s"


def _number_text(seconds: float) -> str:
    return f"{seconds:g}"


class ForAgents:
    """A class of settings whose values are those of an agent, and not of a job."""

    __slots__ = ()


class SettingRow(Generic[J, A]):
    """A row as a type checker sees it: a value of type J of a job, of type A of an agent."""

    @overload
    def __get__(self, instance: None, owner: type) -> SettingRow[J, A]: ...
    @overload
    def __get__(self, instance: ForAgents, owner: type) -> A: ...
    @overload
    def __get__(self, instance: object, owner: type) -> J: ...
    def __get__(self, instance: object, owner: type) -> Any: ...


@overload
def setting(
    kind: ValueKind[T],
    default: None,
    help: str,
    usual: None = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = ...,
) -> SettingRow[T | None, T | None]: ...
@overload
def setting(
    kind: ValueKind[T],
    default: None,
    help: str,
    usual: T,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = ...,
) -> SettingRow[T | None, T]: ...
@overload
def setting(
    kind: ValueKind[T],
    default: T,
    help: str,
    usual: None = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = ...,
) -> SettingRow[T, T]: ...
def setting(
    kind: ValueKind[Any],
    default: Any,
    help: str,  # noqa: A002 - the column's name
    usual: Any = None,
    to: Agent | Sbatch | FinishFlag | None = None,
    written: Written = AS_NAMED,
) -> Any:
    """Return a row, which a type checker takes for a value in an object of its class.

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


def flags_given(rows: Iterable[Setting], given: Mapping[str, Any]) -> list[str]:
    """Return the flags of those settings whose reader would use another value without them.

    Args:
        rows: the settings, of agents or of ``finish``.
        given: the values of a job, by the name of the setting.
    """
    found = []
    for row in rows:
        value, default = given[row.name], row.reader_default
        if value is None and row.holds != default:
            value = row.holds
        if row.is_switch:
            found += [] if value == default else [row.reader_flag]
        elif value is not None and value != ():
            found += [f"{row.flag}={text}" for text in row.kind.texts(value)]
    return found


def usual(row: SettingRow[J, A]) -> A:
    """Return the value where nothing is given, of its type."""
    return cast("A", cast("Setting", row).holds)


def agents(row: SettingRow[J, A]) -> A:
    """Return the value that an agent or ``finish`` uses where its flag is not given; as `usual` else."""
    return cast("A", cast("Setting", row).reader_default)


def _signals_text(names: Iterable[str]) -> str:
    return ",".join(name.removeprefix("SIG") for name in names)


def _list_text(texts: Iterable[str]) -> str:
    return ",".join(text.replace(",", ",,") for text in texts)


# fmt: off
RAW: ValueKind[str] = ValueKind("text", "TEXT", values.raw)
TEXT: ValueKind[str] = ValueKind("text", "TEXT", values.one_line)
PATH: ValueKind[str] = ValueKind("path", "DIR", values.one_line)
ANY_PATH: ValueKind[str] = ValueKind("path", "DIR", values.raw)
SWITCH: ValueKind[bool] = ValueKind("true or false", "", values.switch)
NUMBER: ValueKind[int] = ValueKind("whole number", "N", values.whole)
BUDGET: ValueKind[int] = ValueKind("whole number, 0 or more", "N", values.whole, bounds=AT_LEAST_0)
REPEATS: ValueKind[int] = ValueKind("whole number, 0 or at least 2", "N", values.repeats, bounds=AT_LEAST_0)
COUNT: ValueKind[int] = ValueKind("whole number, 1 or more", "N", values.whole, bounds=AT_LEAST_1)
SECONDS: ValueKind[float] = ValueKind(
    "a time", "TIME", values.parse_duration_s, "S", AT_LEAST_0, write=values.number_text
)
INTERVAL: ValueKind[float] = ValueKind(
    "a time, more than 0", "TIME", values.parse_duration_s, "S", POSITIVE, write=values.number_text
)
SILENCE: ValueKind[str] = ValueKind(
    "a time, `auto` or `off`", "TIME|auto|off", values.silence, "S|auto|off"
)
TIME_LIMIT: ValueKind[str] = ValueKind("a time limit", "TIME", values.time_limit)
NODES: ValueKind[str] = ValueKind("`N` or `MIN:MAX`", "N|MIN:MAX", values.nodes)
GPUS: ValueKind[str | int] = ValueKind("`N` or `TYPE:N`", "N|TYPE:N", values.gpus)
MEMORY: ValueKind[str] = ValueKind("a size: `480G`, `500M`; 0 for all", "SIZE", values.parse_memory)
SIZE: ValueKind[str] = ValueKind("bytes, or with a unit of 1024: `500M`, `2G`", "SIZE", values.size)
UNASKED: ValueKind[str] = ValueKind(
    "`term`, `run-on` or `signal:NAME`", "term|run-on|signal:NAME", values.unasked
)
WORDS: ValueKind[tuple[str, ...]] = ValueKind(
    "a list of words, or text that is split as in a shell", "PREFIX", values.words,
    write=shlex.join,  # noqa: TID251 - for the script and for programs
)
CONTAINER: ValueKind[tuple[str, ...]] = ValueKind(
    WORDS.says, WORDS.metavar, values.prefix, write=WORDS.write
)
LINES: ValueKind[tuple[str, ...]] = ValueKind("a list of lines, or text", "LINE", values.lines)
NAMES: ValueKind[tuple[str, ...]] = ValueKind(
    "a list of names, or text with blanks or commas", "NAME", values.names, write=",".join
)
MODULES: ValueKind[tuple[str, ...]] = ValueKind(
    "names of modules, as a list or text with commas", "MODULE,...", values.modules, write=",".join
)
STREAMS: ValueKind[str] = ValueKind("0, 1, 2, 3, or by local rank", "N", values.streams)
LOCAL_RANKS: ValueKind[str] = ValueKind("numbers with commas between them", "R,R", values.local_ranks)
SIGNALS: ValueKind[tuple[str, ...]] = ValueKind(
    "a list of signals, or text with commas", "SIG,...", values.names, write=_signals_text
)
TEXTS: ValueKind[tuple[str, ...]] = ValueKind(
    "texts with commas between them", "TEXT,...", values.texts, write=_list_text
)
OPTIONS: ValueKind[dict[str, str | int | float | bool]] = ValueKind(
    "a table of options of sbatch", "NAME=VALUE", values.options
)
VARIABLES: ValueKind[dict[str, str]] = ValueKind("a table of variables", "NAME=VALUE", values.variables)
TABLES = (OPTIONS, VARIABLES)
"""The kinds of a table, whose entries are given one by one."""
# fmt: on
