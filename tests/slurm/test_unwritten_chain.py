"""Ends without a record in a chain of jobs: the next job finds them, as the next start of a job does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Epoch,
    EpochStarted,
    Requeued,
    RunEnded,
)
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client.answers import ListedNode, LostNodeState, PastStart
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import begin_with_nodes
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.slurm.run_jobs.submissions import Submission, announce, new_link, record, record_link
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import FastClock, job, paths, write
from tests.slurm.test_lifecycle import round_of
from tests.slurm.test_unwritten import LOG, WORD

__all__ = ["job", "paths"]
JOBS = ("7", "8", "9")
ANEW = LostNodeState("idle", "", 1e12, in_job=True)


def epoch_of(link: int) -> Epoch:
    """Return the start of a job of the chain."""
    return Epoch(0, link, 0, 0)


def began(link: int) -> EpochStarted:
    """Return the record of the agents of a job of the chain."""
    return EpochStarted(epoch_of(link), JOBS[link], ("n1",), "n1", "1:1")


@pytest.fixture
def chain(paths: RunPaths) -> RunPaths:
    """Return a run with a chain of three jobs: 7, 8 and 9."""
    announce(paths, 0, "token", now_s=0)
    record(paths, Submission(0, "token", JOBS[0]))
    for number in (1, 2):
        record_link(paths, new_link(0, number, "token", now_s=0)._replace(job_id=JOBS[number]))
    return paths


class Told(Slurm):
    """Slurm's commands, with accounting and the states of nodes.

    Args:
        job: the other commands.
        rows: what accounting has of each job.
        failed: nodes that have started anew.
    """

    def __init__(
        self, job: FakeJob, rows: dict[str, str] | None = None, failed: tuple[str, ...] = ()
    ) -> None:
        super().__init__(job.environ)
        self._rows = rows or {}
        self._failed = failed

    def past_starts(self, job_ref: str) -> list[PastStart]:
        """Return the row of a job, which has one start."""
        return [PastStart(self._rows[job_ref], ("n1",))] if job_ref in self._rows else []

    def node_states(self, names: object, job_ref: str | None) -> dict[str, LostNodeState]:  # noqa: ARG002
        """Return the nodes that have started anew."""
        return dict.fromkeys(self._failed, ANEW)

    def nodes(self, partitions: str | None) -> list[ListedNode]:  # noqa: ARG002 - there is one
        """Return the nodes of the cluster."""
        return [ListedNode(name, "idle") for name in ("n1", "n2", "n3", "n4")]


def begin(
    chain: RunPaths, slurm: Slurm, link: int, budgets: RequeueBudgets, look: Callable[[Finish], Ended | None]
) -> Ended | None:
    """Begin a job of the chain; return its end if it may not begin."""
    start = Start(chain, epoch_of(link), JOBS[link], 1, local=False, srun_exit_code=0, is_submitted=True)
    start = start._replace(chain=3, node_list="n1")
    return look(Finish(start, budgets, slurm, FastClock(), print))


def log_of(chain: RunPaths, job_id: str, text: str) -> None:
    """Write the log of a job."""
    with open(chain.batch_log.replace("%j", job_id), "a", encoding="utf-8") as log:
        log.write(text)


def ends(chain: RunPaths) -> list[tuple[Epoch, Cause, tuple[str, ...]]]:
    """Return the recorded ends of starts."""
    found = [one.entry for one in read_records(chain)]
    return [(one.epoch, one.cause, one.nodes) for one in found if isinstance(one, Requeued)]


def test_the_end_of_a_job_without_a_record_is_charged_by_the_next_one(chain: RunPaths, job: FakeJob) -> None:
    """Under the cause that accounting has for that job; once, whoever looks."""
    write(chain, began(0), round_of(epoch_of(0)))
    for _ in range(2):
        assert begin(chain, Told(job, {"7": "TIMEOUT"}), 1, RequeueBudgets(), Finish.begin) is None
        assert [(epoch_of(0), Cause.TIME_LIMIT, ())] == ends(chain)
    assert 1 == read_state(chain).requeues


def test_a_job_without_agents_counts_if_it_has_run(chain: RunPaths, job: FakeJob) -> None:
    """By the log of it; one that was cancelled as it waited has none."""
    write(chain, began(0), round_of(epoch_of(0)), Requeued(epoch_of(0), Cause.TIME_LIMIT))
    assert begin(chain, Told(job), 2, RequeueBudgets(), Finish.begin) is None
    assert 1 == len(ends(chain))
    log_of(
        chain, "8", f"[10:00:00] hpc_elastic finish: this is start 0 of job 8\n{WORD.format('PREEMPTION')}"
    )
    assert begin(chain, Told(job), 2, RequeueBudgets(), Finish.begin) is None
    assert (epoch_of(1), Cause.PREEMPTION, ()) == ends(chain)[-1]
    assert "8" == read_state(chain).job_id


def test_a_job_without_a_log_counts_if_accounting_has_it(chain: RunPaths, job: FakeJob) -> None:
    """Its node was lost before the script had said a word."""
    write(chain, began(0), round_of(epoch_of(0)), Requeued(epoch_of(0), Cause.TIME_LIMIT))
    assert begin(chain, Told(job, {"8": "NODE_FAIL"}), 2, RequeueBudgets(), Finish.begin) is None
    assert (epoch_of(1), Cause.NODE_LOSS, ("n1",)) == ends(chain)[-1]


def test_the_jobs_before_the_first_record_count(chain: RunPaths, job: FakeJob) -> None:
    """No agent of the first job has come to write."""
    log_of(chain, "7", WORD.format("TIME LIMIT"))
    assert begin(chain, Told(job), 1, RequeueBudgets(), Finish.begin) is None
    assert [(epoch_of(0), Cause.TIME_LIMIT, ())] == ends(chain)


def test_a_budget_that_is_spent_by_such_ends_fails_the_run(chain: RunPaths, job: FakeJob) -> None:
    """A chain is never held; the jobs that wait are taken away."""
    write(chain, began(0), round_of(epoch_of(0)))
    budgets = RequeueBudgets(max_time_limits=0)
    ended = begin(chain, Told(job, {"7": "TIMEOUT"}), 1, budgets, Finish.begin)
    assert ended is not None
    assert ExitCode.FAILED == ended.code
    ending = read_state(chain).ending
    assert ending is not None
    assert Decision.FAILED is ending.decision
    assert ["scancel 9"] == [call for call in job.calls if call.startswith("scancel")]
    assert Budget.TIME_LIMITS.value in ending.reason


@pytest.mark.parametrize("link", [1, 2])
def test_a_stop_that_was_carried_out_ends_the_chain(chain: RunPaths, job: FakeJob, link: int) -> None:
    """The workers had saved; then all nodes were lost before the script came to write down the end."""
    stop = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    write(chain, began(0), round_of(epoch_of(0)), stop, Drained(epoch_of(0), Cause.STOP, 9, ""))
    ended = begin(chain, Told(job), link, RequeueBudgets(), Finish.begin)
    assert ended is not None
    assert ExitCode.OK == ended.code
    ending = read_state(chain).ending
    assert isinstance(ending, RunEnded)
    assert (Decision.STOPPED, "on request; checkpoint of step 9") == (ending.decision, ending.reason)
    assert [f"scancel {one}" for one in JOBS[link + 1 :]] == job.calls


def test_the_jobs_that_wait_do_without_a_node_that_was_lost(chain: RunPaths, job: FakeJob) -> None:
    """This one has no other start, so it goes on; the log alone would blame no node."""
    log_of(chain, "7", LOG)
    write(chain, began(0), round_of(epoch_of(0)))
    slurm = Told(job, failed=("n1",))
    assert begin(chain, slurm, 1, RequeueBudgets(), lambda finish: begin_with_nodes(finish, print)) is None
    assert [(epoch_of(0), Cause.NODE_LOSS, ("n1",))] == ends(chain)
    assert ["scontrol update JobId=9 ExcNodeList=n1"] == [line for line in job.calls if "update" in line]
