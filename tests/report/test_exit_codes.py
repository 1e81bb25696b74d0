"""Exit codes in words."""

from __future__ import annotations

import pytest

from hpc_elastic.report.causes_text import code_text, job_code_text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "1"),
        (137, "137 (killed by SIGKILL)"),
        (-11, "-11 (killed by SIGSEGV)"),
        (143, "143 (killed by SIGTERM)"),
        (75, "75 (left before the run had ended)"),
        (79, "79 (the node is unfit and stays out)"),
        (83, "83 (the workers hung once too often)"),
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
