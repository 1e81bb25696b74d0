"""The flags of ``hpc-elastic run`` that say how workers are asked to stop, and how long they have."""

from __future__ import annotations

import argparse

from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.cli.run.values import at_least, signals
from hpc_elastic.errors import InputError
from hpc_elastic.node.setup.stop_request import DrainTimes, Unasked


def add_drain_flags(flags: FlagGroup) -> None:
    """Add the flags."""
    flags.add(
        "--stop-timeout",
        type=float,
        metavar="S",
        help="time to save after SIGTERM (default: 25, below Slurm by the site's KillWait and GraceTime)",
    )
    flags.add(
        "--warn-timeout",
        type=float,
        default=90.0,
        metavar="S",
        help="time to save after a warning (default: 90)",
    )
    flags.add(
        "--critical-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="a failure elsewhere waits so long for critical sections of workers (default: 60)",
    )
    flags.add(
        "--unasked",
        default="term",
        metavar="WHAT",
        help="workers that never ask whether to stop: term ends them at once, run-on lets them run until "
        "their time is up, signal:USR1 also sends them that signal first (default: term)",
    )
    flags.add(
        "--drain-signals",
        default="TERM,HUP",
        metavar="SIG,..",
        help="the nodes are wanted back now (default: TERM,HUP)",
    )
    flags.add(
        "--warning-signals",
        default="USR1,USR2",
        metavar="SIG,..",
        help="the time limit is near (default: USR1,USR2)",
    )
    flags.switch(
        "--watch-node-drain",
        help="ask Slurm each minute whether a node of the job is being drained, and leave then",
    )


def drain_times_of(args: argparse.Namespace) -> DrainTimes:
    """Return how long workers have.

    Raises:
        InputError: a time is negative.
    """
    default = DrainTimes()
    is_given = args.stop_timeout is not None
    at_least("--stop-timeout", args.stop_timeout if is_given else default.stop, 0)
    at_least("--warn-timeout", args.warn_timeout, 0)
    at_least("--critical-timeout", args.critical_timeout, 0)
    return DrainTimes(
        stop=args.stop_timeout if is_given else default.stop,
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
