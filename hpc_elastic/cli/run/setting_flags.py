"""Flags of ``hpc-elastic run``, made from rows of the table of settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any, Final

from hpc_elastic.argparse_util import check_env, env
from hpc_elastic.settings.setting import (
    BUDGET,
    INTERVAL,
    LONGEST_S,
    MOST,
    NUMBER,
    SECONDS,
    SWITCH,
    TEXTS,
    Setting,
    ValueKind,
    flags_of,
)

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
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
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
        raise argparse.ArgumentTypeError(f"invalid float value: {_cut(text)!r}") from None
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
            action=env,
            default=list(flag.default) if flag.kind is TEXTS else flag.default,
            type=_TYPES.get(flag.kind, str),
            metavar=flag.metavar,
            help=flag.help,
        )
