"""The flags of `hpc-elastic run` for the probe."""

from __future__ import annotations

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.node.probe_rules import ProbeOptions
from hpc_elastic.settings.of_commands import AgentSettings


def options(*flags: str) -> ProbeOptions:
    """Return what flags come to."""
    return ProbeOptions.of_settings(AgentSettings.of(parser().parse_args([*flags, "train.py"])))


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
        ("--health-check=fast", "'fast' cannot be used", "write 'off', 'quick' or 'full'"),
        ("--health-timeout=0", "'0' leaves no time", "more than 0"),
        ("--health-timeout=nan", "'nan' is not a duration", "write seconds"),
        ("--probe-min-space=much", "'much' is not a size", "500M"),
        ("--probe-min-inodes=-1", "'-1' is less than 0", "write 0 or more"),
    ],
)
def test_values_that_cannot_be_used(
    flag: str, words: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the flag."""
    with pytest.raises(SystemExit):
        options(flag)
    said, way_on = capsys.readouterr().err.split("\n  fix: ")
    assert f"error: {flag.partition('=')[0]}: {words}" == said
    assert fix in way_on
