"""The flags of ``hpc-elastic run`` that say what a node is asked before it joins."""

from __future__ import annotations

import argparse

from hpc_elastic.cli.run.flag_group import FlagGroup
from hpc_elastic.cli.run.values import at_least, one_of
from hpc_elastic.errors import InputError
from hpc_elastic.node.probe.rules import MODES, ProbeOptions

_DEFAULT = ProbeOptions()
_MIN_SPACE = "64M"  # the default, as people write it


def add_probe_flags(flags: FlagGroup) -> None:
    """Add the flags of the probe."""
    flags.add(
        "--health-check",
        default=_DEFAULT.mode,
        metavar="MODE",
        help="look at the node before it joins: off, quick, or full with nvidia-smi (default: quick)",
    )
    flags.add(
        "--health-command",
        default="",
        metavar="COMMAND",
        help="a node on which this fails stays out; its last line is the reason (default: none)",
    )
    flags.add(
        "--health-timeout",
        type=float,
        default=_DEFAULT.timeout,
        metavar="S",
        help="time of --health-command and of nvidia-smi (default: 60)",
    )
    flags.add(
        "--probe-min-space",
        default=_MIN_SPACE,
        metavar="SIZE",
        help="free space needed in $TMPDIR and the run directory (default: 64M)",
    )
    flags.add(
        "--probe-min-inodes",
        type=int,
        default=_DEFAULT.min_inodes,
        metavar="N",
        help="free inodes needed there (default: 1000)",
    )
    flags.add(
        "--gpu-devices",
        default="",
        metavar="PATTERN",
        help="device files of GPUs, at least as many as Slurm has promised "
        "(default: /dev/nvidia[0-9]*, where there are any)",
    )


def probe_of(args: argparse.Namespace) -> ProbeOptions:
    """Return what a node is asked before it joins.

    Raises:
        InputError: a value cannot be used; names the flag.
    """
    at_least("--probe-min-inodes", args.probe_min_inodes, 0)
    if not args.health_timeout > 0:
        raise InputError(
            f"it is {args.health_timeout:g}", where="--health-timeout", fix="it must be positive"
        )
    space = args.probe_min_space
    return ProbeOptions(
        mode=one_of("--health-check", args.health_check, MODES),
        command=args.health_command,
        timeout=args.health_timeout,
        min_space=_DEFAULT.min_space if space == _MIN_SPACE else _size("--probe-min-space", space),
        min_inodes=args.probe_min_inodes,
        gpu_devices=args.gpu_devices,
    )


def _size(flag: str, text: str) -> int:
    from hpc_elastic.slurm.job.values import BadValueError, parse_size  # noqa: PLC0415 - not on the way to a start

    try:
        return parse_size(text)
    except BadValueError as error:
        raise InputError(error.message, where=flag, fix=error.fix) from None
