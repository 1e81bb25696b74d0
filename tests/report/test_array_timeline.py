"""What people are told when nodes leave by themselves."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    DrainExplained,
    DrainRequested,
    Entry,
    NodeLeft,
    Record,
    RoundEnded,
    StopAgreed,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.run_status import RunView, status_of
from hpc_elastic.report.timeline import timeline
from tests.meet.build import E0, formed, start


@pytest.mark.parametrize(
    ("step", "told"), [(-1, "whether it has saved is not known"), (9, "nothing was saved")]
)
def test_a_round_that_saves_nothing_says_so(step: int, told: str) -> None:
    """Of a program that does not ask whether to stop it is not known."""
    entries: tuple[Entry, ...] = (
        start(expected=()),
        formed(1),
        DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "SIGTERM"),
        StopAgreed(1, step),
        RoundEnded(1, Cause.PREEMPTION, ("n1",), None, None),
    )
    moments = timeline(Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1))
    assert [*moments][-1].text.endswith(f"; {told}")


def test_who_leaves_and_why_is_told() -> None:
    """A node that is not needed any more has no other cause than the size that is wanted."""
    entries: tuple[Entry, ...] = (
        start(expected=()),
        formed(1),
        DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "SIGTERM"),
        NodeLeft(E0, "n1.1", "n1", Cause.PREEMPTION, "SIGTERM"),
        NodeLeft(E0, "n2.1", "n2", Cause.MEMBERSHIP, "no more than 1 node is wanted"),
        NodeLeft(E0, "n3.1", "n3", Cause.CANCEL, "SIGTERM: the job was cancelled"),
    )
    told = timeline(Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1))
    assert [
        "n1 is to leave, the others go on: SIGTERM",
        "n1 left: SIGTERM",
        "n2 left: no more than 1 node is wanted",
        "n3 left: the task was cancelled",
    ] == [moment.text for moment in told][2:]


@pytest.mark.parametrize(
    ("explained", "headline"),
    [
        (None, "round 1 pauses: n1 leaves (SIGTERM)"),
        (
            (Cause.CANCEL, "the job was cancelled"),
            "round 1 pauses: n1 leaves (SIGTERM: the job was cancelled)",
        ),
        (
            (Cause.REQUEUE, "the job is requeued: preempted, or by scontrol requeue"),
            "round 1 pauses: n1 leaves (SIGTERM: the job is requeued: preempted, or by scontrol requeue)",
        ),
    ],
    ids=["signal", "scancel", "requeue"],
)
def test_a_signal_is_what_slurm_says_it_is(explained: tuple[Cause, str] | None, headline: str) -> None:
    """A task that is cancelled or requeued by hand is not said to be preempted."""
    entries: list[Entry] = [
        start(expected=()),
        formed(1),
        DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "SIGTERM"),
    ]
    if explained is not None:
        entries.append(DrainExplained(E0, *explained))
    records = [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)]
    state = fold(RunState(), records)
    assert headline == status_of(RunView(state, 0)).text
    assert state.drain is not None
    over = Record(len(records) + 1, 5.0, "n1", RoundEnded(1, state.drain.cause, ("n1",), None))
    last = [moment.text for moment in timeline([*records, over])][-1]
    assert headline.replace("pauses", "ended after 5.0 s") == last
