"""The flags of ``hpc-elastic run`` that say how often what may end a round."""

from __future__ import annotations

import argparse

from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.cli.run.values import at_least
from hpc_elastic.node.budgets import MAX_HANGS, Budgets


def add_budget_flags(flags: FlagGroup) -> None:
    """Add the flags of the budgets that torchrun does not have."""
    flags.add(
        "--max-hangs",
        type=int,
        default=MAX_HANGS,
        metavar="N",
        help=f"restarts after a hang (default: {MAX_HANGS})",
    )
    flags.add(
        "--same-failure",
        type=int,
        default=0,
        metavar="N",
        help="the same failure so often in a row, with no checkpoint marked in between, ends the run "
        "though restarts are left; 0: never (default: 0)",
    )


def budgets_of(args: argparse.Namespace) -> Budgets:
    """Return the budgets that were asked for.

    Raises:
        InputError: a number is too small; names the flag.
    """
    at_least("--max-hangs", args.max_hangs, 0)
    at_least("--same-failure", args.same_failure, 0)
    if args.same_failure == 1:
        from hpc_elastic.errors import InputError  # noqa: PLC0415 - rare

        raise InputError("it is 1", where="--same-failure", fix="it must be 2 or more, or 0 for never")
    return Budgets(args.max_restarts, args.max_hangs, same_failure=args.same_failure or None)
