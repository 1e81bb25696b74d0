"""A worker says that its node is bad, or that no restart helps: what real agents make of it."""

from __future__ import annotations

import pytest

from hpc_elastic.cli import app
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Cause, Decision, NodeUnfit, RoundEnded, Verdict, WorkerWord
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import read_records
from hpc_elastic.store.node_events import Fault
from tests.node.agents import SLEEP, MakeAgents

BAD = f"""
from hpc_elastic import worker
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    if os.environ["RANK"] == "3":
        worker.report_bad_node("wrong sum on GPU 1")
    {SLEEP}
"""
GIVEN_UP = f"""
from hpc_elastic import worker
if os.environ["RANK"] == "2":
    worker.give_up("the loss is nan")
{SLEEP}
"""


def test_a_node_that_is_bad_leaves_and_the_others_go_on(
    make: MakeAgents, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its round ends as one of a lost node, and all readers of the journal see the reason of the worker."""
    agents = make(BAD)
    for node in (0, 1):
        agents.start(node, "--nnodes", "1:2", "--last-call-timeout", "20")
    output = agents.output(1)
    assert (ExitCode.UNFIT, 0) == (agents.code(1), agents.code(0))
    (ended,) = agents.entries(RoundEnded)
    bad = ended.nodes[0]
    word = WorkerWord(Verdict.BAD_NODE, 3, bad, "wrong sum on GPU 1")
    assert (Cause.NODE_LOSS, word) == (ended.cause, ended.word)
    assert [] == agents.entries(NodeUnfit)
    assert f"{word.text}\n" in output
    assert {"2"} == {worker["WORLD_SIZE"] for worker in agents.workers(2)}
    (event,) = [one.event for one in node_faults(read_records(agents.paths), "run")]
    assert (bad, Fault.UNFIT, "rank 3 says: wrong sum on GPU 1") == (event.host, event.fault, event.detail)
    for command in (["timeline"], ["explain"], ["report"], ["explain", "--json"]):
        assert 0 == app.run([*command, agents.paths.root])
        assert "wrong sum on GPU 1" in " ".join(capfd.readouterr().out.split())


def test_a_run_that_is_given_up_is_not_started_again(make: MakeAgents) -> None:
    """All restarts are left; each agent ends with code 1 and the reason of the worker, which still runs."""
    agents = make(GIVEN_UP)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "3")
    outputs = [agents.output(node) for node in (0, 1)]
    assert [1, 1] == [agents.code(node) for node in (0, 1)]
    (ended,) = agents.entries(RoundEnded)
    ending = agents.state().ending
    assert ending is not None
    assert (Cause.CRASH, Verdict.GIVE_UP) == (ended.cause, ended.word.verdict)
    assert (Decision.FAILED, ended.word.text) == (ending.decision, ending.reason)
    assert all("has given the run up: the loss is nan" in output for output in outputs)
    assert 1 == len(agents.rounds())
