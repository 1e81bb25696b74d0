"""Further jobs of a submission, with a stand-in for Slurm's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.other_jobs import Successors, resubmitted
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.job_start import PATIENCE_S, Patience, Start
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.slurm.run_jobs.submissions import Link, announce_link, new_link, read_links, read_submissions
from hpc_elastic.slurm.submit.resubmit import resubmit, stored_request
from tests.slurm.conftest import StandIn
from tests.slurm.test_submit import PatientClock, request, submitter

RUN = "run"


def test_a_chain_is_queued_at_once(workdir: Path, slurm_dir: StandIn) -> None:
    """Each job waits for the one before and knows its place."""
    queued = submitter().submit(request(chain=3))
    assert ("1000", ("1001", "1002"), "") == (queued.job_id, queued.chain, queued.trouble)
    arguments = [call["argv"] for call in slurm_dir.submissions()]
    assert [["0"], ["0", "1"], ["0", "2"]] == [
        words[words.index(queued.request.paths.script) + 1 :] for words in arguments
    ]
    waits = [word for words in arguments for word in words if word.startswith("--dependency")]
    assert ["--dependency=afterany:1000", "--dependency=afterany:1001"] == waits
    assert "#SBATCH --no-requeue" in Path(queued.request.paths.script).read_text()
    run = read_run(RunPaths(workdir / RUN))
    assert ("1000", ("1001", "1002")) == (run.job_id, run.successors)


def test_a_chain_by_name(workdir: Path, slurm_dir: StandIn) -> None:
    """Slurm starts one job of a name at a time."""
    submitter().submit(request(chain=2, chain_by="singleton"))
    assert "--dependency=singleton" in slurm_dir.submissions()[-1]["argv"]


def test_a_chain_that_its_budget_would_end_is_refused() -> None:
    """Each job after the first counts as a requeue."""
    with pytest.raises(InputError, match="chain = 3, and max_requeues = 1: ") as refused:
        request(chain=3, max_requeues=1)
    assert "2 or more, or leave it out" in str(refused.value)
    request(chain=3, max_requeues=2)


def test_a_chain_of_which_a_part_is_refused(workdir: Path, slurm_dir: StandIn) -> None:
    """What could be queued stays; the user is told."""
    slurm_dir.behave("ok", "ok", "refuse")
    queued = submitter().submit(request(chain=4))
    assert ("1001",) == queued.chain
    assert "job 3 of the chain could not be queued" in queued.trouble
    assert [1] == [link.number for link in read_links(RunPaths(workdir / RUN), 0)]


def test_a_run_with_a_waiting_job_of_its_chain_is_not_submitted_again(
    workdir: Path, slurm_dir: StandIn
) -> None:
    """Two jobs would work on it."""
    submitter().submit(request(chain=2))
    slurm_dir.set_state("1000", "FAILED")
    with pytest.raises(InputError, match="its job 1001 is PENDING"):
        submitter().resume(RUN)


def test_submitting_again_twice_makes_one_job(workdir: Path, slurm_dir: StandIn) -> None:
    """A finish that was interrupted, or a survivor that does the same, finds what is there."""
    paths = submitter().submit(request(comment="mine")).request.paths
    slurm = Slurm()
    stored = stored_request(paths, 0)
    first = resubmit(stored, 1, slurm, PatientClock(), after="1000")
    assert first == resubmit(stored, 1, slurm, PatientClock(), after="1000") == "1001"
    (call,) = slurm_dir.submissions()[1:]
    assert "--dependency=afterany:1000" in call["argv"]
    assert ["0", "1"] == call["argv"][-2:]
    assert slurm_dir.jobs()["1001"]["Comment"].endswith(" mine")
    assert 1 == len(read_submissions(paths))


def test_who_died_before_sbatch_is_taken_over_from(workdir: Path, slurm_dir: StandIn) -> None:
    """The announcement alone is no job: without one the run would end without a word."""
    paths = submitter().submit(request()).request.paths
    announce_link(paths, new_link(0, 1, "token-of-the-dead", now_s=0))
    assert "1001" == resubmit(stored_request(paths, 0), 1, Slurm(), PatientClock(), after="1000")
    assert slurm_dir.jobs()["1001"]["Comment"].startswith("token-of-the-dead")
    assert ["1001"] == [link.job_id for link in read_links(paths, 0)]


def test_an_sbatch_without_an_answer_is_not_called_twice(workdir: Path, slurm_dir: StandIn) -> None:
    """The job is there; a second one would be the same start of the run."""
    slurm_dir.behave("ok", "socket-timeout")
    paths = submitter().submit(request()).request.paths
    assert "1001" == resubmit(stored_request(paths, 0), 1, Slurm(), PatientClock(), after="1000")
    assert ["1001"] == [link.job_id for link in read_links(paths, 0)]


@pytest.mark.parametrize("trouble", ["lost", "no-nodes-yet"])
def test_a_finish_outlasts_a_controller_in_trouble(workdir: Path, slurm_dir: StandIn, trouble: str) -> None:
    """One that has no time, or does not know its nodes yet; the run has not failed."""
    slurm_dir.behave("ok", trouble, trouble, "ok")
    paths = submitter().submit(request()).request.paths
    start = Start(paths, Epoch(0, 0, 0, 0), "1000", 1, local=False, srun_exit_code=75)
    said: list[str] = []
    clock = PatientClock()
    later = Successors(start, Slurm(), clock, said.append)
    assert "1001" == resubmitted(later, Patience(clock, said.append), PATIENCE_S)
    assert "trying again" in said[0]


def test_a_place_in_a_submission_is_taken_once(run_paths: RunPaths) -> None:
    """The announcement is exclusive; a record without an answer of sbatch has no id."""
    link = new_link(0, 1, "token", now_s=0)
    assert announce_link(run_paths, link)
    assert not announce_link(run_paths, link)
    assert [Link(0, 1, "token", "", link.time)] == read_links(run_paths, 0)
    assert [] == read_links(run_paths, 1)
    (Path(run_paths.submissions) / "000000-0001.json").write_text("{")
    with pytest.raises(RunDirError, match="is damaged"):
        read_links(run_paths, 0)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"chain_by": "singleton"}, "chain_by"),
        ({"chain": 2, "mode": "array"}, "chain"),
        ({"same_failure": 1}, "same_failure"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, object], where: str) -> None:
    """Before anything is queued."""
    with pytest.raises(InputError) as error:
        JobSpec(command="train.py", **fields)
    assert where == error.value.where
