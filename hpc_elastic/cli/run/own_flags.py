"""The flags of ``hpc-elastic run`` beyond torchrun's."""

from __future__ import annotations

from hpc_elastic.cli.run.budgets import add_budget_flags
from hpc_elastic.cli.run.drain import add_drain_flags
from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.cli.run.hangs import add_hang_flags
from hpc_elastic.cli.run.probe import add_probe_flags
from hpc_elastic.record.run_directory import KEPT_LOGS


def add_own_flags(flags: FlagGroup) -> None:
    """Add the flags that torchrun does not have."""
    _add_place_flags(flags)
    _add_tracker_flag(flags)
    _add_end_flags(flags)
    add_drain_flags(flags)
    add_budget_flags(flags)
    add_probe_flags(flags)
    add_hang_flags(flags)


def _add_place_flags(flags: FlagGroup) -> None:
    flags.add(
        "--run-dir",
        metavar="DIR",
        help="the run directory, on a file system all nodes share (default: see below)",
    )
    flags.add(
        "--container",
        default="",
        metavar="PREFIX",
        help="put before each worker's command (default: nothing)",
    )
    flags.add("--join-timeout", type=float, metavar="S", help="wait for enough nodes (default: 600)")
    flags.add(
        "--last-call-timeout", type=float, metavar="S", help="wait for more than the minimum (default: 30)"
    )
    flags.add(
        "--heartbeat-interval", type=float, metavar="S", help="time between two signs of life (default: 1)"
    )
    flags.add("--lease", type=float, metavar="S", help="a node that is silent so long is lost (default: 4)")


def _add_tracker_flag(flags: FlagGroup) -> None:
    flags.add(
        "--keep-logs",
        type=int,
        default=KEPT_LOGS,
        metavar="ROUNDS",
        help=f"of how many rounds the workers' logs stay; 0: of all (default: {KEPT_LOGS})",
    )
    flags.switch(
        "--tracker-ids",
        help="have W&B, Comet, Neptune and TensorBoard go on with one experiment after each start",
    )


def _add_end_flags(flags: FlagGroup) -> None:
    flags.add(
        "--exit-barrier-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="wait for the other nodes at the end (default: 300)",
    )
    flags.add(
        "--log-line-prefix-template",
        metavar="TEXT",
        help="before teed lines; knows ${rank}, ${local_rank}, ${role_name}, ${node} "
        "(default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else '[rank ${rank}] ')",
    )
