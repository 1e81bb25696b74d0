"""Submitting, with a stand-in for Slurm's programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError, RunDirError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client.commands import Slurm, SlurmTimeoutError, submit_environment
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.submissions import announce, read_submissions
from hpc_elastic.slurm.submit.request import SubmitRequest, plan, read_template
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.slurm.submit.submit import Submitter, UncertainSubmissionError
from tests.slurm.conftest import StandIn


class PatientClock:
    """A clock whose sleeps take no time."""

    def monotonic(self) -> float:
        """Return a time [s]."""
        return 0.0

    def wall(self) -> float:
        """Return a time [s]."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Wait [s], not."""


def submitter(sbatch_timeout_s: float = 60.0) -> Submitter:
    """Return a submitter that uses the programs on PATH."""
    return Submitter(Slurm(sbatch_timeout_s=sbatch_timeout_s), PatientClock())


def request(**fields: Any) -> SubmitRequest:
    """Return a request for a run in ./run."""
    spec = JobSpec(
        **{
            "command": "python3 train.py",
            "run_dir": "run",
            "cpus_per_node": 1,
            "time": 5,
            "allow_local_run_dir": True,
            **fields,
        }
    )
    return plan(spec, read_template(), now_s=0)


def test_a_run_is_checked_created_queued_and_recorded(workdir: Path, slurm_dir: StandIn) -> None:
    """The script in the run directory is the one that was queued."""
    wanted = request(comment="my words")
    assert [] == submitter().check(wanted)
    queued = submitter().submit(wanted)
    assert "1000" == queued.job_id
    assert [
        "--parsable",
        f"--comment={wanted.token} my words",
        f"{workdir}/run/job.sbatch",
        "0",
    ] == slurm_dir.calls("sbatch")[-1]["argv"]
    assert [(0, wanted.token, "1000")] == [
        (s.number, s.token, s.job_id) for s in read_submissions(wanted.paths)
    ]
    assert wanted.script == next(
        call["stdin"] for call in slurm_dir.calls("sbatch") if "--test-only" in call["argv"]
    )


def test_in_a_shared_place_sbatch_looks_no_script_up(workdir: Path, slurm_dir: StandIn) -> None:
    """Whoever can rename what leads to it could have one of his own queued; so also for further jobs."""
    place = workdir / "proj"
    place.mkdir()
    place.chmod(0o2775)
    wanted = request(run_dir=str(place / "run"), chain=2)
    submitter().submit(wanted)
    first, second = slurm_dir.submissions()
    assert ("/dev/stdin", "0") == tuple(first["argv"][-2:])
    assert ("/dev/stdin", "0", "1") == tuple(second["argv"][-3:])
    assert [wanted.script] * 2 == [call["stdin"] for call in (first, second)]


def test_a_dry_run_is_the_same_request(workdir: Path) -> None:
    """Planning changes nothing on disk."""
    wanted = request()
    assert not os.path.exists(wanted.paths.root)
    assert wanted.script.startswith("#!/bin/bash")
    assert wanted.sbatch_arguments[-2:] == (wanted.paths.script, "0")


def test_without_slurm_nothing_is_created(workdir: Path, no_slurm: None) -> None:
    """The error says where to run or how to try without Slurm."""
    wanted = request()
    with pytest.raises(SlurmNotFoundError, match="'sbatch' is not on PATH") as caught:
        submitter().check(wanted)
    assert "--local" in str(caught.value)
    assert ["train.py"] == os.listdir(workdir)


def test_what_slurm_would_refuse_is_told_before_anything_is_created(
    workdir: Path, slurm_dir: StandIn
) -> None:
    """The command sbatch --test-only judges the script; its words are shown."""
    slurm_dir.behave("refuse-test")
    with pytest.raises(SlurmCommandError, match="invalid partition specified: nosuch"):
        submitter().check(request())
    assert ["train.py"] == os.listdir(workdir)


def test_a_refused_submission_leaves_nothing_that_blocks_the_next(workdir: Path, slurm_dir: StandIn) -> None:
    """Slurm's own words are shown, and the same command works once the reason is gone."""
    slurm_dir.behave("refuse")
    with pytest.raises(SlurmCommandError, match="Invalid account"):
        submitter().submit(request())
    assert ["train.py"] == os.listdir(workdir)
    assert "1000" == submitter().submit(request()).job_id


def test_an_option_that_the_installed_slurm_lacks_is_refused(workdir: Path, slurm_dir: StandIn) -> None:
    """The recorded 22.05 has no --tres-bind yet."""
    with pytest.raises(InputError, match="sbatch of this machine"):
        submitter().check(request(sbatch={"tres-bind": "gres/gpu:closest"}))


def test_an_sbatch_without_an_answer_is_looked_for_before_it_is_repeated(
    workdir: Path, slurm_dir: StandIn
) -> None:
    """The job that was queued after all is found by its token."""
    slurm_dir.behave("queue-hang")
    queued = submitter(sbatch_timeout_s=2.0).submit(request())
    assert "1000" == queued.job_id
    assert 1 == len(slurm_dir.submissions())


def test_slurms_own_time_out_is_looked_for_too(workdir: Path, slurm_dir: StandIn) -> None:
    """Then sbatch gives up on a slow controller, which then queues the job."""
    slurm_dir.behave("socket-timeout")
    assert "1000" == submitter().submit(request()).job_id
    assert ["1000"] == list(slurm_dir.jobs())


def test_an_sbatch_that_was_lost_is_repeated_once(workdir: Path, slurm_dir: StandIn) -> None:
    """And what the first one queued after all is cancelled."""
    slurm_dir.behave("lost", "twin")
    queued = submitter().submit(request())
    assert "1001" == queued.job_id
    assert {"1000": "CANCELLED", "1001": "PENDING"} == {
        key: job["JobState"] for key, job in slurm_dir.jobs().items()
    }


def test_without_any_answer_the_records_stay_and_resume_finds_out(workdir: Path, slurm_dir: StandIn) -> None:
    """Nobody knows whether the job is queued, so it is neither forgotten nor queued twice."""
    slurm_dir.behave("lost", "lost")
    wanted = request()
    with pytest.raises(UncertainSubmissionError, match=f"submit --resume {workdir}/run"):
        submitter().submit(wanted)
    (slurm_dir.state / "jobs.json").write_text(
        json.dumps({"77": {"JobState": "PENDING", "Comment": wanted.token}})
    )
    found = submitter().resume(wanted.paths.root)
    assert ("77", True) == (found.job_id, found.was_queued_before)
    assert ["77"] == [each.job_id for each in read_submissions(wanted.paths)]


def test_an_ended_run_is_queued_again_with_the_next_number(workdir: Path, slurm_dir: StandIn) -> None:
    """The stored script, a new token."""
    first = submitter().submit(request(partition="gpu"))
    slurm_dir.set_state("1000", "TIMEOUT")
    again = submitter().resume(first.request.paths.root)
    assert ("1001", 1) == (again.job_id, again.request.submission)
    assert "1" == slurm_dir.calls("sbatch")[-1]["argv"][-1]
    assert [0, 1] == [each.number for each in read_submissions(first.request.paths)]
    assert first.request.token != again.request.token
    assert first.request.script == Path(first.request.paths.script).read_text()


def test_a_run_that_is_still_active_is_not_queued_again(workdir: Path, slurm_dir: StandIn) -> None:
    """Two jobs in one run directory would fence each other."""
    first = submitter().submit(request())
    with pytest.raises(InputError, match="its job 1000 is PENDING") as caught:
        submitter().resume(first.request.paths.root)
    assert "hpc-elastic stop" in caught.value.fix


def test_a_run_that_has_ended_is_queued_again_once_its_job_has_left(
    workdir: Path, slurm_dir: StandIn
) -> None:
    """To stop it first would be refused: it has ended."""
    first = submitter().submit(request())
    log = open_log(first.request.paths, "login")
    entries: tuple[Entry, ...] = (
        EpochStarted(Epoch(0, 0, 0, 0), "1000", ()),
        RunEnded(Decision.CANCELLED, 130, "", None),
    )
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    slurm_dir.set_state("1000", "COMPLETING")
    with pytest.raises(
        InputError, match=r"has ended \(cancelled\), but its job 1000 is COMPLETING"
    ) as caught:
        submitter().resume(first.request.paths.root)
    assert caught.value.fix.startswith("wait until job 1000 has left Slurm")


def test_an_interrupted_submission_is_made_again(workdir: Path, slurm_dir: StandIn) -> None:
    """An intent without a job, which Slurm does not know either."""
    first = submitter().submit(request())
    slurm_dir.set_state("1000", "CANCELLED")
    announce(first.request.paths, 1, "hpc_elastic:lost", now_s=0)
    assert 2 == submitter().resume(first.request.paths.root).request.submission


def test_a_refused_resume_can_be_tried_again(workdir: Path, slurm_dir: StandIn) -> None:
    """The run stays as it was."""
    first = submitter().submit(request())
    slurm_dir.set_state("1000", "FAILED")
    slurm_dir.behave("refuse")
    with pytest.raises(SlurmCommandError, match="Invalid account"):
        submitter().resume(first.request.paths.root)
    assert 1 == submitter().resume(first.request.paths.root).request.submission


def test_what_holds_no_run_cannot_be_resumed(workdir: Path, slurm_dir: StandIn) -> None:
    """A missing or damaged file is named."""
    with pytest.raises(RunDirError, match="holds no run"):
        submitter().resume(str(workdir))
    queued = submitter().submit(request())
    os.unlink(queued.request.paths.job)
    with pytest.raises(RunDirError, match="cannot be read"):
        submitter().resume(queued.request.paths.root)


def test_the_stored_request_is_the_one_that_was_submitted(workdir: Path, slurm_dir: StandIn) -> None:
    """Spec, names and script survive the run directory."""
    queued = submitter().submit(request(env={"A": "x,y\n'\"\udcff"}, nodes="2:4"))
    stored = read_request(RunPaths("run"))
    assert queued.request.spec == stored.spec
    assert (queued.request.run_id, queued.request.script) == (stored.run_id, stored.script)


def test_a_surrounding_job_does_not_reach_into_the_new_one(
    workdir: Path, slurm_dir: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job submitted from a job's worker starts afresh; a user's defaults and SLURM_CONF stay."""
    around = {
        "SLURM_NTASKS": "8",
        "SLURM_CPU_BIND": "x",
        "SBATCH_TIMELIMIT": "1",
        "RANK": "3",
        "HPC_ELASTIC_RUN_DIR": "/x",
    }
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "me", "MY_OWN": "1"}
    for name, value in {**around, **kept, "SBATCH_PARTITION": "other"}.items():
        monkeypatch.setenv(name, value)
    submitter().submit(request(partition="gpu"))
    seen = slurm_dir.calls("sbatch")[-1]["env"]
    assert kept == {name: seen[name] for name in kept}
    assert not {*around, "SBATCH_PARTITION"} & set(seen)


def test_only_a_users_defaults_survive_of_the_options_in_the_environment() -> None:
    """They would override the script's own lines."""
    environ = {
        "SBATCH_QOS": "a",
        "SBATCH_NO_REQUEUE": "1",
        "SBATCH_EXPORT": "NONE",
        "SRUN_CPUS_PER_TASK": "2",
        "HOME": "/",
    }
    assert {"SBATCH_QOS": "a", "HOME": "/"} == submit_environment(environ)
    assert {"HOME": "/"} == submit_environment(environ, ["qos"])


def test_a_job_is_known_until_slurm_forgets_it(workdir: Path, slurm_dir: StandIn) -> None:
    """An unknown job is an answer, no error."""
    submitter().submit(request())
    slurm = Slurm()
    assert JobState.PENDING is slurm.job_state("1000")
    slurm.cancel("1000")
    assert JobState.ENDED is slurm.job_state("1000")
    assert slurm.show_job("999") is None


def test_a_command_that_does_not_answer_is_told_apart(workdir: Path, slurm_dir: StandIn) -> None:
    """With the time that was waited."""
    slurm_dir.behave("hang")
    with pytest.raises(SlurmTimeoutError, match="did not answer within 1 s"):
        Slurm(sbatch_timeout_s=0.7).sbatch(["x"], os.environ)
