"""The flags that say how long workers may make no progress, and their values."""

from __future__ import annotations

import argparse
import math

from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.errors import InputError
from hpc_elastic.node.setup.hang_times import HangOptions

AUTO, OFF = "auto", "off"
_FIX = "give seconds, auto (learned from the run) or off"


def add_hang_flags(flags: FlagGroup) -> None:
    """Add the flags."""
    flags.add(
        "--hang-timeout",
        default=AUTO,
        metavar="S|auto|off",
        help="workers that tick are restarted after so long without a tick or another section"
        " (default: auto, five times the longest so far, at least 30 min)",
    )
    flags.add(
        "--first-step-timeout",
        default=AUTO,
        metavar="S|auto|off",
        help="the same from a worker's start to its first tick; seconds mean that every worker ticks"
        " (default: auto, learned from earlier rounds)",
    )


def hang_options_of(args: argparse.Namespace) -> HangOptions:
    """Return the limits.

    Raises:
        InputError: one is no time.
    """
    return HangOptions(
        timeout=_limit("--hang-timeout", args.hang_timeout),
        first_step=_limit("--first-step-timeout", args.first_step_timeout),
    )


def _limit(flag: str, text: str) -> float | None:
    """Return a limit [s]; None: learned, inf: none."""
    word = text.strip().lower()
    if word == AUTO:
        return None
    if word == OFF:
        return math.inf
    from hpc_elastic.slurm.job.values import BadValueError, parse_duration_s  # noqa: PLC0415 - rare

    try:
        seconds = parse_duration_s(word)
    except BadValueError as error:
        raise InputError(f"{text!r} is no time", where=flag, fix=_FIX) from error
    if not seconds > 0:
        raise InputError(f"it is {text}", where=flag, fix=_FIX)
    return seconds
