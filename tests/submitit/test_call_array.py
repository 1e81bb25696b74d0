"""Calls that are one job array: what Slurm gets, and what becomes of each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import FailedSubmissionError, UncompletedJobError

from hpc_elastic.api import Run
from hpc_elastic.api.start import start
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, RunDirError, SlurmCommandError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from hpc_elastic.slurm.submit.submit import Submitter
from hpc_elastic.submitit import HpcElasticJob, submission
from hpc_elastic.submitit.submission import UncertainArrayError, array_text
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.submitit.jobs import add, executor, on_slurm, patient, wait_for

pytestmark = pytest.mark.fake_slurm(speed=600, nodes=2)

LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit: Job violates accounting/QOS policy"
FIRST = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --output="/logs/my runs/train-1-0/slurm-%j.out"
#SBATCH --requeue --open-mode=append

# not for sbatch
echo
"""


def start_task(stem: Path, index: int = 1) -> subprocess.CompletedProcess[str]:
    """Do what Slurm does with the script of an array."""
    text = array_text(FIRST, str(stem), 3, 256)
    environ = {**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}
    place = stem.parent
    return subprocess.run(
        ["bash", "-c", text], cwd=place, env=environ, capture_output=True, text=True, check=False
    )


def make_task(run: Path, mode: int = 0o700) -> Path:
    """Return a new run directory with a script."""
    run.mkdir()
    (run / "job.sbatch").write_text(f"echo {run.name} at work\n")
    run.chmod(mode)
    return run


def test_a_task_of_an_array_starts_the_script_of_its_run(tmp_path: Path) -> None:
    """Also where the run was moved and a link of the user's own left."""
    make_task(tmp_path / "my runs-1")
    assert "my runs-1 at work\n" == start_task(tmp_path / "my runs").stdout
    (tmp_path / "my runs-2").symlink_to(make_task(tmp_path / "moved"))
    assert "moved at work\n" == start_task(tmp_path / "my runs", 2).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_a_task_of_an_array_starts_nothing_that_others_have_put_there(tmp_path: Path) -> None:
    """Neither their directory, nor one that they can write to, nor one that their link leads to."""
    make_task(tmp_path / "train-0", 0o770)
    os.chown(make_task(tmp_path / "train-1"), 65534, 65534)
    (tmp_path / "train-2").symlink_to(make_task(tmp_path / "another"))
    os.chown(tmp_path / "train-2", 65534, 65534, follow_symlinks=False)
    for index in range(3):
        done = start_task(tmp_path / "train", index)
        assert (76, "") == (done.returncode, done.stdout)
        assert f"another directory is in the place of {tmp_path}/train-{index}" in done.stderr


def test_the_script_of_an_array() -> None:
    """It has the options of its runs, a log in the directory of each, and starts the run's own script."""
    text = array_text(FIRST, "/logs/100% my runs/it's-1", 3, 256)
    assert [
        "#!/bin/bash",
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=2",
        "#SBATCH --requeue --open-mode=append",
        '#SBATCH --output="/logs/100%% my runs/it\'s-1-%a/slurm-%A_%a.out"',
        "#SBATCH --array=0-2%3",
    ] == text.splitlines()[:6]
    assert 'run="/logs/100% my runs/it\'s-1"-"$SLURM_ARRAY_TASK_ID" found=\n' in text
    assert "#SBATCH --array=0-9%4\n" in array_text(FIRST, "/logs/a", 10, 4)


@pytest.mark.slow
def test_the_calls_of_a_map_are_one_array(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Each is a task with a run of its own and its own name; no more run at once than was asked for."""
    os.unlink(Path(fake_slurm.bin) / "sacct")  # whose answers may be about older jobs of the same id
    folder = tmp_path / "it's 100% $HOME"
    made = on_slurm(folder, tasks_per_node=2, hpcelastic_array_parallelism=2)
    go, ready = str(tmp_path / "go"), str(tmp_path / "ready")
    jobs = made.map_array(patient, [go] * 3, [f"{ready}{index}" for index in range(3)])
    array = jobs[0].job_id.partition("_")[0]
    ids = [f"{array}_{index}" for index in range(3)]
    assert ids == [job.job_id for job in jobs]
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 4, "the workers of two calls")
    assert ("2", "JobArrayTaskLimit") == (
        fake_slurm.job(ids[2])["ArrayTaskThrottle"],
        fake_slurm.job(ids[2])["Reason"],
    )
    assert ["RUNNING", "RUNNING", "PENDING"] == [job.state for job in jobs]
    Path(go).touch()
    assert [[job_id] * 2 for job_id in ids] == [job.results() for job in jobs]
    assert ids == [Path(f"{ready}{index}.1").read_text() for index in range(3)]
    assert ["COMPLETED"] * 3 == [job.state for job in jobs]
    roots = [Path(job.run.directory) for job in jobs]  # type: ignore[attr-defined]
    stem = str(roots[0]).removesuffix("-0")
    assert [f"{stem}-{index}" for index in range(3)] == [str(root) for root in roots]
    assert all((root / f"slurm-{job_id}.out").exists() for root, job_id in zip(roots, ids, strict=True))


@pytest.mark.slow
@pytest.mark.fake_slurm(grace=0.0)
def test_a_task_that_is_lost_or_cancelled_is_so_alone(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """The last task has the id of the whole array; NODE_FAIL and what follows are not the end of a job."""
    made = on_slurm(tmp_path / "log", hpcelastic_additional_parameters={"exclusive": True})
    go, ready = str(tmp_path / "go"), str(tmp_path / "ready")
    with made.batch():
        jobs: list[Any] = [made.submit(patient, go, f"{ready}{index}") for index in range(3)]
    first, second, last = jobs
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2, "two calls to run")
    first.cancel()
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 3, "the last one to run")
    assert last.job_id.partition("_")[0] == fake_slurm.job(last.job_id)["JobId"]
    os.unlink(f"{ready}2.0")
    node = fake_slurm.job(last.job_id)["NodeList"]
    fake_slurm.crash(node)
    wait_for(lambda: fake_slurm.job(last.job_id)["Restarts"] == "1", "the requeue of the last")
    assert (False, False) == (last.done(), last.done(force_check=True))
    fake_slurm.boot(node)
    fake_slurm.resume(node)
    wait_for(Path(f"{ready}2.0").exists, "the last one to run again")
    Path(go).touch()
    assert (second.job_id, last.job_id) == (second.result(), last.result())
    assert "0" == fake_slurm.job(second.job_id)["Restarts"]
    with pytest.raises(UncompletedJobError, match="cancelled"):
        first.result()
    assert (True, True, True) == (first.done(), second.done(), last.done())


def test_a_refused_array_leaves_nothing_behind(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm's words and what was asked for are told; no directory stays."""
    refuse(fake_slurm, "1")
    with pytest.raises(SlurmCommandError, match=r"(?s)QOSMaxSubmitJobPerUserLimit.*asked for: .*--nodes=1"):
        on_slurm(tmp_path / "log").map_array(add, [1, 2], [3, 4])
    assert [] == list((tmp_path / "log").iterdir())


@pytest.mark.fake_slurm(start_delay=600.0)
def test_arrays_before_one_that_is_refused_are_cancelled(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More calls than fit into one array become several; the error says what became of those."""
    monkeypatch.setattr(submission, "_max_array_size", lambda: 2)
    jobs = on_slurm(tmp_path / "good").map_array(add, [1, 2, 3], [3, 4, 5])
    arrays = [job.job_id.partition("_")[0] for job in jobs]
    assert arrays[0] == arrays[1] != arrays[2]
    with pytest.raises(InputError, match="several arrays"):
        on_slurm(tmp_path / "log", hpcelastic_array_parallelism=1).map_array(add, [1] * 3, [2] * 3)
    refuse(fake_slurm, "2")
    with pytest.raises(FailedSubmissionError, match=r"(?s)only 2 of 3 calls .* cancelled:.*QOSMaxSubmit"):
        on_slurm(tmp_path / "log").map_array(add, [1, 2, 3], [3, 4, 5])
    roots = [path.resolve() for path in (tmp_path / "log").glob("*_run")]
    ids = [read_submissions(RunPaths(root))[-1].job_id for root in roots]
    assert 2 == len(ids)
    assert ["CANCELLED"] * 2 == [fake_slurm.job(job_id)["JobState"] for job_id in ids]


@pytest.mark.fake_slurm(start_delay=600.0)
def test_a_task_is_found_after_an_interrupted_submission(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Its id was not written down, but Slurm has the array: the run is not queued a second time."""
    job = on_slurm(tmp_path / "log").map_array(add, [1, 2], [3, 4])[1]
    paths = RunPaths(job.run.directory)  # type: ignore[attr-defined]
    os.unlink(Path(paths.submissions) / "000000.json")
    done = Submitter(Slurm(fake_slurm.environ), SystemClock()).resume(paths.root)
    assert "PENDING" == job.state
    fake_slurm.command("scancel", job.job_id)
    text = f"job {job.job_id} ended as CANCELLED, and its agents have recorded no end"
    assert {"State": "CANCELLED", "Text": text} == job.get_info()
    assert (job.job_id, True) == (done.job_id, done.was_queued_before)
    assert job.job_id == read_submissions(paths)[-1].job_id


@pytest.mark.fake_slurm(start_delay=600.0)
def test_an_array_of_which_nobody_knows_is_told(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sbatch gives no answer, and Slurm shows no such job: the runs stay, and each can be resumed."""
    monkeypatch.setattr(submission, "SystemClock", FakeClock)
    refuse(fake_slurm, "1", "sbatch: error: Socket timed out on send/recv operation")
    with pytest.raises(UncertainArrayError) as caught:
        on_slurm(tmp_path / "log").map_array(add, [1, 2], [3, 4])
    assert "timed out on send/recv operation\n  fix: when Slurm answers again, for each of the run " in str(
        caught.value
    )
    roots = sorted(path for path in (tmp_path / "log").iterdir() if path.is_dir())
    assert [f"{caught.value.stem}-0", f"{caught.value.stem}-1"] == [str(root) for root in roots]
    os.rename(Path(fake_slurm.bin) / "sbatch.real", Path(fake_slurm.bin) / "sbatch")
    done = Submitter(Slurm(fake_slurm.environ), SystemClock()).resume(str(roots[1]))
    assert (True, False) == (done.job_id.isdigit(), done.was_queued_before)


def test_who_interrupts_gets_no_half_of_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two submissions cancels what was submitted, and is what the program sees."""
    first: list[HpcElasticJob[Any]] = []

    def interrupted(spec: JobSpec, call: bytes, **how: Any) -> Run:
        if first:
            raise KeyboardInterrupt
        run = start(spec, call, **how)
        first.append(HpcElasticJob.of_run(tmp_path / "mine", run))
        return run

    monkeypatch.setattr(submission, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executor(tmp_path / "log").map_array(
            patient, [str(tmp_path / "go")] * 2, [str(tmp_path / "ready")] * 2
        )
    first[0].wait()
    assert "INTERRUPTED" == first[0].state


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory here")
def test_the_way_to_insist_is_named_as_executors_take_it(fake_slurm: FakeSlurm) -> None:
    """A folder on one node is refused for one call and for several; nothing is made."""
    folder = Path("/dev/shm/hpc-elastic-folder")
    made = on_slurm(folder, hpcelastic_allow_local_run_dir=False)
    for submit in (lambda: made.submit(add, 1, 2), lambda: made.map_array(add, [1, 2], [3, 4])):
        with pytest.raises(RunDirError, match=r"fix: .*hpcelastic_allow_local_run_dir=True if they do"):
            submit()
        assert [] == list(folder.iterdir())
    folder.rmdir()


@pytest.mark.usefixtures("fake_slurm")
def test_a_folder_that_slurm_cannot_expand_is_refused_at_once(tmp_path: Path) -> None:
    """For one call and for several, before a run directory is made."""
    folder = tmp_path / "a\\b"
    made = on_slurm(folder)
    for submit in (lambda: made.submit(add, 1, 2), lambda: made.map_array(add, [1, 2], [3, 4])):
        with pytest.raises(InputError, match=r"backslash in its name.*\n.*fix: choose another folder"):
            submit()
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """As where its name is that of a file."""
    folder = tmp_path / "file"
    folder.touch()
    with pytest.raises(InputError, match=r"folder: the folder '.*file' cannot be used: File exists\n  fix: "):
        executor(folder).submit(add, 1, 2)


def refuse(slurm: FakeSlurm, from_call: str, words: str = LIMIT) -> None:
    """Have sbatch fail at one of its submissions and all that follow it, for a limit on a user's jobs."""
    place = Path(slurm.bin) / "sbatch"
    real = place.rename(place.with_name("sbatch.real"))
    place.write_text(
        "#!/bin/bash\n"
        f'for word; do case $word in --help|--test-only) exec "{real}" "$@";; esac; done\n'
        f'echo x >> "{place}.calls"\n'
        f'[ "$(wc -l < "{place}.calls")" -lt {from_call} ] && exec "{real}" "$@"\n'
        f"echo '{words}' >&2\n"
        "exit 1\n"
    )
    place.chmod(0o755)
