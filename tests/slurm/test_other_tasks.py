"""The other tasks of a run in array mode, with real records and a Slurm that only answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError, SlurmCommandError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Epoch, Record, StopKind, TaskStopped
from hpc_elastic.slurm.client.answers import SlurmTask
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end.choices import Others
from hpc_elastic.slurm.end.other_jobs import ASIDE_PATIENCE_S, OtherTasks, resubmitted
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Patience, Start
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.array_stand_in import ArraySlurm

EPOCH = Epoch(1, 0, 0, 0)
MINE = SlurmTask("7", 1, JobState.RUNNING, "n2")
RUNS = SlurmTask("7", 0, JobState.RUNNING, "n1")
ENDS = SlurmTask("7", 3, JobState.COMPLETING, "n3")
WAITS = SlurmTask("7", 2, JobState.PENDING)
FURTHER = SlurmTask("9", 0, JobState.PENDING)
STAYS = "Unable to contact slurm controller"


class AskedSlurm(ArraySlurm):
    """Remembers the token that its tasks were asked for with."""

    token: str | None = None

    def array_tasks(self, token: str, array: str) -> list[SlurmTask]:
        """Return the tasks."""
        self.token = token
        return super().array_tasks(token, array)


class Ends:
    """The end of task 7_1 in the second submission of a run.

    Args:
        root: an empty directory.
        tasks: those that Slurm has.
        is_silent: whether Slurm does not answer.
    """

    def __init__(self, root: Path, tasks: Sequence[SlurmTask] = (), *, is_silent: bool = False) -> None:
        self.paths = RunPaths(root)
        for directory in self.paths.directories():
            Path(directory).mkdir(parents=True, exist_ok=True)
        for number, token in enumerate(("old", "new")):
            submissions.record(self.paths, Submission(number, token, "7"))
        self.slurm = AskedSlurm(tasks)
        self.slurm.is_silent = is_silent
        self.clock, self.said = FakeClock(), list[str]()
        start = Start(
            self.paths, EPOCH, "7_1", 1, local=False, srun_exit_code=75, task=TaskStart("7_1", 0, 0)
        )
        self.others = OtherTasks(start, self.slurm, Patience(self.clock, self.said.append), self.said.append)


def given_up(task: str) -> Record:
    """Return the record of a task that its script has given up."""
    return Record(1, 0.0, task, TaskStopped(EPOCH, StopKind.GIVEN_UP, task, 0, "n1", "why"))


@pytest.mark.parametrize(
    ("tasks", "records", "others"),
    [
        ([MINE], [], Others(0, 0)),
        ([MINE, RUNS, WAITS, FURTHER], [], Others(1, 2)),
        ([RUNS, ENDS], [], Others(1, 0)),
        ([MINE, RUNS, WAITS], [given_up("7_0")], Others(0, 1)),
        ([MINE, RUNS, WAITS], [given_up("7_0"), given_up("7_2")], Others(0, 0)),
    ],
)
def test_other_tasks_are_those_that_may_still_do_something(
    tmp_path: Path, tasks: list[SlurmTask], records: list[Record], others: Others
) -> None:
    """Not this one, and none that was given up."""
    ends = Ends(tmp_path, tasks)
    assert others == ends.others.count(records)
    assert ("new", ["7"]) == (ends.slurm.token, ends.slurm.asked)


def test_nothing_is_known_of_other_tasks_where_slurm_does_not_answer(tmp_path: Path) -> None:
    """It is asked for a minute."""
    ends = Ends(tmp_path, [RUNS], is_silent=True)
    began = ends.clock.monotonic()
    assert ends.others.count([]) is None
    assert ASIDE_PATIENCE_S <= ends.clock.monotonic() - began < ASIDE_PATIENCE_S + 20
    assert ends.said[-1].startswith("squeue tells nothing about the other tasks: ")


def test_an_unknown_submission_has_no_token(tmp_path: Path) -> None:
    """Its tasks are those of its array."""
    ends = Ends(tmp_path, [RUNS])
    submissions.withdraw(ends.paths, 1)
    (Path(ends.paths.submissions) / "000001.json").unlink()
    assert Others(1, 0) == ends.others.count([])
    assert "" == ends.slurm.token


@pytest.mark.parametrize(
    ("tasks", "done", "said"),
    [
        ([MINE, RUNS], [], []),
        ([MINE, WAITS], ["cancel waiting 7"], ["took 1 task of array 7 out of the queue, "]),
        (
            [WAITS, WAITS._replace(number=4), FURTHER],
            ["cancel waiting 7", "cancel waiting 9"],
            ["took 2 tasks of array 7 out of the queue, ", "took 1 task of array 9 out of the queue, "],
        ),
    ],
)
def test_tasks_that_wait_are_taken_out_of_the_queue(
    tmp_path: Path, tasks: list[SlurmTask], done: list[str], said: list[str]
) -> None:
    """Array by array."""
    ends = Ends(tmp_path, tasks)
    ends.others.cancel()
    assert (done, [f"{one}where there is nothing left to do" for one in said]) == (ends.slurm.done, ends.said)


class Refusing(AskedSlurm):
    """Tells of its tasks, and takes none away."""

    def cancel_waiting(self, job_ref: str) -> None:
        """Refuse."""
        raise SlurmCommandError(("scancel", job_ref), 1, STAYS)


def test_tasks_that_stay_in_the_queue_are_told(tmp_path: Path) -> None:
    """The verdict holds; where Slurm does not tell of them there is nothing to take away."""
    ends = Ends(tmp_path, [WAITS])
    slurm = Refusing([WAITS])
    said: list[str] = []
    start = Start(ends.paths, EPOCH, "7_1", 1, local=False, srun_exit_code=75)
    OtherTasks(start, slurm, Patience(ends.clock, said.append), said.append).cancel()
    (line,) = said
    assert line.startswith("1 task of array 7 stay in the queue and end at once later: ")
    assert STAYS in line
    silent = Ends(tmp_path, [WAITS], is_silent=True)
    silent.others.cancel()
    assert [] == silent.slurm.done


def test_without_a_script_of_ours_no_task_is_queued(tmp_path: Path) -> None:
    """The error is the answer."""
    ends = Ends(tmp_path, [MINE])
    found = resubmitted(ends.others, Patience(ends.clock, ends.said.append), 1.0)
    assert isinstance(found, (RunDirError, OSError))
    assert [] == ends.slurm.queued
