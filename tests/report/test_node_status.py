"""The bad nodes of a run in its status."""

from __future__ import annotations

from hpc_elastic.record.state import RunState
from hpc_elastic.report.node_status import node_facts


def test_unfit_and_excluded_nodes_are_shown() -> None:
    """Each unfit node with its reason, then those that the job does without."""
    state = RunState(unfit={"n2": "no GPU", "n1": "no space"})
    shown = node_facts(state, {"ExcNodeList": "n[1-2]"})
    assert [("unfit", "n1: no space"), ("unfit", "n2: no GPU")] == shown[:2]
    assert ("excluded", "n[1-2] (hpc-elastic nodes tells why)") == shown[2]


def test_a_node_that_was_forgiven_is_told_apart() -> None:
    """A job that runs has it again when it is requeued."""
    shown = node_facts(RunState(), {"ExcNodeList": "n[1-2]", "JobState": "RUNNING"}, forgiven={"n1", "n2"})
    assert [("excluded", "n1,n2: forgiven since; a requeue of the job lets it have them")] == shown


def test_nothing_is_shown_while_all_nodes_are_well() -> None:
    """Neither for a job that leaves nobody out nor without a job."""
    for job in ({}, {"ExcNodeList": "(null)"}):
        assert [] == node_facts(RunState(), job)
