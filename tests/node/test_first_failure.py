"""The first failure of a run: the same for every agent and for the batch script, whatever happens next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Decision, FailedAlike, RoundEnded
from tests.node.agents import Agents, MakeAgents, crash, gone, is_running, wait_for

PATIENT = ("--lease", "20")  # nobody is given up while the agents are stopped

AT_ONCE = """
import sys, time
open(file + ".ready", "w").close()
while not os.path.exists(os.path.join(place, "go")):
    time.sleep(0.001)
if os.environ["LOCAL_RANK"] == "1":
    print("last words of rank", os.environ["RANK"], file=sys.stderr, flush=True)
    sys.exit(10 + int(os.environ["RANK"]))
time.sleep(600)
"""
"""The second worker of each node fails with the code 10 + rank, all of them in the same milliseconds."""


SLOW_TO_END = """
import signal, sys, time
slow = os.path.join(place, "slow")
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    if os.environ["RANK"] == "2":
        signal.signal(signal.SIGTERM, lambda *_: time.sleep(600))
        open(slow, "w").close()
    while not os.path.exists(slow):
        time.sleep(0.001)
    if os.environ["RANK"] == "3":
        sys.exit(9)
    time.sleep(600)
"""
"""In the first round rank 3 fails, and rank 2 beside it does not end, so that its agent has not done yet."""


def summary(output: str) -> str:
    """Return the block about the root cause, without the time and the node in front of each line."""
    block = re.search(r"^[^\n]*Root Cause.*?={60}$", output, re.MULTILINE | re.DOTALL)
    assert block is not None, output
    return re.sub(r"^\[\d\d:\d\d:\d\d [^\]]+\] ", "", block[0], flags=re.MULTILINE)


def told(output: str) -> list[str]:
    """Return the ranks whose failure an agent has told of in a line of its own."""
    return re.findall(r"worker failed: rank (\d+)", output)


def fail_at_once(agents: Agents, started: list[subprocess.Popen[str]]) -> None:
    """Let one worker of each node fail while no agent looks, so that all agents see it at the same moment."""
    logs = Path(agents.paths.logs)
    wait_for(lambda: len(list(logs.glob("worker.1.*.ready"))) == 2 * len(started), "the workers")
    for agent in started:
        agent.send_signal(signal.SIGSTOP)
    (logs / "go").touch()
    failing = [worker["pid"] for worker in agents.workers(1) if worker["LOCAL_RANK"] == "1"]
    wait_for(lambda: not any(is_running(pid) for pid in failing), "the failures")
    for agent in started:
        agent.send_signal(signal.SIGCONT)


def finish(agents: Agents) -> subprocess.CompletedProcess[str]:
    """Do what the batch script does when srun has returned."""
    argv = ["finish", "--run-dir", agents.paths.root, "--srun-exit-code", "1"]
    environ = {**os.environ, "HPC_ELASTIC_LOCAL": "1"}
    return subprocess.run(
        [sys.executable, "-m", "hpc_elastic", *argv], env=environ, capture_output=True, text=True, check=False
    )


def test_nodes_that_fail_at_the_same_moment_agree_on_the_first(make: MakeAgents) -> None:
    """Three nodes fail within milliseconds: one root cause and one exit code for all, and for finish."""
    agents = make(AT_ONCE)
    started = [agents.start(node, *PATIENT, "--nnodes", "3", "--redirects", "3") for node in range(3)]
    fail_at_once(agents, started)
    outputs = [agents.output(node) for node in range(3)]
    (ended,) = agents.entries(RoundEnded)
    first = ended.failure
    assert first["rank"] in {1, 3, 5}
    assert [10 + first["rank"]] * 3 == [agents.code(node) for node in range(3)]
    assert 1 == len({summary(output) for output in outputs})
    for words in (
        f"rank      : {first['rank']} (local_rank: 1)",
        f"node      : {first['node']}",
        f"log       : {first['log']}",
        f"last words of rank {first['rank']}",
    ):
        assert words in summary(outputs[0])
    assert os.path.exists(first["log"])
    done = finish(agents)
    assert (10 + first["rank"], summary(outputs[0])) == (done.returncode, summary(done.stderr))


def test_each_node_tells_of_its_own_failure_in_its_log(make: MakeAgents) -> None:
    """Also of one that is not the first of the run; never of a worker that the agent has ended."""
    agents = make(AT_ONCE)
    fail_at_once(agents, [agents.start(node, *PATIENT, "--nnodes", "2") for node in range(2)])
    assert [["1"], ["3"]] == [told(agents.output(node)) for node in range(2)]
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.CRASH, 1) == (ended.cause, len(ended.nodes))


def test_nodes_that_fail_in_the_same_way_are_known(make: MakeAgents) -> None:
    """Only the first failure ends the round; the second one tells that it is no single node's."""
    agents = make(AT_ONCE.replace('10 + int(os.environ["RANK"])', "7"))
    fail_at_once(agents, [agents.start(node, *PATIENT, "--nnodes", "2") for node in range(2)])
    assert [["1"], ["3"]] == [told(agents.output(node)) for node in range(2)]
    (ended,), (note,), known = agents.entries(RoundEnded), agents.entries(FailedAlike), agents.state().ended
    assert known is not None
    assert ended.number == note.number
    assert note.node not in ended.nodes
    assert (*ended.nodes, note.node) == known.nodes
    assert ended.failure["ran_s"] >= 0


def test_workers_that_the_agent_ends_have_not_failed(make: MakeAgents) -> None:
    """One worker of the second node fails; its sibling and the first node's are ended and named nowhere."""
    agents = make(crash("1", "raise ValueError('root')"))
    for node in range(3):
        agents.start(node, "--nnodes", "3", "--redirects", "3")
    outputs = [agents.output(node) for node in range(3)]
    assert [1] * 3 == [agents.code(node) for node in range(3)]
    assert [[], ["3"], []] == [told(output) for output in outputs]
    assert 1 == len({summary(output) for output in outputs})
    assert "ValueError: root" in summary(outputs[0])
    assert gone(agents.workers(1))


def test_a_recorded_exception_is_shown_with_its_traceback_on_every_node(make: MakeAgents) -> None:
    """Also where stderr goes to the console of another node."""
    code = """
    from hpc_elastic.multiprocessing.errors import record
    @record
    def train():
        raise KeyError("no such weight")
    train()
"""
    agents = make(crash("1", code))
    for node in range(2):
        agents.start(node, "--nnodes", "2")
    blocks = {summary(agents.output(node)) for node in range(2)}
    (block,) = blocks
    assert "error     : KeyError: 'no such weight'" in block
    assert 'raise KeyError("no such weight")' in block


@pytest.mark.slow
def test_the_failing_nodes_agent_is_killed_right_after(make: MakeAgents) -> None:
    """What it has recorded stays the root cause, though nobody else of that node can tell of it any more."""
    agents = make(SLOW_TO_END)
    started = [agents.start(node, "--nnodes", "2", "--join-timeout", "2") for node in range(2)]
    wait_for(lambda: bool(agents.entries(RoundEnded)), "the crash to be recorded")
    started[1].kill()
    output = agents.output(0)
    assert 9 == agents.code(0)
    assert "rank      : 3 (local_rank: 1)" in summary(output)
    ending = agents.state().ending
    assert ending is not None
    assert (Decision.FAILED, 9) == (ending.decision, ending.exit_code)
    assert "a worker failed; then 1 of 2 nodes joined" in ending.reason


def test_a_node_that_dies_with_its_workers_is_a_loss(make: MakeAgents) -> None:
    """Where the others are enough they go on: the crash was only the first sign that the node goes."""
    agents = make(SLOW_TO_END)
    started = [agents.start(node, "--nnodes", "1:2", "--last-call-timeout", "20") for node in range(2)]
    wait_for(lambda: bool(agents.entries(RoundEnded)), "the crash to be recorded")
    started[1].kill()
    assert 0 == agents.code(0)
    assert {Cause.CRASH: 0, Cause.NODE_LOSS: 1} == dict(agents.state().counts)
