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
@pytest.mark.timeout(300)
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
