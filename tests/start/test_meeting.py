"""The start of a run that an agent belongs to, and the node of its batch script."""

from __future__ import annotations

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, Decision, Drained, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.start import meeting
from hpc_elastic.start.meeting import current_epoch
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
