"""The beginning of a further start: ends that nobody has recorded are written down before it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Cause,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import open_log, read_records
from hpc_elastic.slurm.client.answers import PastStart
from hpc_elastic.slurm.end.begin import charge
from hpc_elastic.slurm.run_jobs.job_start import Start
from tests.slurm.array_stand_in import ArraySlurm
from tests.slurm.test_finish import EPOCH, ROUND, STARTED, paths, write

__all__ = ["paths"]
TASK = TaskStart("7_1", 1, 0)
MEMBERS = (Member("n1.1@7_0-0-0", "n1", 1), Member("n2.1@7_1-0-0", "n2", 1))


class Accounting(ArraySlurm):
    """Slurm whose accounting has rows of earlier starts.

    Args:
        rows: the states of these.
    """

    def __init__(self, *rows: str) -> None:
        super().__init__()
        self._rows = [PastStart(state, ("n1", "n2")) for state in rows]

    def past_starts(self, job_ref: str) -> list[PastStart]:
        """Return the rows of a job."""
        self._answer(f"sacct {job_ref}")
        return self._rows


def charged(
    paths: RunPaths, slurm: ArraySlurm, restart: int, *, local: bool = False, task: TaskStart | None = None
) -> tuple[list[Cause], list[str]]:
    """Begin a start of job 7, or of a task of it; return the causes that were found, and the lines."""
    said: list[str] = []
    epoch = Epoch(0, 0, restart, 0)
    start = Start(paths, epoch, "7", 2, local=local, srun_exit_code=0, task=task)
    log = open_log(paths, "batch")
    log.refresh()
    before = log.state.last
    charge(log, start, slurm, said.append)
    written = [record.entry for record in read_records(paths) if record.number > before]
    causes = [getattr(one, "cause", Cause.UNKNOWN) for one in written if not isinstance(one, RoundEnded)]
    return causes, said


def test_an_end_without_a_record_is_written_down_once(paths: RunPaths) -> None:
    """By Slurm's accounting; the first start, and one of a local run, have none before them."""
    write(paths, STARTED, ROUND)
    slurm = Accounting("PREEMPTED", "RUNNING")
    assert ([], []) == charged(paths, slurm, 0)
    assert ([], []) == charged(paths, slurm, 1, local=True)
    assert [] == slurm.done
    causes, said = charged(paths, slurm, 1)
    assert [Cause.PREEMPTION] == causes
    assert ["start 0 of this job has ended without a record (preemption): Slurm has it as PREEMPTED"] == said
    why = "found by the next start: Slurm has it as PREEMPTED"
    assert Requeued(EPOCH, Cause.PREEMPTION, why) == read_records(paths)[-1].entry
    assert ([], []) == charged(paths, slurm, 1)
    assert ["sacct 7"] == slurm.done


@pytest.mark.parametrize("rows", [(), ("PREEMPTED",) * 4])
def test_an_accounting_that_has_other_starts_tells_nothing(paths: RunPaths, rows: tuple[str, ...]) -> None:
    """Its rows cannot be told apart: the cause is not known, and not that of some other start."""
    write(paths, STARTED, ROUND)
    causes, _ = charged(paths, Accounting(*rows), 2)
    assert {Cause.UNKNOWN} == {*causes}


@pytest.mark.parametrize("rows", [("PREEMPTED",), ("PREEMPTED", "RUNNING")])
def test_the_row_of_the_start_itself_may_be_there(paths: RunPaths, rows: tuple[str, ...]) -> None:
    """Slurm writes it sooner or later."""
    write(paths, STARTED, ROUND)
    assert [Cause.PREEMPTION] == charged(paths, Accounting(*rows), 1)[0]


def test_a_task_whose_agent_is_still_a_member_has_ended_without_a_word(paths: RunPaths) -> None:
    """Its node leaves the round by the record; where the agent has left already nothing is written."""
    write(paths, EpochStarted(EPOCH, "7", ()), RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None))
    slurm = Accounting("PREEMPTED", "RUNNING")
    assert ([], []) == charged(paths, slurm, 0, task=TaskStart("7_1", 0, 0))
    causes, said = charged(paths, slurm, 0, task=TASK)
    assert [Cause.PREEMPTION] == causes
    assert said[0].startswith("an earlier start of this task has ended without a record (preemption): ")
    left = read_records(paths)[-1].entry
    assert isinstance(left, NodeLeft)
    assert ("n2.1@7_1-0-0", "n2", Cause.PREEMPTION) == (left.node_id, left.node, left.cause)
    assert ([], []) == charged(paths, slurm, 0, task=TASK)


class Tasks(Accounting):
    """The same, with the tasks of the array.

    Args:
        rows: as there.
        restarts: the restart counts of the tasks.
    """

    def __init__(self, *rows: str, restarts: Sequence[int]) -> None:
        super().__init__(*rows)
        self._restarts = restarts

    def show_tasks(self, array: str) -> list[dict[str, str]]:
        """Return the facts of each task."""
        self._answer()
        known = {"JobState": "RUNNING", "Reason": "None", "Requeue": "1", "ArrayJobId": array}
        return [
            {**known, "ArrayTaskId": str(index), "Restarts": str(restart)}
            for index, restart in enumerate(self._restarts)
        ]


@pytest.mark.parametrize(
    ("restarts", "is_silent", "lost", "blamed"),
    [
        ((1, 1), False, ("n1", "n2"), []),
        ((0, 1), False, ("n2",), ["n2"]),  # the other task runs on
        ((1, 1), True, ("n2",), ["n2"]),
    ],
    ids=["lost together", "lost alone", "Slurm is silent"],
)
def test_tasks_that_are_lost_together_blame_no_node(
    paths: RunPaths, restarts: tuple[int, int], lost: tuple[str, ...], blamed: list[str], *, is_silent: bool
) -> None:
    """The first of them that starts again finds the loss of all; those after it find nothing more."""
    write(paths, EpochStarted(EPOCH, "7", ()), RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None))
    slurm = Tasks("NODE_FAIL", "RUNNING", restarts=() if is_silent else restarts)
    causes, said = charged(paths, slurm, 0, task=TASK)
    assert ([], 1) == (causes, len(said))
    ended = read_records(paths)[-1].entry
    assert isinstance(ended, RoundEnded)
    assert (Cause.NODE_LOSS, lost) == (ended.cause, ended.nodes)
    assert blamed == [one.event.host for one in node_faults(read_records(paths), "r")]
    assert ([], []) == charged(paths, slurm, 0, task=TaskStart("7_0", 1, 0))
