"""The beginning of a further start of a job: ends without a record are charged before anything is started."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, Entry, EpochStarted, Requeued
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState, other_job
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end import unwritten
from hpc_elastic.slurm.end.unwritten import SlurmSays
from hpc_elastic.slurm.run_jobs.job_start import Say, Start, log_end


def charge(log: RunLog, start: Start, slurm: Slurm, say: Say) -> None:
    """Record the ends of earlier starts that have no record.

    Args:
        log: the journal of the run, as it was read.
        start: the start that begins.
        slurm: Slurm's commands; its accounting is asked where there is such an end.
        say: prints a line.

    Raises:
        StoreError: a record cannot be written.
    """
    if start.local or not (start.restarts or (start.task is not None and start.task.restart)):
        return
    if start.task is not None:
        _charge_task(log, start, start.task, slurm, say)
        return
    if other_job(log.state, start.epoch, start.job_ref) or not unwritten.of_job(
        log.state, start.epoch, SlurmSays()
    ):
        return
    found = unwritten.of_job(log.state, start.epoch, _told(start, start.restarts, slurm))
    for entry in unwritten.entries_of(found, log.state, start.epoch, start.job_ref):
        _write(log, entry, lambda state, entry=entry: _is_missing(state, entry, start))  # type: ignore[misc]
    for one in found:
        say(f"start {one.restart} of this job has ended without a record ({one.cause.value}): {one.why}")


def _charge_task(log: RunLog, start: Start, task: TaskStart, slurm: Slurm, say: Say) -> None:
    member = unwritten.member_of(log.state, task)
    if member is None:
        return
    entry, why = unwritten.of_task(log.state, member, _told(start, task.restart, slurm))
    _write(log, entry, lambda state: unwritten.member_of(state, task) == member)
    cause = getattr(entry, "cause", Cause.UNKNOWN)
    say(f"an earlier start of this task has ended without a record ({cause.value}): {why}")


def _write(log: RunLog, entry: Entry, is_missing: Callable[[RunState], bool]) -> None:
    """Write a record, unless a newer state of the run tells of that end."""
    log.commit(lambda state: entry if is_missing(state) else None)


def _is_missing(state: RunState, entry: EpochStarted | Requeued, start: Start) -> bool:
    missing = unwritten.of_job(state, start.epoch, SlurmSays())
    return any(one.restart == entry.epoch.restart for one in missing)


def _told(start: Start, restarts: int, slurm: Slurm) -> SlurmSays:
    """Return the words of Slurm about the earlier starts; its accounting only if it has all of them."""
    try:
        rows = slurm.past_starts(start.job_ref)
    except HpcElasticError:
        rows = []
    known = rows[:restarts] if len(rows) in (restarts, restarts + 1) else ()
    return SlurmSays(known, log_end(start.paths, start.job_ref))
