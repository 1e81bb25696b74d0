"""How an agent's part of a run is told to have ended."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.errors import TakenOverError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.multiprocessing.errors import FailureRecord
from hpc_elastic.node.outcome import Outcome, out_of_touch, outcome_of, taken_over
from hpc_elastic.node.spec import WorkerState
from hpc_elastic.record.journal import (
    Answer,
    Asked,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    NodeUnfit,
    RunEnded,
)
from tests.meet.build import E0, after, drain, formed, start


def ended(cause: Cause, step: int | None) -> Outcome:
    """Return the outcome of an agent whose start was drained."""
    state = after(start(), formed(1), drain(cause=cause), Drained(E0, cause, step, ""))
    return outcome_of(state, {}, {})


@pytest.mark.parametrize(
    ("cause", "step", "text"),
    [
        (Cause.STOP, 100, "stopped on request, checkpoint of step 100"),
        (Cause.STOP, None, "stopped on request"),
        (Cause.TIME_LIMIT, 7, "stopped for time limit, checkpoint of step 7"),
    ],
)
def test_what_was_saved_is_told(cause: Cause, step: int | None, text: str) -> None:
    """The step of the checkpoint is told if it is known."""
    outcome = ended(cause, step)
    code = ExitCode.OK if cause is Cause.STOP else ExitCode.REQUEUE
    assert (code, text) == outcome[:2]


def test_a_start_that_was_left_for_want_of_nodes_says_so() -> None:
    """Nobody had asked for it; the job is to be requeued."""
    state = after(start(), Drained(E0, Cause.JOIN_TIMEOUT, None, ""))
    assert (ExitCode.REQUEUE, "stopped for join timeout") == outcome_of(state, {}, {})[:2]


def test_a_start_that_was_left_for_unfit_nodes_says_so() -> None:
    """Nobody was lost."""
    unfit = NodeUnfit(E0, "n2", "disk full")
    state = after(start(), unfit, Drained(E0, Cause.NODE_LOSS, None, ""))
    assert "stopped for want of fit nodes" == outcome_of(state, {}, {}).reason


def test_who_leaves_without_a_word_has_failed() -> None:
    """Unless its workers have returned something: then they have succeeded."""
    state = after(start(), formed(1))
    assert (ExitCode.FAILED, "left without a word to the others") == outcome_of(state, {}, {})[:2]
    assert ExitCode.OK == outcome_of(state, {0: None}, {}).exit_code


def test_who_was_asked_to_leave_has_not_failed() -> None:
    """Its workers have returned nothing, and the job is to be requeued; a request to stop ends it."""
    for cause, code in ((Cause.PREEMPTION, ExitCode.REQUEUE), (Cause.STOP, ExitCode.OK)):
        outcome = ended(cause, None)
        assert (code, WorkerState.STOPPED) == (outcome.exit_code, outcome.result.state)
        assert (None, None) == (outcome.failure, outcome.error)


@pytest.mark.parametrize("cause", Cause)
def test_another_start_follows_unless_a_user_has_ended_this_one(cause: Cause) -> None:
    """Or the workers have, or a budget is spent."""
    ends = (Cause.STOP, Cause.INTERRUPT, Cause.CANCEL, Cause.MEMBERSHIP, Cause.CRASH, Cause.HANG)
    assert (cause not in ends) == ended(cause, None).is_followed
    spent = Drained(E0, cause, None, "", budget=Budget.PREEMPTIONS)
    assert not outcome_of(after(start(), formed(1), spent), {}, {}).is_followed


@pytest.mark.parametrize(
    ("decision", "state", "values", "failures"),
    [
        (Decision.DONE, WorkerState.SUCCEEDED, {0: "x"}, {}),
        (Decision.FAILED, WorkerState.FAILED, {}, {1: "y"}),
        (Decision.CANCELLED, WorkerState.STOPPED, {}, {}),
    ],
)
def test_the_result_is_what_the_run_ended_with(
    decision: Decision, state: WorkerState, values: dict[int, Any], failures: dict[int, Any]
) -> None:
    """Values of a run that is done, failures of one that failed, else nothing."""
    run = after(start(), formed(1), RunEnded(decision, 3, "why", {"message": "x"}))
    outcome = outcome_of(run, {0: "x"}, {1: "y"})  # type: ignore[dict-item]
    assert (3, "why", {"message": "x"}) == outcome[:3]
    assert (state, values, failures) == (
        outcome.result.state,
        outcome.result.return_values,
        outcome.result.failures,
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "SIGTERM"),
        (Answer.SILENT, "SIGTERM"),
        (Answer.DENIES, "a SIGTERM that a user sent"),
        (Answer.CONFIRMS, "preemption"),
    ],
)
def test_no_preemption_is_claimed_that_slurm_has_not_told(answer: Answer | None, words: str) -> None:
    """The cause in the records is the same; also after Slurm's answer has come."""
    asked, by = drain()._replace(detail="", asked=Asked("SIGTERM")), Asked("SIGTERM", answer, "why")
    told = [] if answer is None else [DrainExplained(E0, Cause.PREEMPTION, "why", answer=answer)]
    state = after(start(), formed(1), asked, *told, Drained(E0, Cause.PREEMPTION, 7, "", asked=by))
    assert f"stopped for {words}, checkpoint of step 7" == outcome_of(state, {}, {}).reason


def test_an_unrecorded_failure_is_told_with_its_log() -> None:
    """Nobody else can tell of it."""
    failure = FailureRecord(3, log="/run/logs/3/stderr.log")
    outcome = out_of_touch("/run", OSError("no such directory"), failure, signalled=False)
    assert ExitCode.FAILED == outcome.exit_code
    assert "the run directory /run does not answer; the failure of rank 3" in outcome.reason
    assert "(see /run/logs/3/stderr.log)" in outcome.reason
    assert WorkerState.FAILED == outcome.result.state
    assert "(see above)" in out_of_touch("/run", OSError(), failure._replace(log=""), signalled=False).reason
    error = OSError("gone")
    asked = out_of_touch("/run", error, None, signalled=True)
    assert (ExitCode.REQUEUE, WorkerState.STOPPED) == (asked.exit_code, asked.result.state)
    assert ("the run directory /run does not answer: gone", error) == (asked.reason, asked.error)
    assert ExitCode.FAILED == out_of_touch("/run", OSError(), None, signalled=False).exit_code


def test_a_start_that_is_to_be_left_and_was_not_drained_to_the_end() -> None:
    """An agent that leaves before the others knows of no checkpoint."""
    state = after(start(), formed(1), drain(cause=Cause.TIME_LIMIT))
    assert (ExitCode.REQUEUE, "stopped for time limit") == outcome_of(state, {}, {})[:2]


def test_an_agent_whose_run_directory_was_taken_over_has_failed() -> None:
    """The reason says where and what; the error goes to whoever started the agent."""
    error = TakenOverError("others can write to it", where="run directory /r", fix="look who did that")
    outcome = taken_over(error)
    expected = "run directory /r: others can write to it; the workers are ended, nothing is requeued"
    assert (ExitCode.FAILED, expected, None) == outcome[:3]
    assert (WorkerState.FAILED, error) == (outcome.result.state, outcome.error)
