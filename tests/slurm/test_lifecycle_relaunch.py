"""When the agents of a job are started again in it, and when no more."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Cause, Epoch, EpochStarted
from hpc_elastic.slurm.end.choices import Exit, Relaunch, Requeue
from hpc_elastic.slurm.end.lifecycle import decide
from hpc_elastic.slurm.end.lifecycle import decide as decide_task
from tests.slurm.test_array_lifecycle import BASE as TASK
from tests.slurm.test_lifecycle import BUDGETS, EPOCH, IN_GRACE, ROUND, STARTED, facts, round_of, scontrol


@pytest.mark.parametrize(("relaunch", "kind"), [(2, Relaunch), (3, Requeue)])
def test_the_last_relaunch_is_not_followed_by_another(relaunch: int, kind: type) -> None:
    """Its agents had started; Slurm looks for other nodes then."""
    epoch = EPOCH._replace(relaunch=relaunch)
    started = EpochStarted(epoch, "7", ("n1", "n2"))
    choice = decide(facts(started, round_of(epoch), epoch=epoch, srun_exit_code=137), BUDGETS)
    assert kind is type(choice)
    assert ("(3 of 3)" in choice.why) is (kind is Relaunch)


@pytest.mark.parametrize(
    ("came", "cause"), [(EPOCH, Cause.AGENT_ERROR), (Epoch(0, 0, 0, 2), Cause.LAUNCH_FAILURE)]
)
def test_agents_that_do_not_come_again_are_not_started_a_third_time(came: Epoch, cause: Cause) -> None:
    """Why the job is requeued depends on whether any came in this start of it."""
    started = EpochStarted(came, "7", ("n1", "n2"))
    choice = decide(facts(started, epoch=EPOCH._replace(relaunch=1), srun_exit_code=1), BUDGETS)
    assert isinstance(choice, Requeue)
    assert cause is choice.cause


def test_agents_are_not_started_again_on_no_nodes() -> None:
    """A job that has lost all of them goes back to the queue."""
    choice = decide(facts(STARTED, ROUND, job=scontrol(NumNodes="0"), srun_exit_code=137), BUDGETS)
    assert isinstance(choice, Requeue)


@pytest.mark.parametrize("code", [2, 126, 127])
@pytest.mark.parametrize(("submission", "kind"), [(0, Relaunch), (1, Exit)], ids=["had begun", "never began"])
def test_an_agent_of_a_task_that_cannot_start_fails_the_run(code: int, submission: int, kind: type) -> None:
    """Unless one of this submission has started: then flags and Python are right."""
    assert kind is type(
        decide_task(TASK._replace(srun_exit_code=code, epoch=Epoch(submission, 0, 1, 0)), BUDGETS)
    )


@pytest.mark.parametrize("code", [143, 137, 1])
def test_no_agent_is_started_in_the_grace_of_a_preemption(code: int) -> None:
    """They were ended by its SIGTERM before they could hear it; the job goes back for what it is."""
    choice = decide(facts(STARTED, job=IN_GRACE, srun_exit_code=code), BUDGETS)
    assert isinstance(choice, Requeue)
    assert Cause.PREEMPTION is choice.cause
    task = decide_task(TASK._replace(srun_exit_code=code, job=IN_GRACE), BUDGETS)
    assert isinstance(task, Requeue)
    assert Cause.PREEMPTION is task.cause
