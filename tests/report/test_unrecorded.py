"""The end of a job that could not be recorded: `finish` has said why in the log of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Epoch, EpochStarted, Record, Requeued
from hpc_elastic.report.causes_text import restarts_text
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.run_jobs.job_start import NOT_REQUEUED, unrecorded_end
from tests.report.test_run_status import job, state_of

HEAD = "[2026-11-28 10:00:00] hpc_elastic finish: "


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("worker: hello\n", ""),
        (
            f"{HEAD}trying again for up to 60 s: full\n{HEAD}{NOT_REQUEUED}journal: full\n  to go on: x\n",
            "journal: full",
        ),
        (f"{HEAD}{NOT_REQUEUED}journal: full\n{HEAD}requeue 1 of at most 500\n", ""),
    ],
)
def test_the_last_word_of_finish_counts(tmp_path: Path, log: str, reason: str) -> None:
    """One of an earlier start has led to another one."""
    paths = RunPaths(tmp_path)
    Path(paths.batch_log.replace("%j", "7")).write_text(log)
    assert reason == unrecorded_end(paths, "7")
    assert "" == unrecorded_end(paths, "8")


def test_a_cause_that_nothing_tells_is_not_called_by_hand() -> None:
    """The next start has found the end; nobody has said that somebody requeued the job."""
    back = Requeued(Epoch(0, 0, 0, 0), Cause.UNKNOWN)
    began = EpochStarted(back.epoch, "7", ("n1",))
    state, records = state_of(began, back), [Record(1, 0.0, "n1", began), Record(2, 0.0, "n1", back)]
    shown = (
        status_of(RunView(state, 0, "7", job("PENDING"), handed_back=back)).text,
        *(moment.text for moment in timeline(records)[1:]),
        restarts_text({Cause.UNKNOWN: 2}),
    )
    for text in shown:
        assert "not known" in text or "unknown" in text
        assert "by hand" not in text


def test_status_tells_it() -> None:
    """In place of an end that nobody has recorded."""
    view = RunView(state_of(), 0, "7", job("FAILED"), unrecorded="journal: No space left on device")
    expected = "job 7 ended as FAILED; its end could not be recorded: journal: No space left on device"
    assert (RunPhase.GONE, expected) == status_of(view)
