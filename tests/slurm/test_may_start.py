"""Who may take part in what a run directory holds, and what others are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.clock import date_text
from hpc_elastic.errors import RunDirError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Entry, Note, RunEnded
from hpc_elastic.record.run_log import RunLog, open_log, read_records, read_state
from hpc_elastic.slurm.run_jobs.may_start import admit, ended_text, is_own_script, refuse_running_elsewhere
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, drain, formed, start
from tests.slurm.conftest import StandIn
from tests.slurm.test_submit import request, submitter

STRANGER: dict[str, str] = {}


@pytest.fixture
def paths(workdir: Path, slurm_dir: StandIn) -> RunPaths:
    """Return the paths of a run that was submitted as job 1000."""
    submitter().submit(request())
    return RunPaths(workdir / "run")


def record(paths: RunPaths, *entries: Entry) -> None:
    """Write records of a run."""
    log = open_log(paths, "test")
    for entry in entries:
        log.commit(lambda _, entry=entry: entry)  # type: ignore[misc]


def refusal(paths: RunPaths) -> RunDirError:
    """Return what an agent of nobody's is told."""
    with pytest.raises(RunDirError) as caught:
        admit(paths, STRANGER)
    return caught.value


def test_the_own_script_is_known_by_its_directory(paths: RunPaths, tmp_path: Path) -> None:
    """By whatever way it is written; one that names no directory means this one."""
    (tmp_path / "link").symlink_to(paths.root)
    own = {Env.SUBMISSION: "0", Env.RUN_DIR: str(tmp_path / "link")}
    assert is_own_script(paths, own)
    assert is_own_script(paths, {Env.SUBMISSION: "0"})
    assert not is_own_script(paths, {**own, Env.RUN_DIR: str(tmp_path)})
    assert not is_own_script(paths, {Env.RUN_DIR: str(paths.root)})
    admit(paths, own)


def test_an_agent_of_the_script_needs_its_run(tmp_path: Path) -> None:
    """A directory that is gone is none to begin in."""
    with pytest.raises(RunDirError):
        admit(RunPaths(tmp_path / "gone"), {Env.SUBMISSION: "0"})


def test_a_run_that_nobody_submitted_takes_in_whoever_comes(run_paths: RunPaths) -> None:
    """It is a directory like any other."""
    admit(run_paths, STRANGER)


def test_a_stranger_is_told_what_the_run_is_doing(paths: RunPaths) -> None:
    """It waits in the queue, or runs on so many nodes; either can be stopped."""
    waiting = refusal(paths)
    assert "submitted as job 1000" in str(waiting)
    assert "stop it: hpc-elastic stop" in str(waiting)
    record(paths, start()._replace(job_id="1000"), formed(1))
    assert "running as job 1000 (3 nodes)" in str(refusal(paths))


def test_a_stranger_is_told_of_a_run_whose_job_is_over(paths: RunPaths, slurm_dir: StandIn) -> None:
    """It can be gone on with, whatever its last record says."""
    record(paths, start()._replace(job_id="1000"), formed(1))
    slurm_dir.set_state("1000", "FAILED")
    told = str(refusal(paths))
    assert "submitted as job 1000" in told
    assert "go on with it: hpc-elastic submit --resume" in told


def test_a_stranger_in_a_run_that_has_ended_is_told_so_by_the_run(paths: RunPaths) -> None:
    """Nothing is refused here."""
    record(paths, start()._replace(job_id="1000"), RunEnded(Decision.DONE, 0, "", None))
    admit(paths, STRANGER)


@pytest.mark.parametrize("active", ["PENDING", "RUNNING", "SUSPENDED"])
def test_another_job_at_work_keeps_the_run(paths: RunPaths, slurm_dir: StandIn, active: str) -> None:
    """The error names the job, how it stands, and what to do."""
    record(paths, start()._replace(job_id="1000"), formed(1))
    slurm_dir.set_state("1000", active)
    with pytest.raises(RunDirError, match=f"run of job 1000, which is still active .*{active}"):
        refuse_running_elsewhere(paths, read_state(paths), "2000")


@pytest.mark.parametrize("over", ["COMPLETING", "COMPLETED", "FAILED", "NODE_FAIL"])
def test_a_job_that_ends_makes_way(paths: RunPaths, slurm_dir: StandIn, over: str) -> None:
    """Slurm already takes its processes down."""
    record(paths, start()._replace(job_id="1000"), formed(1))
    slurm_dir.set_state("1000", over)
    refuse_running_elsewhere(paths, read_state(paths), "2000")


@pytest.mark.parametrize(
    ("entries", "job"),
    [((), "2000"), ((start()._replace(job_id="1000"),), "1000"), ((start(), drain()), "2000")],
    ids=["nobody began", "the same job", "it leaves"],
)
def test_slurm_is_asked_of_another_job_at_work_only(
    paths: RunPaths, slurm_dir: StandIn, entries: tuple[Entry, ...], job: str
) -> None:
    """Else there is nothing that could be refused."""
    record(paths, *entries)
    asked = len(slurm_dir.calls("scontrol")) + len(slurm_dir.calls("squeue"))
    refuse_running_elsewhere(paths, read_state(paths), job)
    assert asked == len(slurm_dir.calls("scontrol")) + len(slurm_dir.calls("squeue"))


def test_nobody_is_refused_for_want_of_an_answer(paths: RunPaths, no_slurm: None) -> None:
    """The run's own records keep two jobs apart."""
    record(paths, start()._replace(job_id="1000"), formed(1))
    refuse_running_elsewhere(paths, read_state(paths), "2000")


@pytest.mark.parametrize(
    ("decision", "goes_on"), [(Decision.DONE, False), (Decision.FAILED, True), (Decision.STOPPED, True)]
)
def test_what_is_said_of_a_run_that_has_ended(paths: RunPaths, decision: Decision, goes_on: bool) -> None:
    """What is done stays done; anything else can be gone on with, where its script is."""
    record(paths, start(), RunEnded(decision, 1, "for a reason", None, E0))
    told = ended_text(paths, read_state(paths))
    assert f"is {decision.value} since " in told
    assert goes_on is ("(for a reason)" in told)
    assert goes_on is ("submit --resume" in told)
    Path(paths.script).unlink()
    assert "submit --resume" not in ended_text(paths, read_state(paths))


def test_a_run_that_has_ended_says_since_when(paths: RunPaths) -> None:
    """By the record of its end, not by what was written before or after it."""
    clock = FakeClock()
    log = RunLog(SharedDirStore(paths.root), clock, "test")
    for entry in (start(), RunEnded(Decision.STOPPED, 0, "", None, E0), Note(E0, "later")):
        clock.advance(86400)
        log.commit(lambda _, entry=entry: entry)  # type: ignore[misc]
    at = [record.at for record in read_records(paths)][-2]
    assert f"is stopped since {date_text(at)};" in ended_text(paths, read_state(paths))


def test_a_run_that_has_not_ended_has_no_ending(paths: RunPaths) -> None:
    """Asking for it is a mistake."""
    with pytest.raises(ValueError, match="has not ended"):
        ended_text(paths, read_state(paths))


def test_a_run_of_which_slurm_tells_nothing_may_live(paths: RunPaths, no_slurm: None) -> None:
    """A stranger is told how to stop it."""
    record(paths, start()._replace(job_id="1000"), formed(1))
    assert "running as job 1000 (3 nodes)" in str(refusal(paths))
    assert "stop it: hpc-elastic stop" in str(refusal(paths))


def test_a_run_that_was_submitted_again_after_its_end_takes_no_stranger(
    paths: RunPaths, slurm_dir: StandIn
) -> None:
    """The ending was that of the submission before."""
    record(paths, start()._replace(job_id="1000"), RunEnded(Decision.STOPPED, 0, "", None))
    slurm_dir.set_state("1000", "COMPLETED")
    submitter().resume("run")
    assert "submitted as job 1001" in str(refusal(paths))
