"""The flags of `hpc-elastic run`, and the fields of a job, for workers that make no progress."""

from __future__ import annotations

import math

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.errors import InputError
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.job.script import agent_flags
from hpc_elastic.slurm.job.spec import JobSpec


def options(*flags: str) -> HangOptions:
    """Return what flags come to."""
    return HangOptions.of_settings(AgentSettings.of(parser().parse_args([*flags, "train.py"])))


def test_the_defaults() -> None:
    """Both times are learned."""
    assert HangOptions() == options()


@pytest.mark.parametrize(
    ("text", "limit"),
    [("auto", None), ("off", math.inf), ("OFF", math.inf), ("90", 90.0), ("1.5", 1.5), ("5m", 300.0)],
)
def test_times(text: str, limit: float | None) -> None:
    """Seconds, a time with a unit, or a word; each flag is its own."""
    assert HangOptions(timeout=limit) == options(f"--hang-timeout={text}")
    assert HangOptions(first_step=limit) == options(f"--first-step-timeout={text}")


@pytest.mark.parametrize("flag", ["--hang-timeout", "--first-step-timeout"])
@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf", "5 parsecs"])
def test_what_is_no_time(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the flag and what to give."""
    with pytest.raises(SystemExit):
        options(f"{flag}={text}")
    said = capsys.readouterr().err
    assert said.startswith(f"error: {flag}: '{text}' ")
    assert said.endswith("fix: write a time (90s, 10m, 1h30m), auto or off\n")


@pytest.mark.parametrize(
    ("value", "flag"), [("10m", "600"), (30, "30"), (1.5, "1.5"), ("auto", "auto"), ("Off", "off")]
)
def test_fields_of_a_job_become_flags(value: object, flag: str) -> None:
    """The agents read them as they are written."""
    spec = JobSpec(command="a", hang_timeout=value, first_step_timeout=value)
    given = [f"--hang-timeout={flag}", f"--first-step-timeout={flag}"]
    assert set(given) <= set(agent_flags(spec))
    assert HangOptions() == options(*given) if flag == "auto" else options(*given).timeout is not None


def test_without_the_fields_there_are_no_flags() -> None:
    """The agents' own defaults hold."""
    flags = " ".join(agent_flags(JobSpec(command="a")))
    assert "--hang-timeout" not in flags
    assert "--first-step-timeout" not in flags


@pytest.mark.parametrize("value", ["soon", 0, -1, "0s"])
def test_what_is_no_time_in_a_job(value: object) -> None:
    """It is refused before anything is queued."""
    with pytest.raises(InputError) as caught:
        JobSpec(command="a", hang_timeout=value)
    assert "hang_timeout" == caught.value.where
