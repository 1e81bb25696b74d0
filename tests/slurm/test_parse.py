"""What Slurm's commands print, from recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.job import options

RECORDED = Path(__file__).parent / "recorded" / "22.05"


def test_all_options_of_a_recorded_help_are_found() -> None:
    """Long names with and without a short one, and with odd values, are found."""
    names = parse.help_options((RECORDED / "sbatch_help.txt").read_text())
    assert {"array", "bb", "export", "extra-node-info", "no-kill", "switches", "signal", "version"} <= names
    assert names <= options.BUILT_IN | {"help", "usage"}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("PD", JobState.PENDING),
        ("R", JobState.RUNNING),
        ("CANCELLED by 1001", JobState.ENDED),
        ("CANCELLED+", JobState.ENDED),
        ("COMPLETING", JobState.COMPLETING),
        ("REQUEUE_HOLD", JobState.REQUEUED),
        ("TIMEOUT", JobState.ENDED),
        ("OUT_OF_MEMORY", JobState.ENDED),
        ("EXPEDITING", JobState.REQUEUED),
        ("POWER_UP_NODE", JobState.RUNNING),
        ("TELEPORTING", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_states_have_long_and_short_names(text: str, state: JobState) -> None:
    """Every final state counts as ended; a word of a later version is not taken for one."""
    assert state is parse.job_state(text)


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("1234\n", "1234"),
        ("1234;dev\n", "1234"),
        ("site: welcome\n42\n", "42"),
        ("checked by filter 7\n7\nbudget left:\n9000\n1234;dev\n", "1234"),
        ("", None),
        ("Submitted x", None),
    ],
)
def test_the_job_id_is_found_among_a_sites_own_words(text: str, job_id: str | None) -> None:
    """With --parsable sbatch prints the id, a submit filter perhaps more."""
    assert job_id == parse.submitted_job_id(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6:56", 416), ("1:00:00", 3600), ("1-00:00:01", 86401), ("UNLIMITED", None), ("INVALID", None)],
)
def test_time_left_is_read(text: str, seconds: float | None) -> None:
    """As squeue prints it."""
    assert seconds == parse.time_left_s(text + "\n")


def test_the_controllers_are_read() -> None:
    """Of one, of two, and of words that are something else."""
    said = "Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at ctl2 is DOWN\n"
    assert [("ctl", True), ("ctl2", False)] == parse.controllers(said)
    assert [] == parse.controllers("slurm_load: error")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:00", 0), ("2-03:04:05", 183845), (" 59:59 ", 3599), ("1:2:3:4", None), ("5", None), ("", None)],
)
def test_each_part_of_the_time_left_counts(text: str, seconds: float | None) -> None:
    """Days, hours, minutes, seconds; anything else is no time."""
    assert seconds == parse.time_left_s(text)


@pytest.mark.parametrize(
    ("stderr", "is_unknown", "may_wait"),
    [
        ("slurm_load_jobs error: Invalid job id specified", True, False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", False, True),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", False, True),
        ("Connection TIMED OUT", False, True),
        ("sbatch: error: invalid partition specified: x", False, False),
    ],
)
def test_what_slurms_errors_mean(stderr: str, is_unknown: bool, may_wait: bool) -> None:
    """A job it does not know; a submission that may have come through."""
    assert (is_unknown, may_wait) == (parse.is_unknown_job(stderr), parse.may_have_been_queued(stderr))


def test_only_an_ended_job_is_not_active() -> None:
    """Slurm has something to do for all others."""
    assert [JobState.ENDED] == [state for state in JobState if not state.is_active]


@pytest.mark.parametrize(
    ("said", "release"),
    [("slurm 24.11.5\n", (24, 11)), ("slurm-wlm 22.05.8", (22, 5)), ("sbatch: not found", None)],
)
def test_the_release_is_read(said: str, release: tuple[int, int] | None) -> None:
    """The first two numbers are the release."""
    assert release == parse.release(said)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ((20, 2), "older than the releases"),
        ((20, 11), "hpc_elastic is tested with it"),
        ((21, 8), "between the releases"),
        ((23, 2), "between the releases"),
        ((26, 5), "hpc_elastic is tested with it"),
        ((26, 11), "newer than the releases"),
    ],
)
def test_how_a_release_is_tested_is_told(release: tuple[int, int], words: str) -> None:
    """A release between two that the tests run with is not one of them."""
    assert parse.tested_text(release).startswith(words)


@pytest.mark.parametrize(
    ("release", "said", "limit"),
    [((24, 5), "5", 5), ((26, 5), "0", 0), ((23, 11), "5", None), ((24, 5), "", None), ((24, 5), "x", None)],
)
def test_slurms_own_requeues_are_limited_since_24_05(
    release: tuple[int, int], said: str, limit: int | None
) -> None:
    """An older release, or one that tells no number, has no limit that is known."""
    assert limit == parse.requeue_limit(release, {"MaxBatchRequeue": said})


def test_a_leap_day_every_four_hundred_years_counts() -> None:
    """The year 2000 had one, 1900 had none."""
    day_s = 86400.0
    assert 2 * day_s == parse.between_s("2000-02-28T00:00:00", "2000-03-01T00:00:00")
    assert day_s == parse.between_s("1900-02-28T00:00:00", "1900-03-01T00:00:00")


def test_an_option_of_which_sbatch_says_nothing_is_taken_unless_it_begins_another() -> None:
    """The beginning of a name stands for the name."""
    assert {"hint"} == parse.options_taken(["hint"], ["hold"], lambda _: "")
    assert frozenset() == parse.options_taken(["ho"], ["hold"], lambda _: "")
