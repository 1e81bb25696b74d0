"""Which task of an array a process belongs to."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.run_jobs.script_tasks import task_index


@pytest.mark.parametrize(
    ("text", "index"), [("7", "7"), ("", ""), ("../x", ""), ("4294967294 ", ""), ("\u0663", "")]
)
def test_a_task_is_a_number(text: str, index: str) -> None:
    """Any other text of the environment names no task, and so no directory."""
    environ = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": text}
    assert index == task_index(environ)
    assert "" == task_index({"SLURM_ARRAY_TASK_ID": text})
