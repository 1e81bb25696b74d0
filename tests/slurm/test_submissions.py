"""The records of a run's submissions and of their further jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_elastic.clock import date_text
from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import JobRecord, Link, Submission


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return the paths of a run that nobody has submitted yet."""
    found = RunPaths(tmp_path)
    Path(found.submissions).mkdir(parents=True)
    return found


def names(paths: RunPaths) -> list[str]:
    """Return the names of the files."""
    return sorted(path.name for path in Path(paths.submissions).iterdir())


def test_a_submission_is_announced_then_recorded(paths: RunPaths) -> None:
    """The record stands for both; the first one stays."""
    assert [] == submissions.read_submissions(paths)
    submissions.announce(paths, 0, "one", now_s=0.0)
    assert [Submission(0, "one", "", date_text(0.0))] == submissions.read_submissions(paths)
    submissions.record(paths, Submission(0, "one", "7", "now"))
    submissions.record(paths, Submission(0, "one", "8", "later"))
    assert [Submission(0, "one", "7", "now")] == submissions.read_submissions(paths)
    submissions.announce(paths, 12, "three", now_s=0.0)
    submissions.record(paths, Submission(1, "two", "9", ""))
    assert [0, 1, 12] == [one.number for one in submissions.read_submissions(paths)]
    assert ["000000.intent", "000000.json", "000001.json", "000012.intent"] == names(paths)


def test_what_another_process_has_announced_is_refused(paths: RunPaths) -> None:
    """Until it is withdrawn."""
    submissions.announce(paths, 3, "one", now_s=0.0)
    with pytest.raises(RunDirError, match="submission 3 of the run in"):
        submissions.announce(paths, 3, "other", now_s=0.0)
    submissions.withdraw(paths, 3)
    assert [] == submissions.read_submissions(paths)
    submissions.announce(paths, 3, "other", now_s=0.0)
    assert ["other"] == [one.token for one in submissions.read_submissions(paths)]


@pytest.mark.parametrize("name", ["notes.json", "000001.txt", "x.intent", "000000-0001.json", "000001"])
def test_other_files_are_no_submissions(paths: RunPaths, name: str) -> None:
    """Whatever is in them."""
    (Path(paths.submissions) / name).write_text("{")
    assert [] == submissions.read_submissions(paths)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job_id": "7"}', '{"token": 1}'])
def test_a_damaged_record_is_told_with_its_path(paths: RunPaths, content: str) -> None:
    """With the command that removes it."""
    path = Path(paths.submissions) / "000001.json"
    path.write_text(content)
    with pytest.raises(RunDirError) as error:
        submissions.read_submissions(paths)
    assert f"{path} is damaged, which tells of a job: " in str(error.value)
    assert f"rm {path}" in str(error.value)


def test_a_record_leaves_out_an_id_that_is_not_known(paths: RunPaths) -> None:
    """And is read as it was written."""
    for record, keys in (
        (JobRecord("t", "7", "now"), {"token", "time", "job_id"}),
        (JobRecord("t"), {"token", "time"}),
    ):
        data = submissions.encode_record(record)
        assert keys == json.loads(data).keys()
        path = Path(paths.submissions) / "record"
        path.write_bytes(data)
        assert record == submissions.read_record(str(path))


def test_further_jobs_are_of_one_submission(paths: RunPaths) -> None:
    """In their order, each once."""
    first = submissions.new_link(0, 1, "one", now_s=0.0)
    assert Link(0, 1, "one", "", date_text(0.0)) == first
    assert submissions.announce_link(paths, first)
    assert not submissions.announce_link(paths, first)
    tenth = submissions.new_link(0, 10, "ten", now_s=0.0)._replace(job_id="9")
    submissions.record_link(paths, tenth)
    submissions.announce_link(paths, submissions.new_link(1, 2, "other", now_s=0.0))
    assert [first, tenth] == submissions.read_links(paths, 0)
    assert ["000000-0001.intent", "000000-0010.json", "000001-0002.intent"] == names(paths)
    submissions.record_link(paths, first._replace(job_id="8"))
    submissions.record_link(paths, first._replace(job_id="88"))
    submissions.withdraw_link(paths, first)
    submissions.withdraw_link(paths, tenth)
    assert ["8", "9"] == [one.job_id for one in submissions.read_links(paths, 0)]
