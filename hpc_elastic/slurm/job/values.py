"""How people write durations, time limits and node counts, and their meaning. Pure."""

from __future__ import annotations

import math
import re

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import LONGEST_S

_UNIT_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"  # longer ones mean nothing
_UNITS = re.compile(rf"({_NUMBER})(d|h|min|m|s)")
_DURATION = re.compile(rf"(?:{_NUMBER}(?:d|h|min|m|s))+")
_SLURM_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,12})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_LONGEST_LIMIT_S = 60 * (2**32 - 3)  # Slurm counts minutes in 32 bits; the last two values mean others
_MOST_NODES = 10**6
_MOST_BYTES = 2**63
_MOST_SHOWN = 60  # characters of a value in an error
UNLIMITED = "UNLIMITED"


class BadValueError(ValueError):
    """A value that cannot be read, with a better one.

    Args:
        message: the fault of the value.
        fix: a better value.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


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
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... ({len(text)} characters)"


def text_of(value: object) -> str:
    """Return a value as text; empty for a number of more digits than Python writes."""
    try:
        return str(value)
    except ValueError:
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
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _UNITS.findall(text))


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
        seconds = float(text) if re.fullmatch(_NUMBER, text) else _with_units_s(text)
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
    match = _SLURM_TIME.fullmatch(text)
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
