"""Whole agents that are told to leave, or cannot write that they do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    Drained,
    Epoch,
    StopAgreed,
)
from tests.node.agents import SLEEP, STEPS, Agents, MakeAgents, gone, slurm, wait_for


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP]
)
def test_a_signal_stops_all_ranks_at_one_step(make: MakeAgents, number: signal.Signals) -> None:
    """A signal to one agent: all ranks of both stop after the same step, which is saved."""
    agents = make(STEPS)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    asking = Path(agents.paths.logs).glob
    wait_for(lambda: len(list(asking("worker.1.*.asks"))) == 4, "all workers to ask")
    agents._agents[1].send_signal(number)
    assert [ExitCode.REQUEUE, 128 + number] == [agents.code(0), agents.code(1)]
    stops = sorted(Path(agents.paths.logs).glob("worker.1.*.stopped"))
    steps = {int(file.read_text()) for file in stops}
    assert (4, 1) == (len(stops), len(steps))
    (drained,) = agents.entries(Drained)
    assert {drained.step} == steps
    assert [step.step for step in agents.entries(StopAgreed)] == list(steps)


def test_workers_that_never_ask_get_sigterm(make: MakeAgents) -> None:
    """Workers without hpc_elastic.worker are told by SIGTERM and may save in their own handler."""
    agents = make(
        "import signal, sys, time\n"
        "def save(*_): open(file + '.saved', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen(file + '.ready', 'w').close()\ntime.sleep(600)"
    )
    agents.start(0)
    logs = Path(agents.paths.logs)
    wait_for(lambda: len(list(logs.glob("*.ready"))) == 2, "the workers to be ready")
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert 2 == len(list(logs.glob("*.saved")))


def test_a_worker_that_ignores_everything_is_killed(make: MakeAgents) -> None:
    """The time to save is bounded: whoever ignores SIGTERM is killed."""
    agents = make(
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(file + '.ready', 'w')\n{SLEEP}"
    )
    agents.start(0, "--stop-timeout", "0.5")
    wait_for(lambda: len(list(Path(agents.paths.logs).glob("*.ready"))) == 2, "the workers to be ready")
    agents._agents[0].send_signal(signal.SIGINT)
    agents._agents[0].send_signal(signal.SIGTERM)
    agents.code(0)
    assert gone(agents.workers(1))


def test_a_signal_while_waiting_for_others(make: MakeAgents) -> None:
    """An agent that waits for a second node leaves at once when it is told to."""
    agents = make("")
    agent = agents.start(0, "--nnodes", "2")
    wait_for(
        lambda: bool(os.listdir(agents.paths.members)) if os.path.isdir(agents.paths.members) else False, "it"
    )
    agent.send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert not agents.rounds()


def refuse(agents: Agents) -> None:
    """Make every look at the journal and every record fail: its segment is no directory any more."""
    segment = Path(agents.paths.journal, "000000")
    segment.rename(segment.with_name("away"))
    segment.touch()


def test_a_signal_is_heeded_while_the_run_directory_refuses(make: MakeAgents) -> None:
    """Without a way to write anything the workers are still ended in time, and the agent leaves."""
    agents = make(SLEEP)
    agent = agents.start(0, "--stop-timeout", "0.5")
    workers = agents.wait_workers(1, 2)
    refuse(agents)
    agent.send_signal(signal.SIGTERM)
    output = agents.output(0)
    assert 128 + signal.SIGTERM == agents.code(0)
    assert gone(workers)
    assert 1 == output.count("does not answer, the workers go on")


def test_a_signal_while_joining_is_heeded_when_nothing_can_be_written(make: MakeAgents) -> None:
    """An agent that waits for others and cannot tell them still leaves in time, to be started again."""
    agents = make("")
    agent = agents.start(0, "--nnodes", "2", "--stop-timeout", "0.5")
    log = Path(agents.paths.members)
    wait_for(lambda: log.is_dir() and bool(os.listdir(log)), "the agent to wait")
    refuse(agents)
    agent.send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)


def test_an_end_that_cannot_be_written_is_not_waited_for_for_ever(make: MakeAgents) -> None:
    """When the workers are done but nothing can be written, the agent leaves after the exit barrier."""
    agents = make("import time\nwhile not os.path.exists(os.path.join(place, 'go')): time.sleep(0.01)")
    agents.start(0, "--exit-barrier-timeout", "0.5")
    agents.wait_workers(1, 2)
    refuse(agents)
    Path(agents.paths.logs, "go").touch()
    assert ExitCode.FAILED == agents.code(0)
    assert agents.output(0).count("\n") < 10


def test_a_crash_during_a_preemption_is_no_failure_of_the_run(make: MakeAgents) -> None:
    """What fails on the way out does not end the run: it is handed back, even without restarts."""
    agents = make(
        "import signal, time\nsignal.signal(15, lambda *_: os._exit(9))\nopen(file + '.ready', 'w')\n" + SLEEP
    )
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "0", "--stop-timeout", "1")
    wait_for(lambda: len(list(Path(agents.paths.logs).glob("*.ready"))) == 4, "the workers to be ready")
    agents._agents[0].send_signal(signal.SIGTERM)
    assert [128 + 15, ExitCode.REQUEUE] == [agents.code(0), agents.code(1)]
    state = agents.state()
    assert state.ending is None
    assert state.drained is not None


def test_another_job_takes_the_run_up(make: MakeAgents) -> None:
    """In a user's own script a second job goes on where the first was stopped, but not after the end."""
    agents = make(STEPS)
    own = {name: value for name, value in slurm("n1", "n1").items() if name != "HPC_ELASTIC_SUBMISSION"}
    agents.start(0, env=own)
    wait_for(lambda: len(list(Path(agents.paths.logs).glob("*.asks"))) == 2, "the workers to ask")
    agents._agents[0].send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == agents.code(0)
    agents.start(1, env={**own, "SLURM_JOB_ID": "78"})
    agents.wait_workers(2, 2)
    assert Epoch(1, 0, 0, 0) == agents.state().epoch
