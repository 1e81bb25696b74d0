"""A submit that is killed at any point is recovered by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from tests.slurm.conftest import StandIn

PROGRAM = Path(__file__).with_name("killed_submit.py")
SUBMIT = ("submit", "--nodes=1", "--time=5", "--cpus-per-node=1", "--allow-local-run-dir")
WORKER = ("--", "python3", "train.py")


def submit_killed(at: int, root: Path) -> int:
    """Submit into a directory, killed before a change of a file; return the exit code."""
    words = [sys.executable, str(PROGRAM), str(at), str(root), *SUBMIT, f"--run-dir={root}", *WORKER]
    return subprocess.run(words, capture_output=True, check=False).returncode


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_goes_on_wherever_submit_was_killed(
    workdir: Path, slurm_dir: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job is queued, whatever was there; status always tells something that helps."""
    for at in count(1):
        root = workdir / f"run{at}"
        before = len(slurm_dir.jobs())
        code = submit_killed(at, root)
        if code == 0:
            break
        assert -signal.SIGKILL == code
        paths = RunPaths(str(root))
        was_recorded = [bool(one.job_id) for one in read_submissions(paths)] == [True]
        if os.path.exists(paths.identity):
            assert 0 == main(["status", str(root)]), at
            said = capsys.readouterr().out
            assert was_recorded or "the submission was interrupted" in said, (at, said)
        again = main([*SUBMIT, f"--run-dir={root}", *WORKER])
        assert (2 if was_recorded else 0) == again, (at, capsys.readouterr().err)
        assert before + 1 == len(slurm_dir.jobs()), at
        assert read_submissions(paths)[-1].job_id, at
    assert at > 10


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_the_job_that_was_queued_all_the_same_is_ended_with_its_run(
    workdir: Path, slurm_dir: StandIn, command: str
) -> None:
    """Submit was killed before it could write down which it is; the next one queues a job that runs."""
    root = str(workdir / "run")
    submit = [*SUBMIT, f"--run-dir={root}", *WORKER]
    assert 0 == main(submit)
    (job_id,) = slurm_dir.jobs()
    (Path(RunPaths(root).submissions) / "000000.json").unlink()
    assert 0 == main([command, root])
    assert "CANCELLED" == slurm_dir.jobs()[job_id]["JobState"]
    assert 0 == main(["submit", "--resume", root])
    assert 2 == len(slurm_dir.jobs())
    assert [job_id] != [read_submissions(RunPaths(root))[-1].job_id]


def test_a_job_that_came_after_its_run_was_ended_is_not_waited_for(
    workdir: Path, slurm_dir: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """An sbatch may outlive the submit that was killed; its agents would find the run ended, and leave."""
    root = str(workdir / "run")
    assert 0 == main([*SUBMIT, f"--run-dir={root}", *WORKER])
    (job_id,) = slurm_dir.jobs()
    (Path(RunPaths(root).submissions) / "000000.json").unlink()
    jobs = (slurm_dir.state / "jobs.json").read_text()
    (slurm_dir.state / "jobs.json").write_text("{}")
    assert 0 == main(["stop", root])
    (slurm_dir.state / "jobs.json").write_text(jobs)
    assert 0 == main(["submit", "--resume", root])
    newest = read_submissions(RunPaths(root))[-1].job_id
    assert f"queued as job {newest}" in capsys.readouterr().out
    assert {job_id: "CANCELLED", newest: "PENDING"} == {
        name: job["JobState"] for name, job in slurm_dir.jobs().items()
    }


def test_before_the_job_script_all_give_the_same_advice(
    workdir: Path, slurm_dir: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command sends to one that refuses."""
    root = workdir / "run"
    at = next(
        at for at in count(3) if submit_killed(at, root) and os.path.exists(RunPaths(str(root)).identity)
    )
    assert at
    for words in (("stop", str(root)), ("submit", "--resume", str(root))):
        assert 2 == main(list(words))
        assert f"the same {'submit ' * (words[0] == 'submit')}command again, with" in capsys.readouterr().err
    assert 0 == main(["status", str(root)])
    assert f"next: the same command again, with --run-dir {root}" in capsys.readouterr().out
