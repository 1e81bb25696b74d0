"""The end of a job start with its nodes looked after: `finish`, and what comes before and after it."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.ids import BATCH, ExitCode
from hpc_elastic.record.journal import Role
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.nodes.nodes import keep_off, look_after
from hpc_elastic.slurm.nodes.taken import note_taken
from hpc_elastic.slurm.run_jobs.chain_links import read_links
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start


def run_with_nodes(finish: Callable[[], Ended], start: Start, slurm: Slurm, clock: Clock, say: Say) -> Ended:
    """End a start of a job; remember its bad nodes before, and have a requeued job do without them.

    Nodes of a run on one machine are none.

    Args:
        finish: ends the start, as `Finish.run` does.
        start: the start.
        slurm: Slurm's commands.
        clock: for the age of events.
        say: prints a line.

    Raises:
        HpcElasticError: as `finish` does.
    """
    if start.local:
        return finish()
    if start.task is None:  # a task of an array that loses its node is told so by Slurm
        note_taken(start.paths, start.epoch, start.job_ref, slurm, (BATCH, Role.SCRIPT), say)
    requeue = look_after(start.paths, start.job_ref, slurm, clock, say)
    ended = finish()
    if ended.code == ExitCode.REQUEUE:
        for number, job_ref in enumerate(_jobs_to_come(start, ended)):
            said = () if number else requeue.said
            keep_off(requeue.of(job_ref)._replace(said=said), slurm, say)
    return ended


def _jobs_to_come(start: Start, ended: Ended) -> list[str]:
    """Return the jobs that go on with the run: the later ones of its submission, else this one again."""
    try:
        links = [] if start.task is not None else read_links(start.paths, start.epoch.submission)
    except (HpcElasticError, OSError):
        links = []
    if ended.next_job:
        return [ended.next_job]
    later = [link.job_id for link in links if link.number > start.link and link.job_id]
    return later or [start.job_ref]
