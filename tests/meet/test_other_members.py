"""Agents that meet in one directory and do not belong together."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.meet.rules import MeetingSettings, refuse_stranger, sizes_text
from hpc_elastic.record.journal import Decision, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.state import RunState, apply

TWO = MeetingSettings(min_nodes=2, max_nodes=2)
RANGE = MeetingSettings(min_nodes=1, max_nodes=4)
EPOCH = Epoch(0, 0, 0, 0)
STATE = apply(RunState(), EpochStarted(EPOCH, "17", (), sizes=sizes_text(TWO)))


def test_the_second_of_two_jobs_that_begin_at_once_is_refused() -> None:
    """Both took the fresh directory for theirs; the first record decides."""
    refuse_stranger(STATE, EPOCH, "17", TWO, "/run")
    with pytest.raises(RunDirError, match=r"job 17 has begun the run in it, this is job 18") as caught:
        refuse_stranger(STATE, EPOCH, "18", TWO, "/run")
    assert "--run-dir of its own" in str(caught.value)


def test_agents_for_worlds_of_different_sizes_are_refused_by_both_values() -> None:
    """Who comes second is told what it was given and what the others were."""
    with pytest.raises(InputError, match=r"started with --nnodes 1:4, the others with --nnodes 2\n"):
        refuse_stranger(STATE, EPOCH, "17", RANGE, "/run")


def test_sizes_that_may_differ_are_not_compared() -> None:
    """Tasks of an array may come in any number; old records and those of `finish` tell none."""
    refuse_stranger(STATE, EPOCH, "17", RANGE._replace(may_outgrow=True), "/run")
    refuse_stranger(STATE._replace(sizes=""), EPOCH, "17", RANGE, "/run")
    refuse_stranger(STATE._replace(job_id=""), EPOCH, "18", TWO, "/run")


def test_tasks_of_several_arrays_and_agents_outside_slurm_belong_together() -> None:
    """Nobody is refused for a job that may be another one, or is none."""
    refuse_stranger(STATE, EPOCH, "18", TWO._replace(may_outgrow=True), "/run")
    refuse_stranger(STATE, EPOCH, "", TWO, "/run")


@pytest.mark.parametrize("restart", [0, 1])
def test_a_second_job_of_one_script_is_refused_however_often_slurm_has_started_it(restart: int) -> None:
    """Its start may look newer than that of the job that runs the run; the job tells them apart."""
    mine = EPOCH._replace(restart=restart)
    assert STATE is apply(STATE, EpochStarted(mine, "18", (), sizes=sizes_text(TWO)))
    with pytest.raises(RunDirError, match="job 17 has begun the run in it"):
        refuse_stranger(STATE, mine, "18", TWO, "/run")


def test_the_next_job_of_a_submission_is_not_refused() -> None:
    """It has a link of its own; nor is a job of another submission."""
    for epoch in (EPOCH._replace(link=1), EPOCH._replace(submission=1)):
        refuse_stranger(STATE, epoch, "18", TWO, "/run")
        assert "18" == apply(STATE, EpochStarted(epoch, "18", (), sizes=sizes_text(TWO))).job_id


def test_a_run_that_is_over_tells_so_to_each_job() -> None:
    """The reason why nothing is started is its end then, and no other job."""
    done = apply(STATE, RunEnded(Decision.DONE, 0, "", None))
    refuse_stranger(done, EPOCH, "18", TWO, "/run")
