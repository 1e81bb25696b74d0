"""The end of a job that could not be recorded: `finish` has said why in the log of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
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


def test_status_tells_it() -> None:
    """In place of an end that nobody has recorded."""
    view = RunView(state_of(), 0, "7", job("FAILED"), unrecorded="journal: No space left on device")
    expected = "job 7 ended as FAILED; its end could not be recorded: journal: No space left on device"
    assert (RunPhase.GONE, expected) == status_of(view)
