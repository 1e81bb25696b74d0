"""What was not saved as a start of the job was left is told in timeline, status and drill."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    FailedLeaving,
    MarkedCheckpoint,
    Member,
    NodeTaken,
    Record,
    Requeued,
    RoundFormed,
    StopAgreed,
)
from hpc_elastic.record.state import MOST_FAILED_LEAVING, RunState, apply, fold
from hpc_elastic.report.causes_text import unsaved_text
from hpc_elastic.report.drill_report import InjectedFault, course_of, verdict
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.client.job_standing import JobFacts, job_facts

EPOCH, AGAIN = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2)), "n1", 1, None)
DRAIN = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM")
FAILED = FailedLeaving(EPOCH, 1, "n2", {"rank": 2, "node": "n2", "exitcode": 3})
MISSING = "no checkpoint of step 12 was marked"
ON_ITS_WAY = (STARTED, ROUND, DRAIN, StopAgreed(1, 12))


def drained(step: int | None) -> Drained:
    """Return the end of a start, with the newest checkpoint."""
    return Drained(EPOCH, Cause.PREEMPTION, step, "", 1.0)


def records(*entries: Entry) -> list[Record]:
    """Return them as records, one a second."""
    return [Record(number, float(number), "n1", entry) for number, entry in enumerate(entries, 1)]


def told(*entries: Entry) -> list[str]:
    """Return the lines of the timeline."""
    return [moment.text for moment in timeline(records(*entries))]


def job(state: str) -> JobFacts:
    """Return a job as scontrol tells it."""
    return job_facts({"JobState": state, "Reason": "None", "Restarts": "1", "NumNodes": "2"})


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (None, f"; {MISSING} (none is)"),
        (11, f"; {MISSING} (the newest is of step 11)"),
        (12, ""),
        (13, ""),
    ],
)
def test_a_stop_step_without_its_checkpoint_is_told(saved: int | None, text: str) -> None:
    """In the timeline, while the job waits, and when it is gone."""
    entries = (*ON_ITS_WAY, drained(saved))
    assert told(*entries)[-1].endswith(text or f"checkpoint of step {saved}")
    state = fold(RunState(), records(*entries))
    waits = status_of(RunView(state, 0, "7", job("PENDING")))
    assert (RunPhase.REQUEUED, f"requeued after SIGTERM, waits for nodes{text}") == waits
    for view in (RunView(state, 0, "7", job("CANCELLED")), RunView(state, 0, "7", has_script=False)):
        assert (MISSING in status_of(view).text) == bool(text)


@pytest.mark.parametrize("step", [-1, None])
def test_nothing_is_missed_where_workers_do_not_tell_their_steps(step: int | None) -> None:
    """They may save by themselves."""
    entries = ON_ITS_WAY[:3] if step is None else (*ON_ITS_WAY[:3], StopAgreed(1, step))
    assert "" == unsaved_text(fold(RunState(), records(*entries)), None)


def test_a_worker_that_fails_instead_of_saving_is_named() -> None:
    """As it happens, and where the start has ended."""
    lines = told(*ON_ITS_WAY, FAILED, drained(None))
    assert "a worker failed as all were to save and leave: rank 2 on n2: exit code 3" == lines[-2]
    assert lines[-1].endswith(f"; rank 2 failed instead of saving; {MISSING} (none is)")
    other = FAILED._replace(node="n1", failure={"rank": 0})
    state = fold(RunState(), records(*ON_ITS_WAY, FAILED, other, drained(12)))
    assert unsaved_text(state, 12) == "; rank 2 failed instead of saving, and workers on 1 other node"


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ((STARTED, ROUND), FAILED),
        ((*ON_ITS_WAY, FAILED), FAILED),
        (ON_ITS_WAY, FAILED._replace(epoch=AGAIN)),
        (ON_ITS_WAY, FAILED._replace(number=2)),
        (
            (*ON_ITS_WAY, *(FAILED._replace(node=f"m{at}") for at in range(MOST_FAILED_LEAVING))),
            FAILED,
        ),
    ],
    ids=["no-drain", "told-already", "another-start", "another-round", "of-many"],
)
def test_a_failure_that_says_nothing_new_changes_nothing(before: tuple[Entry, ...], entry: Entry) -> None:
    """One of a node, of some nodes, in the round that ends."""
    state = fold(RunState(), records(*before))
    assert state == apply(state, entry)


def test_a_new_start_has_failed_nobody() -> None:
    """What an earlier one was left with is its own."""
    state = fold(RunState(), records(*ON_ITS_WAY, FAILED, EpochStarted(AGAIN, "7", ("n1",))))
    assert () == state.failed_leaving


def test_that_slurm_was_told_to_take_a_node_is_told() -> None:
    """In the submission of the start that it was lost in."""
    lines = told(STARTED, ROUND, NodeTaken(EPOCH, "n2", "it was set down in Slurm (repair)", 3))
    assert "nothing is held against n2: it was set down in Slurm (repair)" == lines[-1]


@pytest.mark.parametrize(
    ("extra", "resumed", "but"),
    [
        pytest.param((), None, "no checkpoint of step 12, at which all stopped, was marked", id="nothing"),
        pytest.param((), 11, "no checkpoint of step 12, at which all stopped, was marked", id="older"),
        pytest.param((), 12, "", id="saved"),
        pytest.param(
            (FAILED,), 12, "a worker failed instead of saving: rank 2 on n2: exit code 3", id="failed"
        ),
    ],
)
def test_a_drill_in_which_nothing_was_saved_has_failed(
    extra: tuple[Entry, ...], resumed: int | None, but: str
) -> None:
    """A run that comes back has not done what it was to for that."""
    checkpoint = None if resumed is None else MarkedCheckpoint(resumed, "")
    entries = (
        *ON_ITS_WAY,
        *extra,
        drained(resumed),
        Requeued(EPOCH, Cause.PREEMPTION),
        EpochStarted(AGAIN, "7", ("n1", "n2")),
        ROUND._replace(number=2, epoch=AGAIN, checkpoint=checkpoint),
    )
    fault = InjectedFault(
        frozenset({Cause.PREEMPTION}), "n1", "n1.1", None, 1, 2.0, 2, step=10, is_whole=True
    )
    good, text = verdict(course_of(records(*entries), fault, ()))
    assert good is (not but)
    assert (f"; but {but}" in text) if but else ("; but" not in text)


@pytest.mark.parametrize(
    ("steps", "told_steps", "text"),
    [
        ((None, None), 9, "; nothing newer was saved in the start before"),
        ((4, 4, 4), 9, "; nothing newer was saved in the last 2 starts"),
        ((4, 5), 9, ""),
        ((None, None), -1, "; whether the start before has saved is not known"),
    ],
)
def test_a_start_that_begins_where_the_last_one_did_says_so(
    steps: tuple[int | None, ...], told_steps: int, text: str
) -> None:
    """In the line of its first round, and no later one."""
    entries: list[Entry] = []
    for number, step in enumerate(steps):
        epoch = Epoch(0, 0, number, 0)
        checkpoint = None if step is None else MarkedCheckpoint(step, "")
        begun = ROUND._replace(number=number + 1, epoch=epoch, checkpoint=checkpoint)
        entries += [STARTED._replace(epoch=epoch), begun, DRAIN, StopAgreed(number + 1, told_steps)]
    lines = [line for line in told(*entries) if line.startswith(f"round {len(steps)}: ")]
    (line,) = lines
    assert line.endswith(f"formed in 1.0 s{text}")


def test_a_drill_of_a_run_that_tells_nothing_says_that_nothing_is_known() -> None:
    """It may save by itself: the drill has not failed."""
    entries = (
        *ON_ITS_WAY[:3],
        StopAgreed(1, -1),
        drained(None),
        EpochStarted(AGAIN, "7", ("n1", "n2")),
        ROUND._replace(number=2, epoch=AGAIN),
    )
    fault = InjectedFault(frozenset({Cause.PREEMPTION}), "n1", "n1.1", None, 1, 2.0, 2, is_whole=True)
    good, text = verdict(course_of(records(*entries), fault, ()))
    assert good
    assert (
        text == "the run came back; the lost steps are not known: it marks no checkpoint, and tells no step"
    )
