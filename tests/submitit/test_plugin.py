"""The executor ``hpcelastic`` of submitit, as its users call it, on this machine without Slurm."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs.existing_run import names_of_runs
from hpc_elastic.slurm.run_jobs.submissions import Submission, record
from hpc_elastic.submitit import HpcElasticExecutor, HpcElasticJob, HpcElasticJobEnvironment
from tests.submitit.jobs import Counting, executor


def add(first: int, second: int) -> int:
    """Return a sum, and print it."""
    print("the sum is", first + second)  # noqa: T201 - what `stdout` shows
    return first + second


def idle() -> None:
    """Do nothing until somebody ends it."""
    threading.Event().wait(600)


def where() -> dict[str, Any]:
    """Return what a job knows of itself."""
    env = submitit.JobEnvironment()
    names = ("job_id", "global_rank", "local_rank", "num_tasks", "num_nodes", "node", "hostnames", "cluster")
    return {name: getattr(env, name) for name in names}


def test_a_function_runs_once_per_worker_of_each_node(tmp_path: Path) -> None:
    """Ranks are set, the values come back by rank, and another process finds the job by folder and id."""
    job = executor(tmp_path / "log", 2, tasks_per_node=2).submit(where)
    results = job.results()
    assert [0, 1, 2, 3] == [result["global_rank"] for result in results]
    assert [0, 1, 0, 1] == [result["local_rank"] for result in results]
    assert [0, 0, 1, 1] == [result["node"] for result in results]
    rest = {(r["job_id"], r["num_tasks"], r["num_nodes"], r["cluster"], len(r["hostnames"])) for r in results}
    assert {(job.job_id, 4, 2, "hpcelastic", 2)} == rest
    assert ("COMPLETED", True, None, 4) == (job.state, job.done(), job.exception(), job.num_tasks)
    again: HpcElasticJob[Any] = HpcElasticJob(tmp_path / "log", job.job_id)
    assert results == again.results() == pickle.loads(pickle.dumps(job)).results()  # noqa: S301 - just made
    assert where.__name__ == job.submission().function.__name__


def test_what_is_printed_and_returned(tmp_path: Path) -> None:
    """As with any other executor of submitit."""
    job = executor(tmp_path / "%j").submit(add, 3, second=4)
    assert 7 == job.result()
    assert "the sum is 7\n" == job.stdout()
    assert job is job.task(0)
    assert (tmp_path / job.job_id / f"{job.job_id}_run").is_symlink()


def test_stderr_may_go_to_stdout(tmp_path: Path) -> None:
    """Both are in one text, in the order in which they were written."""

    def say() -> None:
        for word in ("one", "three"):
            print(word)  # noqa: T201 - what `stdout` shows
            os.write(2, b"two\n")

    job = executor(tmp_path, stderr_to_stdout=True).submit(say)
    job.wait()
    assert "one\ntwo\nthree\ntwo\n" == job.stdout()
    assert "" == job.stderr()


def test_many_calls(tmp_path: Path) -> None:
    """`map_array` and `batch` keep the executor: each call is a run of its own."""
    made = executor(tmp_path)
    jobs = made.map_array(add, [1, 2], [10, 20])
    with made.batch():
        late = made.submit(add, 5, 5)
    mine = [job for job in (*jobs, late) if isinstance(job, HpcElasticJob)]
    assert [11, 22, 10] == [job.result() for job in mine]
    runs = sorted(Path(job.run.directory).name for job in mine)
    assert runs == list(names_of_runs(str(tmp_path)))  # and none by the link that has the job's id


def test_a_failure_is_told_with_its_traceback(tmp_path: Path) -> None:
    """As submitit's own error."""

    def broken() -> None:
        raise LookupError("no such shard")

    job = executor(tmp_path, hpcelastic_max_restarts=0).submit(broken)
    with pytest.raises(FailedJobError, match="no such shard"):
        job.result()
    assert "FAILED" == job.state


def test_a_job_that_is_cancelled(tmp_path: Path) -> None:
    """It is done, has no result, and cancelling it again does nothing."""
    job = executor(tmp_path).submit(idle)
    job.cancel()
    job.wait()
    assert ("INTERRUPTED", True) == (job.state, job.done())  # as with submitit's local executor
    with pytest.raises(UncompletedJobError, match="cancelled"):
        job.result()
    job.cancel()


class Hooked(Counting):
    """A callable with submitit's hook."""

    checkpoint = Counting.go_on


def test_the_hook_of_submitit_is_called(tmp_path: Path) -> None:
    """A callable that knows nothing of us saves when its worker is told to end, and goes on there.

    What an earlier attempt to save has left is in nobody's way.
    """
    job = executor(tmp_path / "log").submit(Hooked(), str(tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        threading.Event().wait(0.05)
    assert isinstance(job, HpcElasticJob)
    run = job.run
    (Path(run.directory) / "function.pkl.save_tmp").touch()
    job.paths.submitted_pickle.with_suffix(".pkl.save_tmp").touch()
    run.stop()
    run.wait(50)
    while Path(f"/proc/{job.job_id.removeprefix('local-')}").exists():
        threading.Event().wait(0.05)
    words = [sys.executable, "-m", "hpc_elastic", "submit", "--resume", run.directory, "--local", "1"]
    subprocess.run(words, check=True, capture_output=True, timeout=150)
    assert 42 == job.result()


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"hpcelastic_noodles": 2}, NameError, "noodles"),
        ({"hpcelastic_srun_args": ["-K"]}, InputError, "additional_parameters"),
        ({"hpcelastic_min_nodes": 3, "nodes": 2}, InputError, "nodes"),
        ({"hpcelastic_gpus_per_node": "many"}, InputError, "gpus_per_node"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    tmp_path: Path, parameters: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Before anything is submitted."""
    made = submitit.AutoExecutor(tmp_path, cluster="hpcelastic")
    with pytest.raises(error, match=words):
        made.update_parameters(**parameters)


def test_parameters_of_submitit_and_ours(tmp_path: Path) -> None:
    """They are those of its Slurm executor, then the fields of a job spec."""
    made = submitit.AutoExecutor(tmp_path, cluster="hpcelastic")
    made.update_parameters(
        name="n",
        timeout_min=90,
        mem_gb=1.5,
        nodes=4,
        gpus_per_node=2,
        tasks_per_node=2,
        hpcelastic_min_nodes=2,
        hpcelastic_partition="gpu",
        hpcelastic_signal_delay_s=300,
        hpcelastic_gres="nvme:1",
        hpcelastic_additional_parameters={"hint": "nomultithread"},
        hpcelastic_max_restarts=7,
    )
    inner = made._executor
    assert isinstance(inner, HpcElasticExecutor)
    spec = inner._spec(inner.parameters, "f")
    assert ("n", "01:30:00", "1536M", "2:4", 2, 2) == (
        *(spec.name, spec.time, spec.mem, spec.nodes, spec.gpus_per_node, spec.workers_per_node),
    )
    assert ("gpu", 300.0, 7) == (spec.partition, spec.checkpoint_lead, spec.max_restarts)
    assert {"gres": "nvme:1", "hint": "nomultithread"} == spec.sbatch


@pytest.mark.parametrize(
    ("more", "job_id"),
    [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "5_2")],
)
def test_a_worker_that_begins_before_its_id_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], job_id: str
) -> None:
    """It knows the id from Slurm: sbatch has not returned yet, or many runs of an array come first."""
    for name, value in {"HPC_ELASTIC_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "7", **more}.items():
        monkeypatch.setenv(name, value)
    assert job_id == HpcElasticJobEnvironment().job_id
    paths = RunPaths(tmp_path)
    os.mkdir(paths.submissions)
    record(paths, Submission(0, "token", "4", "then"))
    assert "4" == HpcElasticJobEnvironment().job_id


@pytest.mark.parametrize(("known", "array", "index"), [("4", None, None), ("4_11", "4", "11")])
def test_a_call_knows_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, array: str | None, index: str | None
) -> None:
    """By the id that its run had first, whatever job it is in by now."""
    monkeypatch.setenv("HPC_ELASTIC_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    paths = RunPaths(tmp_path)
    os.mkdir(paths.submissions)
    record(paths, Submission(0, "token", known, "then"))
    env = HpcElasticJobEnvironment()
    assert (array, index, known) == (env.array_job_id, env.array_task_id, env.job_id)


@pytest.mark.parametrize(("minutes", "limit"), [(1.5, "00:01:30"), (2.0, "00:02:00"), (90, "01:30:00")])
def test_a_time_limit_may_have_parts_of_a_minute(tmp_path: Path, minutes: float, limit: str) -> None:
    """`AutoExecutor` wants whole minutes; the executor itself does not."""
    made = HpcElasticExecutor(tmp_path)
    made.update_parameters(time=minutes)
    assert limit == made._spec(made.parameters, "f").time


def test_slurm_stays_the_choice_of_who_does_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plug-in changes nothing for others: the executor is found by name only."""
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert 1 == HpcElasticExecutor.affinity()
    assert "slurm" == submitit.AutoExecutor.which()


def test_submitit_gets_no_heavier_by_the_plug_in() -> None:
    """Every process that uses submitit imports it; nothing of ours beside is loaded."""
    program = (
        "import sys, submitit; submitit.AutoExecutor('.', cluster='local'); "
        "print([m for m in sys.modules if m.startswith('hpc_elastic.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(eval(done.stdout))  # noqa: S307 - a list of names that was just printed
    ours = {name.removeprefix("hpc_elastic.") for name in loaded}
    assert ours <= {
        "errors",
        "ids",
        "lazy_names",
        "named_tuple",
        "settings",
        *(f"settings.{n}" for n in ("setting", "table", "values")),
        "submitit",
        *(f"submitit.{n}" for n in ("plugin", "parameters")),
    }
    assert "submitit.plugin" in ours
