"""A call whose value cannot be sent back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import submitit
from submitit.core.utils import FailedJobError

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, RoundFormed
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.submitit import ElasticTask, HpcElasticJob
from tests.submitit.jobs import executor


class Unsendable:
    """Cannot be pickled, as an open file or a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def returned() -> Unsendable:
    """Return it after what may have been hours of work."""
    return Unsendable()


def check(error: FailedJobError, paths: RunPaths) -> None:
    """Check that one attempt was made, and that its error names the type and what to do."""
    words = str(error)
    assert "returned a Unsendable that cannot be pickled" in words
    assert "fix: return numbers, texts, lists, CPU tensors or arrays" in words
    formed = [one for one in read_records(paths) if isinstance(one.entry, RoundFormed)]
    ending = read_state(paths).ending
    assert ending is not None
    assert (1, Decision.FAILED, 1) == (len(formed), ending.decision, ending.exit_code)
    assert "another try would not help: return numbers" in ending.reason


@pytest.mark.slow
def test_it_fails_the_call_at_once(tmp_path: Path) -> None:
    """Other than a crash it would come again at the end of every restart."""
    job = executor(tmp_path, tasks_per_node=2).submit(returned)
    with pytest.raises(FailedJobError) as caught:
        job.result()
    assert isinstance(job, HpcElasticJob)
    assert "FAILED" == job.state
    check(caught.value, RunPaths(job.run.directory))


@pytest.mark.slow
def test_the_same_below_submitits_own_executors(tmp_path: Path) -> None:
    """The task is the agent there."""
    made = submitit.AutoExecutor(tmp_path, cluster="local")
    made.update_parameters(timeout_min=5, tasks_per_node=1)
    job = made.submit(ElasticTask(returned, run_dir=str(tmp_path / "run")))
    with pytest.raises(FailedJobError) as caught:
        job.result()
    check(caught.value, RunPaths(tmp_path / "run"))
