"""How the failure of a run is told on a node where it has not happened."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest

from hpc_elastic.errors import (
    InputError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.launcher.failures import RecordedFailure, RunFailedError, error_of, run_failed
from hpc_elastic.multiprocessing import SignalException
from hpc_elastic.multiprocessing.errors import ChildFailedError, FailureRecord, ProcessFailure
from hpc_elastic.node.outcome import FENCED, Outcome
from hpc_elastic.node.spec import RunResult, WorkerState

ROOT = FailureRecord(
    rank=5,
    local_rank=1,
    node="far",
    pid=77,
    exitcode=3,
    message="ValueError: bad",
    traceback="Traceback ...\nValueError: bad",
    log="/run/5/stderr.log",
    timestamp=200.0,
)


def near(pid: int = 11) -> ProcessFailure:
    """Return a failure of this node, earlier by its own clock."""
    return ProcessFailure(0, pid, -9, "", 100.0)


def test_the_root_cause_comes_first_whatever_the_clocks_say() -> None:
    """Clocks of nodes are never compared."""
    error = RunFailedError("train", ROOT, {2: near()}, "here")
    assert (5, 3) == (error.get_first_failure()[0], error.get_first_failure()[1].exitcode)
    text = str(error)
    assert text.index("rank      : 5") < text.index("Other failures (1):") < text.index("rank 2 on here")
    assert "node      : far" in text
    assert "log       : /run/5/stderr.log" in text
    assert "Traceback ..." in text


def test_a_failure_of_this_node_is_the_one_that_was_seen() -> None:
    """It has the error file."""
    seen = near(77)
    error = RunFailedError("train", ROOT, {5: seen})
    assert (5, seen) == error.get_first_failure()
    assert [5] == list(error.failures)


def test_a_failure_of_this_node_tells_what_the_agent_knows() -> None:
    """A worker that the agent has killed could not say why; what one has said itself stands."""
    seen = near(77)
    RunFailedError("train", ROOT._replace(message="killed by the agent"), {5: seen})
    assert "killed by the agent" == seen.message == seen.text
    RunFailedError("train", ROOT._replace(message="another word"), {5: seen})
    assert "killed by the agent" == seen.message


def test_a_failure_of_an_earlier_round_is_not_taken_for_it() -> None:
    """The rank may be the same, the process is not."""
    error = RunFailedError("train", ROOT, {5: near(12)})
    assert 77 == error.get_first_failure()[1].pid


def test_a_recorded_failure_reads_like_one_that_was_seen() -> None:
    """With torch's keys."""
    failure = RecordedFailure(ROOT)
    assert (1, 77, 3, 200.0, "far") == (
        failure.local_rank,
        failure.pid,
        failure.exitcode,
        failure.time_s,
        failure.node,
    )
    assert "ValueError: bad" == failure.message["message"]
    assert ROOT.traceback == failure.message["extraInfo"]["py_callstack"] == failure.traceback


def test_it_can_be_handed_to_another_process() -> None:
    """As launchers below a pool do."""
    error = pickle.loads(  # noqa: S301 - our own
        pickle.dumps(RunFailedError("train", ROOT, {2: near()}, "here"))
    )
    assert isinstance(error, ChildFailedError)
    assert {2, 5} == set(error.failures)
    assert str(RunFailedError("train", ROOT, {2: near()}, "here")) == str(error)


def test_an_error_file_can_be_made_of_it(tmp_path: Path) -> None:
    """For `record`, if there is anything to say; a place that cannot be written to is passed over."""
    failure = RecordedFailure(ROOT)
    failure.save(str(tmp_path / "none" / "error.json"))
    assert "<N/A>" == failure.error_file
    failure.save(str(tmp_path / "error.json"))
    again = ProcessFailure(1, 77, 3, failure.error_file)
    assert (failure.message, failure.time_s) == (again.message, again.time_s)
    silent = RecordedFailure(ROOT._replace(message="", traceback=""))
    silent.save(str(tmp_path / "silent.json"))
    assert not (tmp_path / "silent.json").exists()


SUCCEEDED = RunResult(WorkerState.SUCCEEDED, {0: 1})
FAILED = RunResult(WorkerState.FAILED)


@pytest.mark.parametrize(
    ("outcome", "signalled", "expected"),
    [
        (Outcome(0, "", None, SUCCEEDED), None, None),
        (Outcome(0, "", None, SUCCEEDED), signal.SIGTERM, SignalException),
        (Outcome(0, "closed", None, SUCCEEDED, RendezvousClosedError("closed")), None, None),
        (Outcome(3, "", ROOT.to_json(), FAILED), None, ChildFailedError),
        (Outcome(3, "", ROOT.to_json(), FAILED), signal.SIGINT, SignalException),
        (Outcome(76, "late", None, FAILED, RendezvousTimeoutError("late")), None, RendezvousTimeoutError),
        (Outcome(76, "no", None, FAILED, InputError("no such program")), None, InputError),
        (Outcome(76, "no answer", None, FAILED, StoreError("EIO")), None, RendezvousConnectionError),
        (Outcome(ExitCode.REQUEUE, "stopped for preemption"), None, RendezvousClosedError),
        (FENCED, None, RendezvousGracefulExitError),
    ],
)
def test_every_end_has_its_error(
    outcome: Outcome, signalled: int | None, expected: type[Exception] | None
) -> None:
    """A signal goes before a failure, a success before what came after it."""
    error = error_of(outcome, run_failed(outcome, "train", "here"), signalled)
    assert expected is None if error is None else isinstance(error, expected or ())
