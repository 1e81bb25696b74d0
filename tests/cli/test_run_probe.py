"""The flags of `hpc-elastic run` for the probe."""

from __future__ import annotations

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.cli.run.options import probe_of
from hpc_elastic.errors import InputError
from hpc_elastic.node.probe_rules import ProbeOptions
from hpc_elastic.settings.of_commands import RUN
from hpc_elastic.settings.setting import check_values


def options(*flags: str) -> ProbeOptions:
    """Return what flags come to."""
    args = parser().parse_args([*flags, "train.py"])
    check_values(RUN, vars(args))
    return probe_of(args)


def test_the_defaults() -> None:
    """Without flags the default of each option, also of those that are told as text."""
    assert ProbeOptions() == options()


def test_every_flag() -> None:
    """Sizes have units of 1024."""
    check = ("--health-check=full", "--health-command=check x", "--health-timeout=5")
    least = ("--probe-min-space=1.5G", "--probe-min-inodes=7", "--gpu-devices=/dev/accel*")
    assert ProbeOptions("full", "check x", 5.0, 3 << 29, 7, "/dev/accel*") == options(*check, *least)


@pytest.mark.parametrize(
    ("flag", "words", "fix"),
    [
        ("--health-check=fast", "'fast' is not one of off, quick, full", "write one of these"),
        ("--health-timeout=0", "it is 0", "must be positive"),
        ("--health-timeout=nan", "it is nan", "must be positive"),
        ("--probe-min-space=much", "'much' is not a size", "500M"),
        ("--probe-min-inodes=-1", "it is -1", "at least 0"),
    ],
)
def test_values_that_cannot_be_used(flag: str, words: str, fix: str) -> None:
    """The error names the flag."""
    with pytest.raises(InputError) as caught:
        options(flag)
    assert flag.partition("=")[0] == caught.value.where
    assert words in caught.value.message
    assert fix in caught.value.fix
