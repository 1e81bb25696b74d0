"""Why a job waits, in words that say what to do."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.record.state import RunState
from hpc_elastic.report.queue_text import (
    ended_text,
    is_short_of_tasks,
    lost_text,
    missing_text,
    more_text,
    queue_text,
    too_few_text,
    what_helps,
)
from tests.meet.build import E0, after, crash, formed, start


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"Reason": "BeginTime", "EligibleTime": "2026-01-02T03:04:05", "Restarts": "0"},
            "until 2026-01-02 03:04:05, as it was submitted (--begin); to start it earlier",
        ),
        (
            {"Reason": "BeginTime", "EligibleTime": "2026-01-02T03:04:05", "Restarts": "1"},
            "until 2026-01-02 03:04:05, as after every requeue; to start it earlier: scontrol update jobid=7",
        ),
        (
            {"Reason": "BeginTime", "EligibleTime": "2026-01-02T03:04:05"},
            "Slurm lets it wait until 2026-01-02 03:04:05; to start it earlier",
        ),
        (
            {"Reason": "BeginTime", "JobId": "7_2", "Restarts": "2"},
            "task 7_2 wait a while, as after every requeue; to start it earlier: scontrol update jobid=7_2 ",
        ),
        (
            {"Reason": "BeginTime", "JobId": "7_2,7_3", "Restarts": "2"},
            "tasks 7_2, 7_3 wait a while, as after every requeue; to start them earlier: scontrol update",
        ),
        ({"Reason": "JobHeldUser"}, "held; to let it go on: scontrol release 7"),
        ({"Reason": "job_requeued_in_held_state"}, "scontrol release 7"),
        ({"Reason": "launch_failed_requeued_held"}, "could not start it; held"),
        (
            {"Reason": "launch_failure_limit_exceeded_requeued_held"},
            "(MaxBatchRequeue); held; to let it go on",
        ),
        ({"Reason": "ReqNodeNotAvail,_UnavailableNodes:node[3-4]"}, "reserved: node[3-4]"),
        ({"Reason": "ReqNodeNotAvail", "ReqNodeList": "node1"}, "reserved: node1"),
        ({"Reason": "ReqNodeNotAvail", "ReqNodeList": "(null)"}, "drained or reserved"),
        ({"Reason": "DependencyNeverSatisfied"}, "will never start"),
        ({"Reason": "Dependency", "Dependency": "afterok:6(unfulfilled)"}, "to end (afterok:6(unfulfilled))"),
        ({"Reason": "Resources"}, "waits for nodes to become free"),
        ({"Reason": "QOSMaxJobsPerUserLimit"}, "QOS is reached (QOSMaxJobsPerUserLimit)"),
        ({"Reason": "SomethingNew"}, "Slurm's reason: SomethingNew"),
    ],
)
def test_reasons_are_explained(fields: dict[str, str], words: str) -> None:
    """Each says what is waited for and, where the user can do something, what."""
    assert words in queue_text({"JobId": "7", **fields})


def test_no_reason_is_no_text() -> None:
    """A job that is about to start has none."""
    assert ("", "") == (queue_text({"Reason": "None"}), queue_text({}))


def test_missing_nodes_are_named() -> None:
    """In the order in which Slurm names them."""
    assert "n2, n4 (2 of 4 nodes)" == missing_text(("n1", "n2", "n3", "n4"), {"n1", "n3"})
    assert "" == missing_text(("n1",), {"n1"})
    assert "" == missing_text((), {"n1"})


@pytest.mark.parametrize(
    ("nodes", "present", "expected"),
    [
        ("2:4", {"n3"}, "1 more node (2 are needed; here: n3)"),
        ("3", set(), "3 more nodes (3 are needed; none is here)"),
        ("2:4", {"n1", "n2"}, ""),
        ("", set(), ""),
    ],
)
def test_an_array_below_its_minimum_waits_for_more_nodes(
    nodes: str, present: set[str], expected: str
) -> None:
    """Which they are to be is not known before Slurm starts a task."""
    assert expected == too_few_text(nodes, present)


def test_an_array_with_too_few_tasks_left_is_told_how_to_get_more() -> None:
    """Tasks that were cancelled or given up do not come back by themselves."""
    assert "queues more" not in too_few_text("2:4", {"n3"}, 2)
    short = [is_short_of_tasks("2:4", {"n3"}, tasks) for tasks in (2, 1, None)]
    assert [False, True, False] == short
    assert not is_short_of_tasks("2:4", {"n3", "queues more"}, 1)
    assert too_few_text("2:4", {"n3"}, 1).endswith(
        ", but only 1 task is left in Slurm: hpc-elastic scale RUN --nodes 2 queues more"
    )
    assert "scale '/my run' --nodes 2" in too_few_text("2", {"n3"}, 1, "'/my run'")


def test_lost_nodes_without_which_a_run_cannot_go_on_are_named() -> None:
    """Unfit ones do not come back, and with enough nodes left nobody waits."""
    state = RunState(expected=("n1", "n2", "n3"), sizes="2:3", lost=frozenset({"n2", "n3"}))
    assert lost_text(state).startswith("n2, n3 (lost; 1 of 3 nodes left, 2 are needed)")
    assert lost_text(state._replace(unfit={"n3": "disk full"})).startswith("n2 (lost; 1 of 3")
    for other in (state._replace(sizes="1:3"), state._replace(sizes=""), state._replace(lost=frozenset())):
        assert "" == lost_text(other)


def test_an_array_with_enough_nodes_may_wait_for_more() -> None:
    """For as long as the last call takes."""
    assert "1 more node (2 of 3 here: n2, n10)" == more_text("2:3", {"n10", "n2"})
    for nodes, present in (("2:3", {"n1", "n2", "n3"}), ("2:3", set()), ("", {"n1"}), ("1", {"n1"})):
        assert "" == more_text(nodes, present)


def test_nodes_whose_workers_have_ended_wait_for_the_others() -> None:
    """Both are named; a mark of an earlier round says nothing."""
    state = after(start(), formed(1))
    names = [
        MemberName(f"{node}.1", E0, phase, number, 1)
        for node, phase, number in (
            ("n1", Phase.SUCCEEDED, 1),
            ("n2", Phase.RUNNING, 1),
            ("n3", Phase.STOPPED, 0),
        )
    ]
    assert "the workers of n2, n3; those of n1 have ended" == ended_text(state, names)
    assert "" == ended_text(state, names[1:])
    assert "" == ended_text(after(start(), formed(1), crash(1)), names)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("PartitionTimeLimit", "scontrol update JobId=7 TimeLimit=TIME"),
        ("PartitionTimeLimit", "or hpc-elastic cancel /run and submit it anew with a shorter --time"),
        ("PartitionNodeLimit", "hpc-elastic cancel /run and submit it anew with fewer --nodes"),
        ("DependencyNeverSatisfied", "scontrol update JobId=7 Dependency="),
    ],
)
def test_a_job_that_will_not_start_as_it_is_has_to_be_changed(reason: str, words: str) -> None:
    """Waiting does not help; it does in other cases, of which nothing is said."""
    assert words in what_helps({"JobId": "7", "Reason": reason, "Partition": "gpu"}, "/run")
    assert "" == what_helps({"JobId": "7", "Reason": "Resources"}, "/run")
