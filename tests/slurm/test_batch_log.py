"""What a job has printed last."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs import job_start


def test_the_end_of_a_log_is_read(run_paths: RunPaths) -> None:
    """As far as it belongs to this start, and not more than a part of a very long one."""
    place = Path(run_paths.batch_log.replace("%j", "7_1"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"earlier\n")
    began = job_start.log_size(run_paths, "7_1")
    with place.open("ab") as file:
        file.write(b"n\xc3\xb6w \xff\n")
    assert "n\u00f6w \ufffd\n" == job_start.log_end(run_paths, "7_1", since=began)
    assert job_start.log_end(run_paths, "7_1").startswith("earlier")
    place.write_bytes(b"a" * 200_000 + b"z")
    end = job_start.log_end(run_paths, "7_1")
    assert end.endswith("az")
    assert len(end) < 100_000


@pytest.mark.parametrize("job_ref", ["8", ""])
def test_a_log_that_is_not_there_says_nothing(run_paths: RunPaths, job_ref: str) -> None:
    """Nobody waits for one."""
    assert ("", 0) == (job_start.log_end(run_paths, job_ref), job_start.log_size(run_paths, job_ref))
