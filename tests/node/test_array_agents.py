"""Agents of tasks of an array: each leaves, comes back and is replaced alone."""

from __future__ import annotations

import signal
from pathlib import Path

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    DrainRequested,
    Epoch,
    EpochStarted,
    NodeLeft,
    RoundEnded,
    SizeWanted,
)
from hpc_elastic.record.run_log import open_log
from tests.node.agents import SLEEP, STEPS, Agents, MakeAgents, gone, wait_for

TOGETHER = ("--last-call-timeout", "20")


def task(number: int, *, restart: int = 0, node: str = "") -> dict[str, str]:
    """Return the environment of the agent of a task of array 50."""
    name = node or f"n{number}"
    return {
        "SLURM_JOB_ID": str(51 + number),
        "SLURM_ARRAY_JOB_ID": "50",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": name,
        "SLURM_JOB_NODELIST": name,
        "SLURMD_NODENAME": name,
        "HPC_ELASTIC_SUBMISSION": "0",
        "HPC_ELASTIC_MODE": "array",
        "SLURM_RESTART_COUNT": str(restart),
    }


def start(agents: Agents, count: int, *flags: str) -> None:
    """Start the agents of the first tasks and wait for their workers."""
    for number in range(count):
        agents.start(number, *flags, env=task(number))
    agents.wait_workers(1, 2 * count)


def nodes(agents: Agents) -> list[list[str]]:
    """Return the node names of each round."""
    return [[member.node for member in formed.members] for formed in agents.rounds()]


def test_all_tasks_share_one_start_of_the_run(make: MakeAgents) -> None:
    """It belongs to the array, expects nobody by name and has no batch host, whatever Slurm counts."""
    agents = make("").submitted("50")
    for number in (0, 1):
        agents.start(number, "--nnodes", "2", env=task(number, restart=3 * number))
    assert [0, 0] == [agents.code(0), agents.code(1)]
    (started,) = agents.entries(EpochStarted)
    assert EpochStarted(Epoch(0, 0, 0, 0), "50", (), "") == started


def test_a_signalled_task_saves_with_all_and_leaves_alone(make: MakeAgents) -> None:
    """All ranks stop at one step; the others go on from it at once and take the task in again."""
    agents = make(STEPS).submitted("50")
    start(agents, 3, "--nnodes", "1:3", *TOGETHER)
    wait_for(lambda: len(list(Path(agents.paths.logs).glob("worker.1.*.asks"))) == 6, "all workers to ask")
    agents._agents[1].send_signal(signal.SIGTERM)
    assert ExitCode.REQUEUE == agents.code(1)
    assert "leaving: told by SIGTERM; the others go on without it" in agents.output(1)
    agents.wait_workers(2, 4)
    (asked,) = agents.entries(DrainRequested)
    assert (Cause.PREEMPTION, "n1", AfterDrain.REJOIN) == asked[:3]
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.PREEMPTION, ("n1",)) == (ended.cause, ended.nodes)
    (left,) = agents.entries(NodeLeft)
    assert ("n1", Cause.PREEMPTION, "", "SIGTERM") == (*left[2:5], left.asked.signal)
    assert agents.rounds()[1].checkpoint is not None
    agents.start(1, "--nnodes", "1:3", env=task(1, restart=1, node="n7"))
    agents.wait_workers(3, 6)
    assert [["n0", "n1", "n2"], ["n0", "n2"], ["n0", "n2", "n7"]] == nodes(agents)
    assert {"0"} == {worker["TORCHELASTIC_RESTART_COUNT"] for worker in agents.workers(3)}


def test_a_run_that_all_have_left_begins_anew(make: MakeAgents) -> None:
    """Who comes after everybody has left begins the next start, and waits for the others as at first."""
    agents = make(STEPS).submitted("50")
    start(agents, 2, "--nnodes", "1:2", *TOGETHER)
    for number in (0, 1):
        agents._agents[number].send_signal(signal.SIGUSR2)
    assert [ExitCode.REQUEUE] * 2 == [agents.code(0), agents.code(1)]
    for number in (0, 1):
        agents.start(number + 2, "--nnodes", "1:2", *TOGETHER, env=task(number, restart=1))
    agents.wait_workers(len(agents.rounds()) + 1, 4)
    assert Epoch(0, 0, 1, 0) == agents.rounds()[-1].epoch


def test_the_old_agent_of_a_task_that_was_started_anew_stands_down(make: MakeAgents) -> None:
    """Its workers save with all others, then the new agent has its place; two tasks may share a host."""
    agents = make(STEPS).submitted("50")
    start(agents, 2, "--nnodes", "1:2", *TOGETHER)
    agents.start(2, "--nnodes", "1:2", *TOGETHER, env=task(1, restart=1, node="n0"))
    agents.wait_workers(2, 4)
    assert ExitCode.FENCED == agents.code(1)
    assert [["n0", "n1"], ["n0", "n0-2"]] == nodes(agents)
    wait_for(lambda: gone(agents.workers(1)), "the first round's workers to end")


def test_nodes_that_are_not_needed_leave(make: MakeAgents) -> None:
    """With no spares wanted the node beyond the size goes; with one it stands by."""
    agents = make(SLEEP).submitted("50")
    start(agents, 3, "--nnodes", "1:3", *TOGETHER, "--warn-timeout", "1")
    log = open_log(agents.paths, "login")
    log.commit(lambda _: SizeWanted(0, 1, "scale", 1))
    log.commit(lambda _: DrainRequested(Cause.MEMBERSHIP, "", AfterDrain.REJOIN, "scale"))
    agents.wait_workers(2, 2)
    assert ExitCode.REQUEUE == agents.code(2)
    assert "no more than 1 node is wanted" in agents.output(2)
    assert [["n0", "n1", "n2"], ["n0"]] == nodes(agents)
    assert agents._agents[1].poll() is None
    assert [("n2", Cause.MEMBERSHIP)] == [entry[2:4] for entry in agents.entries(NodeLeft)]


def test_an_array_may_outgrow_what_it_was_submitted_for(make: MakeAgents) -> None:
    """The tasks of a further array are taken in when the user wants more."""
    agents = make(SLEEP).submitted("50")
    start(agents, 1, "--nnodes", "1:1", "--warn-timeout", "1")
    open_log(agents.paths, "login").commit(lambda _: SizeWanted(0, 2, "scale", 0))
    agents.start(1, "--nnodes", "1:1", env={**task(0, node="n5"), "SLURM_ARRAY_JOB_ID": "99"})
    agents.wait_workers(2, 4)
    assert [["n0"], ["n0", "n5"]] == nodes(agents)


def test_a_stop_ends_all_tasks_together(make: MakeAgents) -> None:
    """Nobody leaves alone then, and a task that comes late begins nothing."""
    agents = make(STEPS).submitted("50")
    start(agents, 2, "--nnodes", "1:2", *TOGETHER)
    open_log(agents.paths, "login").commit(
        lambda _: DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    )
    assert [0, 0] == [agents.code(0), agents.code(1)]
    agents.start(2, "--nnodes", "1:2", *TOGETHER, env=task(2))
    assert 0 == agents.code(2)
    drained = agents.state().drained
    assert drained is not None
    assert Cause.STOP is drained.cause
    assert [] == agents.entries(NodeLeft)
    assert 1 == len(agents.rounds())
