"""The bad nodes of a run at the end of a start: remembered before, and kept out of the job that follows."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import other_job
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.nodes.nodes import NOT_LOOKED_AFTER, keep_off, look_after, note_taken, one_line
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start
from hpc_elastic.slurm.run_jobs.submissions import read_links


def run_with_nodes(
    finish: Callable[[], Ended], log: RunLog, start: Start, slurm: Slurm, clock: Clock, say: Say
) -> Ended:
    """End a start of a job; remember its bad nodes before, and have a requeued job do without them.

    Nodes of a run on one machine are none.

    Args:
        finish: ends the start, as `Finish.run` does.
        log: the journal of the run, as `Finish.log`.
        start: the start.
        slurm: Slurm's commands.
        clock: for the age of events.
        say: prints a line.

    Raises:
        HpcElasticError: as `finish` does.
    """
    if start.local:
        return finish()
    try:
        log.refresh()
    except (HpcElasticError, OSError) as error:
        say(f"{NOT_LOOKED_AFTER}: {one_line(error)}")
        return finish()
    blamed = node_faults(log.records, start.paths.name)
    if start.task is None and other_job(log.state, start.epoch, start.job_ref):
        return finish()
    # Slurm itself reports the loss of its node to a task of an array
    if start.task is None and note_taken(log, blamed, start.epoch, start.job_ref, slurm, say):
        blamed = node_faults(log.records, start.paths.name)
    requeue_of = look_after(start.paths, blamed, start.job_ref, slurm, clock, say)
    ended = finish()
    if ended.code == ExitCode.REQUEUE:
        for number, job_ref in enumerate(_jobs_to_come(start, ended)):
            said = () if number else requeue_of.said
            keep_off(requeue_of.of(job_ref)._replace(said=said), slurm, say)
    return ended


def begin_with_nodes(finish: Finish, say: Say) -> Ended | None:
    """Begin a start, as `Finish.begin` does; then remember the nodes that the start before has lost.

    Slurm is asked only about those.

    Args:
        finish: of the start.
        say: prints a line.

    Raises:
        HpcElasticError: as `Finish.begin`.
    """
    ended, start, slurm = finish.begin(), finish.start, finish.slurm
    if start.task is not None or other_job(finish.log.state, start.epoch, start.job_ref):
        return ended
    blamed = node_faults(finish.log.records, start.paths.name)
    last = start.epoch._replace(restart=start.restarts - 1)
    if note_taken(finish.log, blamed, last, None, slurm, say):
        look_after(start.paths, blamed, start.job_ref, slurm, finish.clock, say)
    return ended


def _jobs_to_come(start: Start, ended: Ended) -> list[str]:
    """Return the jobs that go on with the run: the later ones of its submission, else this one again."""
    if ended.next_job:
        return [ended.next_job]
    try:
        links = [] if start.task is not None else read_links(start.paths, start.epoch.submission)
    except (HpcElasticError, OSError):
        links = []
    later = [link.job_id for link in links if link.number > start.link and link.job_id]
    return later or [start.job_ref]
