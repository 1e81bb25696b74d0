"""The start of a run that an agent belongs to, and the node of its batch script."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, Decision, Drained, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.start import meeting
from hpc_elastic.start.meeting import current_epoch, ended_before
from tests.slurm.test_lifecycle import state_of

JOB = SlurmEnv("7", "7", 1, 2, True, "n1", 0, ("n1", "n2"), None, False, None)
FIRST = Epoch(0, 0, 0, 0)
BEGAN = EpochStarted(FIRST, "7", ("n1", "n2"))
DRAINED = Drained(FIRST, Cause.PREEMPTION, None, "")


@pytest.mark.parametrize(
    ("entries", "slurm", "submission", "relaunch", "expected"),
    [
        ((), None, None, None, Epoch(0, 0, 0, 0)),
        ((BEGAN,), None, None, None, Epoch(0, 0, 0, 0)),  # by hand: it joins the others
        ((BEGAN, DRAINED), None, None, None, Epoch(0, 0, 1, 0)),
        ((BEGAN,), JOB, "3", None, Epoch(3, 1, 2, 0)),
        ((BEGAN,), JOB, "3", "4", Epoch(3, 1, 2, 4)),
        ((), JOB, None, None, Epoch(0, 1, 2, 0)),  # a user's own script
        ((BEGAN,), JOB, None, "4", Epoch(0, 1, 2, 0)),
        ((BEGAN,), JOB._replace(job_ref="8"), None, None, Epoch(1, 1, 2, 0)),
        (
            (BEGAN, RunEnded(Decision.FAILED, 1, "", None)),
            JOB._replace(job_ref="8"),
            None,
            None,
            (1, 1, 2, 0),
        ),
        ((BEGAN, RunEnded(Decision.DONE, 0, "", None)), JOB._replace(job_ref="8"), None, None, (0, 1, 2, 0)),
        ((), JOB._replace(task=TaskStart("7_1", 1, 0)), "3", "4", Epoch(3, 0, 0, 0)),
    ],
)
def test_an_agent_belongs_to_one_start_of_the_run(
    entries: tuple[Entry, ...],
    slurm: SlurmEnv | None,
    submission: str | None,
    relaunch: str | None,
    expected: Epoch,
) -> None:
    """Slurm counts those of a job; another job with a user's own script takes up a run that is not done."""
    found = current_epoch(state_of(*entries), slurm, submission, relaunch)
    assert expected == found
    assert isinstance(found, Epoch)


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({Env.SUBMISSION: "0", "SLURM_JOB_NODELIST": "n[3-5]"}, "n3"),
        ({Env.SUBMISSION: "0"}, ""),
        ({"SLURM_JOB_NODELIST": "n[3-5]"}, ""),
        ({}, ""),
    ],
)
def test_the_batch_host_is_the_first_node_of_the_allocation(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], host: str
) -> None:
    """In a job of ours alone: a user's own script has nothing that agents stand in for."""
    for name in (Env.SUBMISSION, "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert host == meeting._batch_host()


ANOTHER = JOB._replace(job_ref="8")
FAILED, DONE = (RunEnded(decision, 1, "", None) for decision in (Decision.FAILED, Decision.DONE))


@pytest.mark.parametrize(
    ("entries", "slurm", "is_submitted", "is_over"),
    [
        ((BEGAN,), None, False, False),
        ((BEGAN, FAILED), None, False, True),
        ((BEGAN, FAILED), JOB, False, False),  # this job has begun it: its agents write the messages
        ((BEGAN, FAILED), ANOTHER, False, False),  # a user's own script takes it up
        ((BEGAN, FAILED), ANOTHER, True, True),  # submit alone begins one of its own again
        ((BEGAN, DONE), ANOTHER, False, True),
    ],
)
def test_a_run_that_is_over_is_told_to_whom_it_does_not_belong(
    run_paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    entries: tuple[Entry, ...],
    slurm: SlurmEnv | None,
    *,
    is_submitted: bool,
    is_over: bool,
) -> None:
    """Before anybody in a job has an agent."""
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    monkeypatch.setenv("PATH", "")  # Slurm has nothing to be asked for
    if is_submitted:
        Path(run_paths.script).write_text("")
    log = open_log(run_paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    found = ended_before(run_paths, slurm)
    assert is_over == (found is not None)
    assert found is None or found.ending == entries[-1]
