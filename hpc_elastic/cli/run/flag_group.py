"""A group of flags of ``hpc-elastic run``."""

from __future__ import annotations

import argparse
from typing import Any

from hpc_elastic.argparse_util import check_env, env

_MOST = 10**12
_MOST_DIGITS = 100
_MOST_SHOWN = 60
_LONGEST_S = 1e9


def whole(text: str) -> int:
    """Return the whole number that is the value of a flag.

    Raises:
        argparse.ArgumentTypeError: it is none, or too large to mean anything.
    """
    try:
        number = int(text) if len(text) <= _MOST_DIGITS else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if number is None or abs(number) > _MOST:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is no whole number up to {_MOST}")
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
    if abs(number) > _LONGEST_S and not is_infinite:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is more than {_LONGEST_S:g} seconds")
    return number


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class FlagGroup:
    """A group of flags, each in both spellings, with dashes and with underscores."""

    def __init__(self, group: argparse._ArgumentGroup) -> None:
        self._group = group

    def add(self, *names: str, **options: Any) -> None:
        """Add a flag that takes a value."""
        kind = options.get("type")
        checked = {int: whole, float: seconds}.get(kind, kind) if kind is not None else None
        self._add(names, {"action": env, **options, **({"type": checked} if checked else {})})

    def switch(self, *names: str, **options: Any) -> None:
        """Add a flag that takes none."""
        self._add(names, {"action": check_env, **options})

    def _add(self, names: tuple[str, ...], options: dict[str, Any]) -> None:
        longest = max(names, key=len)
        dest = longest.lstrip("-").replace("-", "_")
        spellings = dict.fromkeys((*names, f"--{dest}"))
        self._group.add_argument(*spellings, dest=dest, **options)
