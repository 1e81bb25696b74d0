"""What a run has been through, by cause, and exit codes in words."""

from __future__ import annotations

import pytest

from hpc_elastic.rendezvous.journal import Cause, Epoch, Record, Requeued
from hpc_elastic.report.causes_text import code_text, job_code_text, requeues_text, restarts_text, used_text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "1"),
        (137, "137 (killed by SIGKILL)"),
        (-11, "-11 (killed by SIGSEGV)"),
        (143, "143 (killed by SIGTERM)"),
        (75, "75 (drained, to be requeued)"),
        (127, "127 (the program was not found)"),
        (168, "168 (srun could not start the step: its credential was revoked)"),
        (255, "255"),
    ],
)
def test_codes_are_resolved(code: int, text: str) -> None:
    """Signals by name, our own codes and those of srun by meaning."""
    assert text == code_text(code)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("0:0", ""),
        ("", ""),
        ("1:0", "exit code 1"),
        ("137:0", "exit code 137 (killed by SIGKILL)"),
        ("0:9", "exit code -9 (killed by SIGKILL)"),
    ],
)
def test_codes_of_jobs_are_resolved(field: str, text: str) -> None:
    """Slurm gives an exit code and a signal."""
    assert text == job_code_text(field)


def test_ends_and_requeues_are_counted_by_cause() -> None:
    """The most frequent first; only those of the submission that is asked for."""
    counts = {Cause.CRASH: 1, Cause.NODE_LOSS: 2, Cause.HANG: 0}
    assert "2 node loss, 1 crash" == restarts_text(counts)
    causes = [Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.PREEMPTION]
    records = [
        Record(number, 0.0, "batch", Requeued(Epoch(1, number, 0), cause))
        for number, cause in enumerate(causes)
    ]
    assert "2 preemption, 1 time limit" == requeues_text(records, 1)
    assert "" == requeues_text(records, 0)


def test_budgets_are_told_with_their_causes() -> None:
    """Without a budget only what was used."""
    assert "2 of 500 requeues (2 preemption)" == used_text(2, 500, "requeue", "2 preemption")
    assert "1 failure" == used_text(1, None, "failure", "")
