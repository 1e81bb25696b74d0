"""``hpc-elastic finish`` as the job script calls it: exit codes, words, and what it may import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.commands.ending import finish
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import read_state
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import DRAINED, EPOCH, ROUND, STARTED, job, kinds, paths, write

__all__ = ["job", "paths"]


def command(paths: RunPaths, job: FakeJob, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``hpc-elastic finish`` as the script does."""
    argv = [sys.executable, "-m", "hpc_elastic", "finish", f"--run-dir={paths.root}", *flags]
    env = {**job.environ, "SLURM_JOB_ID": "7", Env.SUBMISSION: "0", **environ}
    env = {name: value for name, value in env.items() if value}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_prints_the_node_count_alone_to_stdout(paths: RunPaths, job: FakeJob) -> None:
    """The script takes stdout as the node count."""
    write(paths, STARTED, ROUND)
    done = command(paths, job, "--srun-exit-code=137", HPC_ELASTIC_LOCAL="1", SLURM_NNODES="2")
    assert (80, "2\n") == (done.returncode, done.stdout)
    assert "start the agents again" in done.stderr


@pytest.mark.parametrize(("submission", "printed"), [("0", "0\n"), ("", "")])
def test_a_code_that_shells_have_too_is_told_by_a_word(
    paths: RunPaths, job: FakeJob, submission: str, printed: str
) -> None:
    """The run's own script tells it from a finish that cannot be run; other scripts print what they get."""
    write(paths, STARTED, ROUND, RunEnded(Decision.FAILED, 127, "a worker failed", None))
    done = command(paths, job, "--srun-exit-code=127", HPC_ELASTIC_SUBMISSION=submission)
    assert (127, printed) == (done.returncode, done.stdout)


def test_a_log_that_cannot_be_written_costs_the_job_nothing(paths: RunPaths, job: FakeJob) -> None:
    """It is on the same disk as the checkpoints, which fill it."""
    write(paths, STARTED, ROUND)
    argv = [sys.executable, "-m", "hpc_elastic", "finish", f"--run-dir={paths.root}", "--srun-exit-code=137"]
    env = {**job.environ, "SLURM_JOB_ID": "7", Env.SUBMISSION: "0", "SLURM_NNODES": "2"}
    env["HPC_ELASTIC_LOCAL"] = "1"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert (80, b"2\n") == (done.returncode, done.stdout)


def test_the_command_ends_a_log_with_the_root_cause(
    paths: RunPaths, job: FakeJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever opens the log at its end sees why: the root cause, and the text of explain."""
    monkeypatch.setenv("PATH", "/nowhere")
    failure = {"rank": 3, "node": "n2", "pid": 12, "exitcode": 1, "message": "ValueError: bad"}
    write(paths, STARTED, ROUND, RunEnded(Decision.FAILED, 1, "no restarts are left", failure))
    spec = {"format": 1, "spec": {"command": ["python3", "-u", "code/train.py", "--lr", "1"], "name": "toy"}}
    Path(paths.job).write_text(json.dumps(spec))
    done = command(paths, job, "--srun-exit-code=1")
    assert (1, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("Root Cause")
    assert "\ntrain.py FAILED\n" in done.stderr
    assert "ValueError: bad" in done.stderr
    assert f"submit --resume {paths.root}" in done.stderr.splitlines()[-1]
    assert 0 == app.run(["explain", paths.root])
    explained = capfd.readouterr().out
    assert "To do:" in explained
    assert explained.partition("  - when it is mended")[0] in done.stderr
    assert 1 == done.stderr.count("submit --resume")


def test_the_command_names_an_array_task_by_array_and_index(paths: RunPaths, job: FakeJob) -> None:
    """The id of an array's last task is that of the whole array."""
    write(paths, STARTED._replace(job_id="7_2"), *DRAINED[1:])
    done = command(paths, job, "--srun-exit-code=75", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    assert 75 == done.returncode
    assert ["scontrol requeue 7_2"] == job.calls


def test_a_local_run_is_requeued_by_its_exit_code(paths: RunPaths, job: FakeJob) -> None:
    """The local runner starts the script again; there is no Slurm to ask."""
    write(paths, *DRAINED)
    done = command(paths, job, "--srun-exit-code=75", HPC_ELASTIC_LOCAL="1", SLURM_NNODES="2")
    assert (75, "") == (done.returncode, done.stdout)
    assert [] == job.calls
    assert 1 == read_state(paths).requeues


@pytest.mark.parametrize("has_root", [True, False])
def test_a_run_that_is_gone_is_neither_started_again_nor_made(
    paths: RunPaths, job: FakeJob, has_root: bool
) -> None:
    """The job ends; an empty directory under the old name is not taken for a run without records."""
    os.rename(paths.root, f"{paths.root}.away")
    if has_root:
        os.mkdir(paths.root)
    done = command(paths, job, "--srun-exit-code=137", HPC_ELASTIC_LOCAL="1", SLURM_NNODES="2")
    assert (76, "") == (done.returncode, done.stdout)
    assert f"run directory {paths.root}: {'there is no run.json in it' if has_root else 'it is gone'}" in (
        done.stderr
    )
    assert has_root == os.path.exists(paths.root)
    assert not has_root or not os.listdir(paths.root)


def test_words_in_the_log_act_on_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever shows it with cat is as safe as with `hpc-elastic logs`."""
    (tmp_path / "other").touch()  # its directory is no mount that may come back
    assert 76 == finish.main([f"--run-dir={tmp_path}/\x1b]0;OWNED\x07\u202e"])
    said = capfd.readouterr().err
    assert r"\x1b]0;OWNED\x07" in said
    assert [] == [char for char in "\x1b\x07\u202e" if char in said]


def test_a_local_run_that_was_told_to_end_is_stopped(paths: RunPaths, job: FakeJob, tmp_path: Path) -> None:
    """It is not requeued; what was saved is told."""
    write(paths, *DRAINED)
    told = tmp_path / "told"
    told.write_text("SIGTERM")
    environ = {"HPC_ELASTIC_LOCAL": "1", "HPC_ELASTIC_LOCAL_END": str(told), "SLURM_NNODES": "2"}
    done = command(paths, job, "--srun-exit-code=75", **environ)
    assert 75 == done.returncode
    assert "the run is stopped: ended by SIGTERM; checkpoint of step 4" in done.stderr
    ending = read_state(paths).ending
    assert ending is not None
    assert (Decision.STOPPED, 75) == (ending.decision, ending.exit_code)
    assert Requeued not in kinds(paths)


def test_the_command_is_light(paths: RunPaths, job: FakeJob) -> None:
    """It runs on a compute node while the job's grace runs out."""
    code = (
        "import sys, hpc_elastic.cli.main, hpc_elastic.cli.commands.ending.finish;"
        "print([m for m in ('psutil',) if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()


def test_the_end_of_a_users_own_script_names_no_command_that_cannot_work(
    paths: RunPaths, job: FakeJob
) -> None:
    """There is no script of ours to resume."""
    os.unlink(paths.identity)
    write(paths, STARTED, RunEnded(Decision.FAILED, 1, "no restarts are left", None))
    done = command(paths, job, "--srun-exit-code=1", HPC_ELASTIC_SUBMISSION="")
    last = done.stderr.splitlines()[-1]
    command_line = f"submit the same job script again, with --run-dir {paths.root}; "
    command_line += f"one that adopt has changed: HPC_ELASTIC_RESUME={paths.root} sbatch SCRIPT"
    assert f"  to start it again (it has marked no checkpoint): {command_line}" == last
    write_mark(paths, MarkName(40, 1, 0, 1), None, 1)
    done = command(paths, job, "--srun-exit-code=1", HPC_ELASTIC_SUBMISSION="")
    assert f"  to go on from the checkpoint of step 40: {command_line}" == done.stderr.splitlines()[-1]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_program_that_setup_lacks_ends_the_run_in_its_own_words(
    paths: RunPaths, job: FakeJob, is_first: bool
) -> None:
    """It would be missing in the next start, too; once workers have run it is a node's fault."""
    if not is_first:
        write(paths, STARTED, ROUND, Requeued(EPOCH, Cause.PREEMPTION))
        job.set(Restarts="1")
    said = "setup failed (exit code 127): nosuch --load"
    log = "/var/spool/job00007/slurm_script: line 31: nosuch: command not found"
    Path(paths.batch_log.replace("%j", "7")).write_text(f"{log}\nhpc_elastic: {said}\n")
    flags = "--launch-failure=nosuch --load", "--launch-failure-in=setup", "--launch-failure-code=127"
    done = command(paths, job, *flags, SLURM_RESTART_COUNT="" if is_first else "1")
    words = f"{said} (nosuch: command not found)"
    if not is_first:
        assert (75, ["scontrol requeue 7"]) == (done.returncode, job.calls), done.stderr
        assert f"{words}: requeue 2 of" in done.stderr
        return
    assert (76, []) == (done.returncode, job.calls), done.stderr
    ending = read_state(paths).ending
    assert ending is not None
    assert f"{words}; it would fail again, so mend it in job.sbatch of the run directory" in ending.reason
    assert "to start it again (it has marked no checkpoint): hpc-elastic submit" in done.stderr


def test_a_setup_line_that_fails_twice_alike_holds_the_job(paths: RunPaths, job: FakeJob) -> None:
    """Once it may be the node; the third try of the same would tell nothing new."""
    said = "setup failed (exit code 1): module load x"
    flags = "--launch-failure=module load x", "--launch-failure-in=setup", "--launch-failure-code=1"
    done = command(paths, job, *flags)
    assert (75, ["scontrol requeue 7"]) == (done.returncode, job.calls), done.stderr
    job.set(Restarts="1")
    done = command(paths, job, *flags, SLURM_RESTART_COUNT="1")
    assert (
        f"the run is held: {said}; as in an earlier start; mend the cause and release the job" in done.stderr
    )
    assert "scontrol requeuehold 7" == job.calls[-1]


def test_in_a_container_the_script_does_what_finish_asks_for(paths: RunPaths, job: FakeJob) -> None:
    """There is no scontrol there; the script tells what it says, and acts by the exit code."""
    info = "JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0 PreemptTime=None NumNodes=2"
    job.remove()
    write(paths, *DRAINED)
    done = command(paths, job, f"--job-info={info}", "--max-preemptions=0")
    assert (82, "") == (done.returncode, done.stdout), done.stderr
    held = read_state(paths).ending
    assert held is not None
    assert Decision.HELD is held.decision


def test_in_a_container_a_job_is_requeued_by_its_script(paths: RunPaths, job: FakeJob) -> None:
    """One that was cancelled is not, and nothing is done where nothing was told."""
    info = "JobId=7 JobState={} Reason=None Requeue=1 Restarts=0 PreemptTime=None NumNodes=2"
    job.remove()
    write(paths, *DRAINED)
    assert 75 == command(paths, job, "--job-info=").returncode
    assert 81 == command(paths, job, f"--job-info={info.format('RUNNING')}").returncode
    assert 130 == command(paths, job, f"--job-info={info.format('COMPLETING')}").returncode


def test_in_a_container_a_name_that_looks_like_a_field_is_not_believed(paths: RunPaths, job: FakeJob) -> None:
    """Nor is the job taken for cancelled then, nor for running: nobody can tell which field is Slurm's."""
    job.remove()
    write(paths, *DRAINED)
    shown = "JobId=7 JobName={} JobState=COMPLETING Reason=TimeLimit Requeue=1 Restarts=0 NumNodes=2"
    done = command(paths, job, f"--job-info={shown.format('x JobState=CANCELLED')}")
    assert 75 == done.returncode
    assert "cannot be read for sure: JobState= stands there more than once" in done.stderr
    assert "fix: give the job a name without words that look like a field" in done.stderr
    assert read_state(paths).ending is None
    assert 81 == command(paths, job, f"--job-info={shown.format('x y=CANCELLED')}").returncode


def test_in_a_container_a_task_is_requeued_by_its_script(paths: RunPaths, job: FakeJob) -> None:
    """Nobody there knows of the other tasks, so that a cancelled one does not end the run."""
    info = "JobId=8 JobState={} Reason=None Requeue=1 Restarts=0 PreemptTime=None NumNodes=1"
    job.remove()
    member = Member("n2.1@7_1-0-0", "n2", 1)
    left = NodeLeft(EPOCH, member.node_id, "n2", Cause.PREEMPTION, "SIGTERM")
    write(paths, EpochStarted(EPOCH, "7", ()), RoundFormed(1, EPOCH, (member,), "n2", 1234, None), left)
    task = {Env.MODE: "array", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    assert 81 == command(paths, job, f"--job-info={info.format('RUNNING')}", **task).returncode
    assert 130 == command(paths, job, f"--job-info={info.format('COMPLETING')}", **task).returncode
    assert read_state(paths).ending is None
