"""How people write the values of settings, in a file, on a command line and in Python. Pure.

A reader takes a value as it was written, and returns it as it is used, or raises `BadValueError`. A value
that a reader has returned can be read again, so stored values are read likewise.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from hpc_elastic.named_tuple import NamedTuple

MOST = 10**12  # of anything that is counted
LONGEST_S = 1e9  # 31 years: no process everywhere can wait for longer
OptionValue = str | int | float | bool  # of an option of sbatch
_UNIT_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"  # longer ones mean nothing
_UNITS = rf"({_NUMBER})(d|h|min|m|s)"
_DURATION = rf"(?:{_NUMBER}(?:d|h|min|m|s))+"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_STREAMS = r"[0-3]|\s*\d+:[0-3]\s*(,\s*\d+:[0-3]\s*)*"
_LOCAL_RANKS = r"(\s*\d+\s*(,\s*\d+\s*)*)?"
_SECONDS = rf"{_NUMBER}(?:e[+-]?[0-9]{{1,3}})?|\.[0-9]{{1,15}}"
_SLURM_TIME = r"(?:([0-9]{1,9})-)?([0-9]{1,12})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?"
_CATCHABLE_TEXT = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
CATCHABLE = frozenset(_CATCHABLE_TEXT.split())
"""The signals of Linux that a program can catch."""
_WORD_OF_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True),
    **dict.fromkeys(("false", "no", "off", "0", "n", "f"), False),
}
_LONGEST_LIMIT_S = 60 * (2**32 - 3)  # Slurm counts minutes in 32 bits; the last two values mean others
_MOST_NODES = 10**6
_MOST_BYTES = 2**63
_MOST_SHOWN = 60  # characters of a value in an error
UNLIMITED = "UNLIMITED"


class BadValueError(ValueError):
    """A value that cannot be read, with a better one.

    Args:
        message: the fault of the value.
        fix: the way to a better one.
        example: a better one, as in a job file; empty if the fix has one.
        key: of the entry of a table that has the fault; empty: the whole value has it.
    """

    def __init__(self, message: str, fix: str, example: str = "", key: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.example = example
        self.key = key


class NodeRange(NamedTuple):
    """How many nodes a run may have."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"

    @property
    def slurm_text(self) -> str:
        """The range as sbatch wants it: ``2`` or ``2-4``."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def shown(value: object) -> str:
    """Return a value for an error, a long one cut."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    except RecursionError:
        return "a list or table of very many inside each other"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... ({len(text)} characters)"


def text_of(value: object) -> str:
    """Return a value as text; empty for one that Python does not write: too many digits, or nested lists."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return ""


def parse_nodes(value: object) -> NodeRange:
    """Read ``N``, ``MIN:MAX`` or Slurm's ``MIN-MAX``.

    Raises:
        BadValueError: not a count or range, zero, or the smaller number comes last.
    """
    match = re.fullmatch(r"\s*([0-9]{1,15})(?:\s*[:-]\s*([0-9]{1,15}))?\s*", text_of(value))
    if match is None:
        raise BadValueError(
            f"{shown(value)} is not a node count", "write N, or MIN:MAX for an elastic run, e.g. 4 or 2:4"
        )
    low = int(match[1])
    high = int(match[2]) if match[2] else low
    if low > high:
        raise BadValueError(
            f"{value!r} asks for at least {low} and at most {high} nodes",
            f"the smaller number comes first: {high}:{low}",
        )
    if high > _MOST_NODES:
        raise BadValueError(f"{value!r} asks for {high} nodes", f"no cluster has more than {_MOST_NODES}")
    if low < 1:
        raise BadValueError(f"{value!r} asks for {low} nodes", "ask for at least one node")
    return NodeRange(low, high)


def _with_units_s(text: str) -> float | None:
    if not re.fullmatch(_DURATION, text):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in re.findall(_UNITS, text))


def parse_duration_s(value: object) -> float:
    """Read a duration: a number of seconds, or ``90s``, ``2m``, ``1h30m``.

    Raises:
        BadValueError: not a duration, negative or not finite.
    """
    seconds: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = math.inf if abs(value) > LONGEST_S else float(value)
    elif isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        seconds = float(text) if re.fullmatch(_SECONDS, text) else _with_units_s(text)
    if seconds is None or math.isnan(seconds) or seconds < 0:
        raise BadValueError(
            f"{shown(value)} is not a duration", "write seconds (90) or a unit: 90s, 2m, 1h30m"
        )
    if seconds > LONGEST_S:
        raise BadValueError(f"{shown(value)} is longer than 30 years", "write at most 10000d")
    return seconds


def parse_time_limit_s(value: object) -> int | None:
    """Read a time limit: minutes, ``2h``, ``1h30m``, or Slurm's ``HH:MM:SS`` and ``D-HH[:MM[:SS]]``.

    Returns:
        The limit [s]; None for ``UNLIMITED``.

    Raises:
        BadValueError: not a time limit, or zero.
    """
    text = text_of(value).strip()
    if text.upper() in (UNLIMITED, "INFINITE"):
        return None
    seconds: float | None = _with_units_s(text.lower().replace(" ", ""))
    if seconds is None:
        seconds = _slurm_time_s(text)
    if seconds is None or not 0 < seconds <= _LONGEST_LIMIT_S:
        raise BadValueError(
            f"{shown(value)} is not a time limit", "write minutes (90), 2h, 1h30m, HH:MM:SS or D-HH:MM:SS"
        )
    return math.ceil(seconds)


def _slurm_time_s(text: str) -> int | None:
    match = re.fullmatch(_SLURM_TIME, text)
    if match is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


def slurm_time_text(seconds: int | None) -> str:
    """Return a time limit [s] as Slurm writes it: ``04:00:00``, ``1-12:00:00`` or ``UNLIMITED``."""
    if seconds is None:
        return UNLIMITED
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def parse_size(value: object) -> int:
    """Read a size: a number of bytes, or with a unit of 1024: ``500M``, ``2G``.

    Raises:
        BadValueError: not a size.
    """
    text = text_of(value).strip()
    match = re.fullmatch(rf"({_NUMBER})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper())) if match else _MOST_BYTES
    if size >= _MOST_BYTES:
        raise BadValueError(f"{shown(value)} is not a size", "write bytes or a unit: 500M, 2G")
    return size


def parse_memory(value: object) -> str:
    """Read an amount of memory as Slurm takes it: a number of megabytes, or ``500M``, ``480G``, ``2T``.

    Raises:
        BadValueError: not an amount of memory.
    """
    text = text_of(value).strip()
    if not re.fullmatch(r"[0-9]{1,15}([KMGTP](i?B)?)?", text, re.IGNORECASE):
        raise BadValueError(
            f"{shown(value)} is not an amount of memory",
            "write a whole number with a unit, e.g. 480G, 500M",
        )
    return text


def number_text(value: float) -> str:
    """Return a number without a needless ``.0``."""
    return str(int(value)) if float(value).is_integer() else str(value)


def has_control(text: str) -> bool:
    """Return whether a text holds line breaks or other control characters."""
    return any(is_control(char) for char in text)


def is_control(char: str) -> bool:
    """Return whether a character is an ASCII control character."""
    return char < " " or char == "\x7f"


def whole(value: object) -> int:
    """Read a whole number; true and false, which are numbers in Python, are none."""
    number: int | None = None
    if isinstance(value, str):
        number = int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", value) else None
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        number = int(value)
    if number is None:
        what = "is not a whole number"
        raise BadValueError(f"{shown(value)} {what}", "write a number without quotes or units", "4")
    if abs(number) > MOST:
        raise BadValueError(f"{shown(value)} is more than {MOST}", f"write {MOST} or less")
    return number


def repeats(value: object) -> int:
    """Read how often the same may come; once is no repetition, 0 is no limit."""
    number = whole(value)
    if number == 1:
        raise BadValueError("1: once is no repetition", "write 2 or more, or 0 for never")
    return number


def switch(value: object) -> bool:
    """Read true or false."""
    number = int(value) if isinstance(value, (int, float)) and value in (0, 1) else value
    found = _WORD_OF_SWITCH.get(text_of(number).lower())
    if found is None:
        raise BadValueError(f"{shown(value)} is neither true nor false", "write true or false", "true")
    return found


def raw(value: object) -> str:
    """Accept any text; numbers become text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(value)
    if not isinstance(value, str):
        raise BadValueError(f"{shown(value)} is not text", "write it in quotes", '"text"')
    return _sound([value])[0]


def one_line(value: object) -> str:
    """Accept text without line breaks; numbers become text."""
    text = value if isinstance(value, str) else raw(value)
    if has_control(text):
        raise BadValueError(f"{value!r} holds a line break or control character", "remove it")
    return raw(text)


def _sound(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        if "\0" in text:
            raise BadValueError(f"{text!r} holds a NUL character, which no program can be given", "remove it")
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise BadValueError(
                f"{text!r} holds a character that is not valid Unicode", "remove it"
            ) from None
    return tuple(texts)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise BadValueError(
            f"{shown(value)} is neither text nor a list of words", "write a list", '["one", "two"]'
        )
    if not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value):
        raise BadValueError(f"{shown(value)} is not a list of words", "quote each word")
    return _sound([item if isinstance(item, str) else _number(item) for item in value])


def _number(value: object) -> str:
    """Return a number as text."""
    text = text_of(value)
    if not text:
        raise BadValueError(f"{shown(value)} is too long", "write it in quotes if it is no number")
    return text


def words(value: object) -> tuple[str, ...]:
    """Read a command: a list of words, or one string that is split as a shell would."""
    if not isinstance(value, str):
        return _texts(value)
    try:
        return _sound(shlex.split(value))
    except ValueError as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(
            f"{value!r} is not a command: {error}", "close the quotes, or write a list"
        ) from None


def prefix(value: object) -> tuple[str, ...]:
    """Read an image, or the words before a command; an empty text is a mistake, such as an unset variable."""
    found = words(value)
    if (isinstance(value, str) and not found) or "" in found[:1]:
        raise BadValueError(f"{shown(value)} names no image", "name one, or leave it out")
    return found


def is_module_name(name: str) -> bool:
    """Tell whether a module can have this name; a file's is none."""
    return re.fullmatch(_MODULE, name) is not None and not name.endswith(".py")


def are_module_names(value: object) -> bool:
    """Tell whether a value of a user's program is a list of names that modules can have."""
    return isinstance(value, list | tuple) and all(
        isinstance(name, str) and is_module_name(name) for name in value
    )


def modules(value: object) -> tuple[str, ...]:
    """Read names of modules, each of which counts once."""
    found = tuple(dict.fromkeys(names(value)))
    if bad := next((name for name in found if not is_module_name(name)), ""):
        raise BadValueError(f"{bad!r} is no name of a module", "write torch,mypackage")
    return found


def streams(value: object) -> str:
    """Read which streams of which local ranks are meant."""
    text = one_line(value)
    if not re.fullmatch(_STREAMS, text):
        fix = "write 0 (none), 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:N,... e.g. 0:3,1:2"
        raise BadValueError(f"{shown(value)} names no streams", fix)
    return text


def local_ranks(value: object) -> str:
    """Read which local ranks are meant; empty for all."""
    text = one_line(value)
    if not re.fullmatch(_LOCAL_RANKS, text):
        fix = "write numbers with commas between them, e.g. 0,1"
        raise BadValueError(f"{shown(value)} is not a list of local ranks", fix)
    return text


def lines(value: object) -> tuple[str, ...]:
    """Read shell lines: a list of lines, or one text."""
    return _sound(value.splitlines()) if isinstance(value, str) else _texts(value)


def names(value: object) -> tuple[str, ...]:
    """Read names: a list, or text; blanks or commas separate names, also in a text of a list."""
    texts = _texts([value] if isinstance(value, str) else value)
    return tuple(name for text in texts for name in text.replace(",", " ").split())


def texts(value: object) -> tuple[str, ...]:
    """Read texts: a list, or text with commas between them, in which ``,,`` is a comma of a text."""
    if not isinstance(value, str):
        return _texts(value)
    parts = value.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def size(value: object) -> str:
    """Check a size and keep it as it was written."""
    parse_size(value)
    return str(value).strip()  # a number from a file has few digits


def silence(value: object) -> str:
    """Read how long workers may make no progress: a duration, ``auto`` or ``off``."""
    word = text_of(value).strip().lower()
    if word in ("auto", "off"):
        return word
    fix = "write a time (90s, 10m, 1h30m), auto or off"
    try:
        seconds = parse_duration_s(value)
    except BadValueError:
        raise BadValueError(f"{shown(value)} is neither a duration nor auto or off", fix) from None
    if not seconds > 0:
        raise BadValueError(f"{shown(value)} leaves no time", fix)
    return number_text(seconds)


def unasked(value: object) -> str:
    """Accept the fate of workers that never ask: ``term``, ``run-on`` or ``signal:NAME``."""
    text = text_of(value)
    name = re.fullmatch("signal:(?:SIG)?([A-Z][A-Z0-9]{1,9})", text)
    if text in ("term", "run-on") or (name and name[1] in CATCHABLE):
        return text
    what = f"{shown(value)} says nothing about workers that never ask"
    raise BadValueError(what, "write term, run-on or signal:USR1")


def time_limit(value: object) -> str:
    """Read a time limit and keep it as Slurm writes it, or minutes as they are stored."""
    return slurm_time_text(parse_time_limit_s(value))


def nodes(value: object) -> str:
    """Read a node count or range and keep it as ``N`` or ``MIN:MAX``."""
    return str(parse_nodes(value))


def gpus(value: object) -> str | int:
    """Accept ``N`` or ``TYPE:N``."""
    if isinstance(value, (str, int)) and re.fullmatch(r"([\w.-]+:)?[0-9]{1,6}", text_of(value)):
        return value
    raise BadValueError(f"{shown(value)} is not a number of GPUs", "write N or TYPE:N, e.g. 8 or a100:8")


def variables(value: object) -> dict[str, str]:
    """Read environment variables; numbers become text, booleans are refused as ambiguous."""
    found: dict[str, str] = {}
    for name, text in _table(value, is_flag_allowed=False).items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadValueError(
                f"{name!r} is not the name of an environment variable", "use letters, digits and _"
            )
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise BadValueError(f"{shown(text)} is not text", f'write {name} = "..."', key=name)
        found[name] = _sound([text if isinstance(text, str) else _number(text)])[0]
    return found


def options(value: object) -> dict[str, OptionValue]:
    """Read options of sbatch by their names; a flag is true."""
    found: dict[str, OptionValue] = {}
    for name, text in _table(value).items():
        if not isinstance(name, str):
            raise BadValueError(f"{name!r} is not the name of an option", "write it in quotes")
        if not isinstance(text, (str, int, float)):
            raise BadValueError(f"{shown(text)} is not text", "write it in quotes", '"text"', name)
        _sound([one for one in (name, text) if isinstance(one, str)])
        found[name] = text
    return found


def _table(value: object, *, is_flag_allowed: bool = True) -> Mapping[object, object]:
    """Read a table, or texts ``NAME=VALUE`` as on a command line; the name of a flag alone is true."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, (str, list, tuple)):
        raise BadValueError(f"{shown(value)} is not a table", "write a table", '{ NAME = "value" }')
    pairs: dict[object, object] = {}
    for text in _texts([value] if isinstance(value, str) else value):
        name, equals, of_name = text.partition("=")
        is_path = not equals and any(mark in text for mark in "./%")  # of a log, as -o and -e of sbatch
        if not name or is_path or not (equals or is_flag_allowed):
            what = "an option of sbatch by its name" if is_flag_allowed else "a variable of the workers"
            logs = "; the logs are in the run directory: hpc-elastic logs RUN" if is_path else ""
            raise BadValueError(f"{text!r} is not NAME=VALUE", f"write NAME=VALUE, {what}{logs}")
        if name in pairs:
            raise BadValueError(f"{name} is given twice", "keep one of them")
        pairs[name] = of_name if equals else True
    return pairs
