"""Agents that come to a run that is not theirs, that has ended, or that has no room."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Decision, DrainRequested, Epoch, RunEnded
from hpc_elastic.rendezvous.run_log import open_log
from tests.agent.agents import SLEEP, MakeAgents, gone, slurm, wait_for

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
    assert Epoch(0, 0, 0) == agents.state().epoch


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
