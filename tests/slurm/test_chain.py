"""The jobs of a submission that come after one, with a stand-in for Slurm's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.choices import Chain
from hpc_elastic.slurm.end.other_jobs import Successors
from hpc_elastic.slurm.run_jobs.job_start import Start
from hpc_elastic.slurm.run_jobs.submissions import (
    announce_link,
    new_link,
    read_links,
    record_link,
    withdraw_link,
)
from tests.slurm.conftest import StandIn
from tests.slurm.test_submit import PatientClock, request, submitter


@pytest.fixture
def paths(workdir: Path, slurm_dir: StandIn) -> RunPaths:
    """Return the paths of a run with a chain of three jobs: 1000, 1001 and 1002."""
    submitter().submit(request(chain=3))
    return RunPaths(workdir / "run")


def after(paths: RunPaths, link: int, said: list[str] | None = None, *, local: bool = False) -> Successors:
    """Return the jobs after one of the chain."""
    start = Start(paths, Epoch(0, link, 0, 0), f"{1000 + link}", 1, local=local, srun_exit_code=75)
    return Successors(start, Slurm(), PatientClock(), ([] if said is None else said).append)


def test_the_next_job_of_the_chain_goes_on(paths: RunPaths) -> None:
    """The first one that waits and is later than this one."""
    assert [Chain(3, "1001"), Chain(3, "1002"), Chain(3, "")] == [
        after(paths, link).chain(3) for link in range(3)
    ]


def test_a_job_that_is_over_goes_on_with_nothing(paths: RunPaths, slurm_dir: StandIn) -> None:
    """The one after it does."""
    slurm_dir.set_state("1001", "CANCELLED")
    assert Chain(3, "1002") == after(paths, 0).chain(3)


def test_a_job_of_which_slurm_does_not_tell_may_wait(paths: RunPaths, no_slurm: None) -> None:
    """Two at the same time are kept apart by the run's records."""
    assert Chain(3, "1001") == after(paths, 0).chain(3)


def test_where_there_is_no_chain_nothing_follows(paths: RunPaths) -> None:
    """Nor does it in a run on one machine."""
    assert (None, None) == (after(paths, 0).chain(0), after(paths, 0, local=True).chain(3))


def test_a_job_that_was_only_announced_is_none(paths: RunPaths) -> None:
    """Who announced it died before sbatch."""
    announce_link(paths, new_link(0, 3, "token", now_s=0))
    assert Chain(4, "") == after(paths, 2).chain(4)


def test_what_has_nothing_left_to_do_is_taken_away(paths: RunPaths, slurm_dir: StandIn) -> None:
    """The later jobs, not this one and those before it."""
    after(paths, 1).cancel()
    assert [["1002"]] == [
        [word for word in call["argv"] if word.isdigit()] for call in slurm_dir.calls("scancel")
    ]


def test_a_job_without_an_id_is_not_taken_away(paths: RunPaths, slurm_dir: StandIn) -> None:
    """It was announced, and nobody knows whether it was submitted."""
    announce_link(paths, new_link(0, 3, "token", now_s=0))
    after(paths, 2).cancel()
    assert [] == slurm_dir.calls("scancel")


def test_a_job_that_slurm_does_not_know_goes_on_with_nothing(paths: RunPaths) -> None:
    """It was purged; the one after it goes on."""
    record_link(paths, new_link(0, 3, "token", now_s=0)._replace(job_id="77"))
    assert Chain(4, "") == after(paths, 2).chain(4)


def test_on_one_machine_nothing_is_taken_away(paths: RunPaths, slurm_dir: StandIn) -> None:
    """There are no jobs."""
    after(paths, 0, local=True).cancel()
    assert [] == slurm_dir.calls("scancel")


def test_what_cannot_be_taken_away_is_told(paths: RunPaths, no_slurm: None) -> None:
    """Each job, with the command that does it."""
    said: list[str] = []
    after(paths, 0, said).cancel()
    assert [f"job {job} waits for nothing: scancel {job}" for job in (1001, 1002)] == said


def test_damaged_records_of_later_jobs_are_told(paths: RunPaths, slurm_dir: StandIn) -> None:
    """Nothing is taken away then."""
    (Path(paths.submissions) / "000000-0001.json").write_text("{")
    said: list[str] = []
    after(paths, 0, said).cancel()
    assert [] == slurm_dir.calls("scancel")
    assert said[0].startswith("further jobs of the run, if there are any, stay in the queue")


def test_the_jobs_of_a_submission_are_read_in_their_order(paths: RunPaths) -> None:
    """Those of others are not among them, nor are other files; an announced one has no id yet."""
    announce_link(paths, new_link(0, 3, "token", now_s=0))
    announce_link(paths, new_link(1, 1, "other", now_s=0))
    (Path(paths.submissions) / "notes").write_text("{")
    found = read_links(paths, 0)
    assert [(0, 1, "1001"), (0, 2, "1002"), (0, 3, "")] == [
        (link.submission, link.number, link.job_id) for link in found
    ]
    assert "token" == found[-1].token
    assert ["other"] == [link.token for link in read_links(paths, 1)]
    assert [] == read_links(paths, 2)


def test_a_job_is_announced_once_and_may_be_withdrawn(paths: RunPaths) -> None:
    """What was recorded first stays."""
    link = new_link(0, 3, "token", now_s=0)
    assert announce_link(paths, link)
    assert not announce_link(paths, link._replace(time="another"))
    withdraw_link(paths, link)
    assert [1, 2] == [one.number for one in read_links(paths, 0)]
    record_link(paths, link._replace(job_id="7"))
    record_link(paths, link._replace(job_id="8"))
    assert "7" == read_links(paths, 0)[-1].job_id
