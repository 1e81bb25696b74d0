"""What people are told when nodes leave by themselves."""

from __future__ import annotations

from hpc_elastic.rendezvous.journal import Cause, DrainRequested, Entry, NodeLeft, Record, Then
from hpc_elastic.report.timeline import timeline
from tests.rendezvous.build import E0, formed, start


def test_who_leaves_and_why_is_told() -> None:
    """A node that is not needed any more has no other cause than the size that is wanted."""
    entries: tuple[Entry, ...] = (
        start(expected=()),
        formed(1),
        DrainRequested(Cause.PREEMPTION, "n1", Then.REJOIN, "SIGTERM"),
        NodeLeft(E0, "n1.1", "n1", Cause.PREEMPTION, "SIGTERM"),
        NodeLeft(E0, "n2.1", "n2", Cause.MEMBERSHIP, "no more than 1 node is wanted"),
        NodeLeft(E0, "n3.1", "n3", Cause.CANCEL, "SIGTERM: the job was cancelled"),
    )
    told = timeline(Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1))
    assert [
        "n1 is to leave, the others go on: preemption (SIGTERM)",
        "n1 left: preemption (SIGTERM)",
        "n2 left: no more than 1 node is wanted",
        "n3 left: its task was cancelled",
    ] == [moment.text for moment in told][2:]
