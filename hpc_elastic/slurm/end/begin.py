"""The beginning of a further start of a job: ends without a record are charged before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.record.array_task import TaskStart, start_of
from hpc_elastic.record.journal import Cause, Entry, EpochStarted, Record, Requeued, RoundFormed
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState, other_job
from hpc_elastic.slurm.client.answers import PastStart, has_failed
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import Standing, job_facts, standing
from hpc_elastic.slurm.end import unwritten
from hpc_elastic.slurm.end.unwritten import SlurmSays
from hpc_elastic.slurm.run_jobs.job_start import Say, Start, log_end
from hpc_elastic.slurm.run_jobs.submissions import read_links, read_submissions

_MOST_ASKED = 4  # nodes of a start: several that have failed show a common cause


def charge(log: RunLog, start: Start, slurm: Slurm, say: Say) -> None:
    """Record the ends of earlier starts that have no record.

    Args:
        log: the journal of the run, as it was read.
        start: the start that begins.
        slurm: Slurm's commands; its accounting is asked where there is such an end.
        say: prints a line.

    Raises:
        StoreError: a record cannot be written.
        RunDirError: the record of an earlier job is damaged.
    """
    if start.local:
        return
    if start.task is not None:
        _charge_task(log, start, start.task, slurm, say)
    elif start.restarts or start.link:
        _charge_job(log, start, slurm, say)


def _charge_job(log: RunLog, start: Start, slurm: Slurm, say: Say) -> None:
    state, epoch = log.state, start.epoch
    earlier = _earlier_jobs(state, start, slurm)
    if other_job(state, epoch, start.job_ref) or not unwritten.of_job(state, epoch, SlurmSays(), earlier):
        return
    failed = _failed([state.batch_host, *state.expected], _began_at(log.records, state), slurm)
    accounted = _accounted(slurm, start.job_ref, start.restarts)
    told = SlurmSays(accounted, log_end(start.paths, start.job_ref), failed)
    for link, says in earlier.items():
        starts = state.epoch.restart + 1 if says.job_id == state.job_id else 1
        earlier[link] = says._replace(accounted=_accounted(slurm, says.job_id, starts), failed=failed)
    found = unwritten.of_job(state, epoch, told, earlier)
    for entry in unwritten.entries_of(found, state, start.job_ref):
        _write(log, entry, lambda now, entry=entry: _is_missing(now, entry, start, earlier))  # type: ignore[misc]
    for one in found:
        whose = f"job {one.job_id}" if one.job_id else "this job"
        how = f"has ended without a record ({one.cause.value}): {one.why}"
        say(f"start {one.epoch.restart} of {whose} {how}")


def _earlier_jobs(state: RunState, start: Start, slurm: Slurm) -> dict[int, SlurmSays]:
    """Return Slurm's words about the earlier jobs of a submission without a recorded end, by their links.

    Accounting is asked about those that have left no log.
    """
    if not start.link:
        return {}
    paths, submission, known = start.paths, start.epoch.submission, state.epoch
    jobs = {link.number: link.job_id for link in read_links(paths, submission)}
    jobs |= {0: next((one.job_id for one in read_submissions(paths) if one.number == submission), "")}
    first = known.link if known.submission == submission else 0
    found = {}
    for link, job_id in jobs.items():
        if job_id and first <= link < start.link:
            log = log_end(paths, job_id)
            accounted = () if log.strip() or job_id == state.job_id else _accounted(slurm, job_id, 1)
            found[link] = SlurmSays(accounted, log, job_id=job_id)
    return found


def _charge_task(log: RunLog, start: Start, task: TaskStart, slurm: Slurm, say: Say) -> None:
    member = unwritten.member_of(log.state, task) if task.restart else None
    if member is None:
        return
    failed = _failed([member.node], _round_began_at(log.records), slurm)
    accounted = _accounted(slurm, start.job_ref, task.restart)
    told = SlurmSays(accounted, log_end(start.paths, start.job_ref), failed)
    entry, why = unwritten.of_task(log.state, member, told, lambda: _ended_tasks(log.state, slurm))
    _write(log, entry, lambda state: unwritten.member_of(state, task) == member)
    cause = getattr(entry, "cause", Cause.UNKNOWN)
    say(f"an earlier start of this task has ended without a record ({cause.value}): {why}")


def _ended_tasks(state: RunState, slurm: Slurm) -> frozenset[str]:
    """Return the agents of the running round whose tasks' starts are over by Slurm; none if it is silent."""
    members = () if state.running is None else state.running.members
    starts = {one.node_id: known for one in members if (known := start_of(one.node_id)) is not None}
    try:
        shown = [row for array in {one.array for one in starts.values()} for row in slurm.show_tasks(array)]
    except HpcElasticError:
        return frozenset()
    jobs = {f"{row.get('ArrayJobId')}_{row.get('ArrayTaskId')}": job_facts(row) for row in shown}
    return frozenset(
        agent
        for agent, one in starts.items()
        if one.task in jobs and standing(jobs[one.task], one.restart) is Standing.REQUEUED
    )


def _write(log: RunLog, entry: Entry, is_missing: Callable[[RunState], bool]) -> None:
    """Write a record, unless a newer state of the run tells of that end."""
    log.commit(lambda state: entry if is_missing(state) else None)


def _is_missing(
    state: RunState, entry: EpochStarted | Requeued, start: Start, earlier: Mapping[int, SlurmSays]
) -> bool:
    if other_job(state, start.epoch, start.job_ref):
        return False
    missing = unwritten.of_job(state, start.epoch, SlurmSays(), earlier)
    return any(one.epoch.script == entry.epoch.script for one in missing)


def _accounted(slurm: Slurm, job_ref: str, restarts: int) -> Sequence[PastStart]:
    """Return the earlier starts of a job in Slurm's accounting; none unless it has all of them.

    Args:
        slurm: Slurm's commands.
        job_ref: the job or task.
        restarts: how many starts of it have ended.
    """
    try:
        rows = slurm.past_starts(job_ref)
    except HpcElasticError:
        return ()
    return rows[:restarts] if len(rows) in (restarts, restarts + 1) else ()


def _failed(nodes: Iterable[str], since: float | None, slurm: Slurm) -> frozenset[str]:
    """Return nodes that are down, or have started anew since a start began; none if Slurm is silent.

    Args:
        nodes: of the start, the most important first.
        since: when it began [s since the epoch]; None: it has not.
        slurm: Slurm's commands.
    """
    asked = [*dict.fromkeys(filter(None, nodes))][:_MOST_ASKED]
    if since is None or not asked:
        return frozenset()
    try:
        states = slurm.node_states(asked, None)
    except HpcElasticError:
        return frozenset()
    return frozenset(name for name, state in states.items() if has_failed(state, since))


def _began_at(records: Iterable[Record], state: RunState) -> float | None:
    """Return when the newest start of the run began [s since the epoch]."""
    for one in records:
        if isinstance(one.entry, EpochStarted) and one.entry.epoch.script == state.epoch.script:
            return one.at
    return None


def _round_began_at(records: Sequence[Record]) -> float | None:
    """Return when the newest round was formed [s since the epoch]."""
    return next((one.at for one in reversed(records) if isinstance(one.entry, RoundFormed)), None)
