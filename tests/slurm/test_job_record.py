"""Files that tell of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import JobRecord


@pytest.mark.parametrize("told", [JobRecord("token", "7", "now"), JobRecord("token", time="now")])
def test_what_was_written_is_read(tmp_path: Path, told: JobRecord) -> None:
    """With and without the id that sbatch gives."""
    path = tmp_path / "000000.json"
    path.write_bytes(submissions.encode_record(told))
    assert told == submissions.read_record(str(path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job_id": "7"}'])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    """A job may wait or run that nobody knows of any more."""
    path = tmp_path / "000000.json"
    path.write_text(text)
    with pytest.raises(RunDirError, match="damaged, which tells of a job") as caught:
        submissions.read_record(str(path))
    assert str(path) in caught.value.fix
