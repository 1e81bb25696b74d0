"""Agents that come to a run that is not theirs, that has ended, or that has no room."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Epoch,
    EpochStarted,
    RunEnded,
)
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.record.run_log import open_log
from tests.node.agents import SLEEP, Agents, MakeAgents, gone, slurm, wait_for
from tests.slurm.stand_in import FakeJob

OWN_SCRIPT = {**slurm("n9", "n9"), "SLURM_JOB_ID": "78"}  # a user's own, not made by `submit`
del OWN_SCRIPT["HPC_ELASTIC_SUBMISSION"]


@pytest.mark.parametrize("env", [{}, OWN_SCRIPT], ids=["by hand", "another job"])
def test_a_stranger_is_refused_in_a_submitted_run(make: MakeAgents, env: dict[str, str]) -> None:
    """It is told whose directory that is; the run goes on untouched."""
    job = f"local-{os.getpid()}"
    agents = make(SLEEP).submitted(job)
    for node in (0, 1):
        agents.start(node, env=slurm(f"n{node}", "n[0-1]"))
    workers = agents.wait_workers(1, 4)
    before = sorted(os.listdir(agents.paths.nodes))
    agents.start(2, env=env)
    output = agents.output(2)
    assert ExitCode.USAGE == agents.code(2)
    root = agents.paths.root
    assert f"error: --run-dir: {root} holds the run toy, running as job {job} (2 nodes)" in output
    assert f"choose another directory, or stop it: hpc-elastic stop {root}" in output
    assert not any(gone([worker]) for worker in workers)
    assert before == sorted(os.listdir(agents.paths.nodes))


def test_a_stranger_does_not_take_up_a_submitted_run(make: MakeAgents) -> None:
    """Nor does it begin a newer start of one that was drained or has ended."""
    agents = make("").submitted("local-999999999")
    agents.start(0, env=OWN_SCRIPT)
    assert ExitCode.USAGE == agents.code(0)
    assert "holds the run toy, submitted as job local-999999999" in agents.output(0)
    agents.start(1, env=slurm("n1", "n1"))
    assert 0 == agents.code(1)
    agents.start(2, env=OWN_SCRIPT)
    assert 0 == agents.code(2)
    assert f"the run in {agents.paths.root} is done since" in agents.output(2)
    assert Epoch(0, 0, 0, 0) == agents.state().epoch


def own_script(job: str) -> dict[str, str]:
    """Return the environment of the one task of a job with a user's own script."""
    return {**OWN_SCRIPT, "SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": f"n{job}", "SLURMD_NODENAME": f"n{job}"}


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED"])
def test_a_run_of_another_active_job_is_not_taken_over(make: MakeAgents, tmp_path: Path, state: str) -> None:
    """The later job is told whose run it is, and what to do; the earlier one runs on."""
    job, agents = FakeJob(tmp_path / "slurm"), make(SLEEP)
    job.set(JobState=state)
    agents.start(0, env=own_script("78"))
    workers = agents.wait_workers(1, 2)
    agents.start(1, env={**own_script("79"), **with_slurm(job)})
    output = agents.output(1)
    assert ExitCode.USAGE == agents.code(1)
    assert f"error: run directory {agents.paths.root}: it holds the run of job 78" in output
    assert f"which is still active ({state})" in output
    assert "fix: give this job a --run-dir of its own" in output
    assert "scancel 78" in output
    assert 1 == sum(asked.startswith("squeue --all --states=all --jobs=78 ") for asked in job.questions)
    assert not gone(workers)
    assert Epoch(0, 0, 0, 0) == agents.state().epoch


@pytest.mark.parametrize("kind", ["ended", "completes", "is forgotten", "no answer", "no Slurm"])
def test_a_run_of_a_job_that_is_over_is_taken_up(make: MakeAgents, tmp_path: Path, kind: str) -> None:
    """Also where Slurm does not tell: a wait in the queue is not to be in vain."""
    job, agents = FakeJob(tmp_path / "slurm"), make("")
    left_by_a_job(agents, "78")
    change = {
        "ended": lambda: job.set(JobState="NODE_FAIL"),
        "completes": lambda: job.set(JobState="COMPLETING"),
        "is forgotten": job.forget,
        "no answer": lambda: job.fail(show=9),
        "no Slurm": job.remove,
    }
    change[kind]()
    agents.start(1, env={**own_script("79"), **with_slurm(job)})
    assert 0 == agents.code(1), agents.output(1)
    assert (Epoch(1, 0, 0, 0), "79") == agents.state()[1:3]
    assert len(job.questions) == (kind != "no Slurm")


def test_slurm_is_not_asked_without_need(make: MakeAgents, tmp_path: Path) -> None:
    """A first start, a further start of the same job, a run that was left, one that is done."""
    job, agents = FakeJob(tmp_path / "slurm"), make("")
    left_by_a_job(agents, "79")
    log = open_log(agents.paths, "test")
    log.commit(lambda state: Drained(state.epoch, Cause.PREEMPTION, None, ""))
    for node, env in enumerate([{**own_script("79"), "SLURM_RESTART_COUNT": "1"}, own_script("80")]):
        agents.start(node, env={**env, **with_slurm(job)})
        assert 0 == agents.code(node), agents.output(node)
    fresh = make("")
    fresh.start(0, env={**own_script("81"), **with_slurm(job)})
    assert 0 == fresh.code(0)
    assert not job.questions


def left_by_a_job(agents: Agents, job_id: str) -> None:
    """Make the run of a job whose agents vanished without a word."""
    prepare_run_dir(agents.paths)
    start = EpochStarted(Epoch(0, 0, 0, 0), job_id, (f"n{job_id}",), "")
    open_log(agents.paths, "test").commit(lambda _state: start)


def with_slurm(job: FakeJob) -> dict[str, str]:
    """Return the environment in which a job is known."""
    return {"PATH": f"{job.bin}:{os.environ['PATH']}"}


def test_a_run_below_the_script_of_another_one(make: MakeAgents) -> None:
    """What a worker starts with a directory of its own is a run of its own."""
    agents = make("")
    env = {"HPC_ELASTIC_SUBMISSION": "0", "HPC_ELASTIC_RUN_DIR": "/elsewhere"}
    agents.start(0, env=env)
    assert 0 == agents.code(0)


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (RunEnded(Decision.DONE, 0, "all workers succeeded", None), 0, "is done since 20"),
        (RunEnded(Decision.FAILED, 9, "a worker failed", None), 9, "is failed since 20"),
    ],
    ids=["done", "failed"],
)
def test_a_run_that_has_ended(make: MakeAgents, ending: RunEnded, code: int, said: str) -> None:
    """Nothing is started; it is said since when, and what to do instead."""
    agents = make("")
    agents.start(0)
    assert 0 == agents.code(0)
    if ending.decision is not Decision.DONE:
        segment = Path(agents.paths.journal, "000000")
        os.remove(segment / max(os.listdir(segment)))
        open_log(agents.paths, "test").commit(lambda _state: ending)
    agents.start(1)
    output = agents.output(1)
    assert code == agents.code(1)
    assert said in output
    assert "nothing was started" in output
    assert "take another --run-dir" in output
    assert 1 == len(agents.rounds())


def test_a_spare_that_is_signalled_leaves_alone(make: MakeAgents) -> None:
    """A node that stands beside a round goes; the round does not notice."""
    agents = make(SLEEP)
    agents.start(0)
    workers = agents.wait_workers(1, 2)
    spare = agents.start(1)

    def waits() -> bool:
        return any("+joining+" in name for name in os.listdir(agents.paths.members))

    wait_for(waits, "the spare to stand by")
    spare.send_signal(signal.SIGTERM)
    assert 128 + 15 == agents.code(1)
    assert "left for SIGTERM; the run goes on without this node" in agents.output(1)
    assert not agents.entries(DrainRequested)
    assert not any(gone([worker]) for worker in workers)
