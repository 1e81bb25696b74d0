"""Drills of a job in Slurm: what is known of what was struck when Slurm's commands fail."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from hpc_elastic.errors import InputError, SlurmCommandError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.answers import SlurmTask
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.drill.drill import Drill, Striker, Struck, Target, UnsureError, choose
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.array_stand_in import ArraySlurm

MEMBER = Member("n2.55", "n2", 2)
FORMED = RoundFormed(4, Epoch(0, 0, 0, 0), (Member("n1.54", "n1", 2), MEMBER), "n1", 1, None)
RUN = RunFiles(RunPaths("/run"), [], RunState(rounds=4, round=FORMED), [Submission(0, "token", "7")], {})
TARGET = Target(MEMBER, 3)


class StepSlurm(ArraySlurm):
    """Job steps print what they are told to, or fail."""

    def __init__(self, printed: str = "", exit_code: int = 0) -> None:
        super().__init__()
        self._printed = printed
        self._exit_code = exit_code

    def step_beside(self, job_ref: str, node: str, argv: Sequence[str]) -> str:
        """Print it."""
        if self._exit_code:
            raise SlurmCommandError(("srun",), self._exit_code, "srun: error: ended")
        words = argv[-4:]  # what follows the words that start the program
        self.done.append(f"{job_ref} {node} {' '.join(words)}")
        return self._printed


def strike(slurm: StepSlurm, drill: Drill = Drill.CRASH) -> Struck:
    """Strike rank 3 on n2."""
    return Striker(RUN, slurm, FakeClock()).strike(drill, TARGET)


def test_a_worker_is_struck_by_a_step_beside_its_agent() -> None:
    """What the step says counts, whatever the site prints around it; the round is that of the processes."""
    done = json.dumps({"at": 5.0, "pids": [9], "round": 5, "step": 60})
    slurm = StepSlurm(f"welcome to the cluster\n{done}\n[1]\n")
    assert Struck(5.0, 60, 5) == strike(slurm)
    assert ["7 n2 /run 55 crash 3"] == slurm.done
    assert 4 == strike(StepSlurm(json.dumps({"at": 5.0, "step": None, "round": -1}))).round


@pytest.mark.parametrize("slurm", [StepSlurm("Killed\n"), StepSlurm(exit_code=137)], ids=["silent", "killed"])
def test_a_step_that_tells_nothing_may_have_struck(slurm: StepSlurm) -> None:
    """Then nobody may say that nothing was done."""
    with pytest.raises(UnsureError, match="the job step on n2"):
        strike(slurm)


def test_a_step_that_fails_has_struck_nothing() -> None:
    """Slurm refuses it, or the processes are gone: both are told, neither leaves a doubt."""
    with pytest.raises(SlurmCommandError, match="ended"):
        strike(StepSlurm(exit_code=1))
    gone = json.dumps({"error": "process 55 on this node is no agent", "fix": "look"})
    with pytest.raises(InputError, match="n2: process 55 on this node is no agent") as caught:
        strike(StepSlurm(gone))
    assert not isinstance(caught.value, UnsureError)
    refused = StepSlurm()
    refused.refused = True
    with pytest.raises(SlurmCommandError, match="not now"):
        strike(refused, Drill.REQUEUE)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"JobState": "PENDING", "Reason": "JobHeldUser"},
            "job 7 is held in the queue, so nothing could be struck\n  fix: scontrol release 7",
        ),
        ({"JobState": "COMPLETING", "Reason": "job_requeued_in_held_state"}, "job 7 is held in the queue"),
        ({"JobState": "PENDING", "Reason": "Resources"}, "job 7 does not run now: PENDING"),
        ({}, "job 7 does not run now: it is gone"),
    ],
)
def test_a_step_that_fails_for_want_of_a_job_says_so(
    fields: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was put back between the look at it and the step: srun's own words do not tell that."""
    slurm = StepSlurm(exit_code=1)
    monkeypatch.setattr(slurm, "show_job", lambda _: fields)
    with pytest.raises(InputError) as caught:
        strike(slurm)
    assert told in str(caught.value)
    assert not isinstance(caught.value, UnsureError)


class SiteSlurm(StepSlurm):
    """A cluster that grants something, and knows the partition of one task only."""

    def show_config(self) -> str:
        """Return the settings."""
        return "KillWait                = 5 sec\nPreemptType             = preempt/partition_prio\n"

    def show_partition(self, name: str) -> dict[str, str]:
        """Return the partition."""
        return {"PartitionName": name, "GraceTime": "00:00:08" if name == "low" else "00:00:00"}

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return where the task is."""
        return {"JobState": "RUNNING", "Partition": "low" if job_ref == "7_1" else "high"}

    def array_tasks(self, token: str, array: str) -> list[SlurmTask]:  # noqa: ARG002 - it has only this one
        """Return the task."""
        return [SlurmTask(array, 1, JobState.RUNNING, "n2")]


def test_what_a_preemption_grants_is_that_of_the_target() -> None:
    """KillWait as well as GraceTime; in array mode of the task that is struck."""
    assert Site(kill_wait_s=5.0) == Striker(RUN, SiteSlurm(), FakeClock()).granted(TARGET)
    array, target = RUN._replace(spec={"mode": "array"}), Target(Member("n2.55@7_1-0-0", "n2", 2), None)
    assert Site(kill_wait_s=5.0, grace_s=8.0) == Striker(array, SiteSlurm(), FakeClock()).granted(target)


@pytest.mark.parametrize(
    ("node", "rank", "told"),
    [
        ("n1", 3, "--rank: rank 3 is not on n1 in round 4\n  fix: n1 has ranks 0 to 1; rank 3 is on n2"),
        ("n1", 7, "n1 in round 4\n  fix: n1 has ranks 0 to 1; the round has ranks 0 to 3 on n1, n2"),
        (None, 7, "--rank: rank 7 is not in round 4\n  fix: it has ranks 0 to 3 on n1, n2"),
        ("n9", 0, "--node: node 'n9' is not in round 4\n  fix: it has ranks 0 to 3 on n1, n2"),
    ],
)
def test_who_is_named_wrongly_is_told_who_there_is(node: str | None, rank: int, told: str) -> None:
    """Of a node its own ranks, and where the rank is that was meant."""
    with pytest.raises(InputError) as caught:
        choose(FORMED, Drill.CRASH, node, rank)
    assert str(caught.value).endswith(told)
