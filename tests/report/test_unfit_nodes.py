"""Nodes that stayed out because they are unfit are named so, wherever a lost one would be."""

from __future__ import annotations

from hpc_elastic.record.journal import (
    Cause,
    Drained,
    Entry,
    EpochStarted,
    NodeLeft,
    NodeUnfit,
    Record,
    Requeued,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.causes_text import requeues_text, unfit_text
from hpc_elastic.report.node_status import node_facts
from hpc_elastic.report.run_status import RunView, status_of
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.client.job_standing import job_facts
from tests.meet.build import E0, REQUEUED, formed, loss, start

WORDS = "1 node unfit: n3 (disk full)"
UNFIT = NodeUnfit(E0, "n3", "disk full")
ENTRIES: tuple[Entry, ...] = (
    start(),
    UNFIT,
    Drained(E0, Cause.NODE_LOSS, None, "2 of 3 nodes are left"),
    Requeued(E0, Cause.NODE_LOSS),
)


def numbered(*entries: Entry) -> list[Record]:
    """Return entries as records."""
    return [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)]


def test_the_timeline_and_the_counts_name_them() -> None:
    """A lost node in a later start is counted apart."""
    later = (
        EpochStarted(REQUEUED, "17", ("n1", "n2")),
        formed(1, ("n1", "n2"), REQUEUED),
        loss(1, "n2"),
        Drained(REQUEUED, Cause.NODE_LOSS, None, ""),
        Requeued(REQUEUED, Cause.NODE_LOSS),
    )
    records = numbered(*ENTRIES, *later)
    told = [moment.text for moment in timeline(records)]
    assert [f"this start is given up after 0.0 s: {WORDS}", f"requeued ({WORDS})"] == told[2:4]
    assert "requeued (a node was lost)" == told[-1]
    assert "1 node loss, 1 unfit node" == requeues_text(records, 0)
    facts = node_facts(fold(RunState(), records), {}, records)
    assert [("unfit", "n3, in an earlier start: disk full")] == facts


def test_the_status_names_them() -> None:
    """While the nodes are given back, and while the job waits for others."""
    back = Requeued(E0, Cause.NODE_LOSS)
    view = RunView(fold(RunState(), numbered(*ENTRIES)), 0, "17", handed_back=back)
    assert f"drained ({WORDS}), leaves the nodes" == status_of(view).text
    waiting = job_facts({"JobState": "PENDING", "Reason": "Resources"})
    assert status_of(view._replace(job=waiting)).text.startswith(f"requeued because of {WORDS}, waits")


def test_a_task_whose_node_is_unfit_gets_another() -> None:
    """In array mode its agent leaves by itself."""
    left = NodeLeft(E0, "n3.1", "n3", Cause.NODE_LOSS, "disk full")
    told = timeline(numbered(start(expected=()), UNFIT, left))
    assert "n3 left: it is unfit, so its task gets another node" == told[-1].text


def test_many_are_cut_short() -> None:
    """The reasons, too: a line of each node has all of it."""
    told = unfit_text({f"n{number}": "x" * 200 for number in range(1, 13)})
    assert told.startswith("12 nodes unfit: n1 (xxx")
    assert "n4 (" in told
    assert told.endswith(" ...) and 8 more")
