"""From the flags of ``hpc-elastic run`` to the options of the agent's parts: budgets, hangs, drain, probe."""

from __future__ import annotations

import argparse
import math

from hpc_elastic.cli.run.values import signals
from hpc_elastic.errors import InputError
from hpc_elastic.node.decision import RestartBudgets
from hpc_elastic.node.probe.rules import ProbeOptions
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.stop_rules import DrainTimes, Unasked
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings

_AUTO, _OFF = "auto", "off"
_FIX = "give seconds, auto (learned from the run) or off"


def budgets_of(args: argparse.Namespace) -> RestartBudgets:
    """Return the budgets that were asked for.

    Raises:
        InputError: one failure is to count as a repeated one.
    """
    if args.same_failure == 1:
        raise InputError("it is 1", where="--same-failure", fix="it must be 2 or more, or 0 for never")
    return RestartBudgets(args.max_restarts, args.max_hangs, same_failure=args.same_failure or None)


def hang_options_of(args: argparse.Namespace) -> HangOptions:
    """Return how long workers may make no progress.

    Raises:
        InputError: one of the limits is no time.
    """
    return HangOptions(
        timeout=_limit("--hang-timeout", args.hang_timeout),
        first_step=_limit("--first-step-timeout", args.first_step_timeout),
    )


def _limit(flag: str, text: str) -> float | None:
    """Return a limit [s]; None: learned, inf: none."""
    word = text.strip().lower()
    if word == _AUTO:
        return None
    if word == _OFF:
        return math.inf
    from hpc_elastic.slurm.job.values import BadValueError, parse_duration_s  # noqa: PLC0415 - rare

    try:
        seconds = parse_duration_s(word)
    except BadValueError as error:
        raise InputError(f"{text!r} is no time", where=flag, fix=_FIX) from error
    if not seconds > 0:
        raise InputError(f"it is {text}", where=flag, fix=_FIX)
    return seconds


def drain_times_of(args: argparse.Namespace) -> DrainTimes:
    """Return how long workers have to save.

    Raises:
        InputError: no flag says whether workers that never ask are ended.
    """
    is_given = args.stop_timeout is not None
    return DrainTimes(
        stop=args.stop_timeout if is_given else agents(JobSettings.stop_timeout),
        warning=args.warn_timeout,
        is_stop_given=is_given,
        critical=args.critical_timeout,
        unasked=_unasked_of(args.unasked),
    )


def _unasked_of(text: str) -> Unasked:
    word, colon, name = text.partition(":")
    if text in ("term", "run-on"):
        return Unasked(runs_on=text == "run-on")
    numbers = signals("--unasked", name) if word == "signal" and colon else ()
    if len(numbers) != 1:
        raise InputError(
            f"{text!r} says nothing about workers that never ask",
            where="--unasked",
            fix="write term, run-on, or signal:USR1",
        )
    return Unasked(runs_on=True, number=numbers[0])


def probe_of(args: argparse.Namespace) -> ProbeOptions:
    """Return the checks of a node before it joins.

    Raises:
        InputError: the free space is no size.
    """
    return ProbeOptions(
        mode=args.health_check,
        command=args.health_command,
        timeout=args.health_timeout,
        min_space=_size("--probe-min-space", args.probe_min_space),
        min_inodes=args.probe_min_inodes,
        gpu_devices=args.gpu_devices,
    )


def _size(flag: str, text: str) -> int:
    if text == agents(JobSettings.probe_min_space):
        return ProbeOptions().min_space
    from hpc_elastic.slurm.job.values import BadValueError, parse_size  # noqa: PLC0415 - not on the way to a start

    try:
        return parse_size(text)
    except BadValueError as error:
        raise InputError(error.message, where=flag, fix=error.fix) from None
