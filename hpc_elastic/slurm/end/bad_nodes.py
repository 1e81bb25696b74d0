"""The bad nodes of a run at the end of a start: remembered before, and kept out of the job that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Cause, Drained, Entry, Epoch, EpochStarted, NodeLeft, NodeUnfit
from hpc_elastic.record.node_faults import Blamed, node_faults
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import other_job
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.nodes.nodes import (
    NOT_LOOKED_AFTER,
    hosts,
    keep_off,
    look_after,
    note_taken,
    one_line,
)
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start
from hpc_elastic.slurm.run_jobs.submissions import read_links
from hpc_elastic.store.node_events import Fault

_LOST_AGAIN = 2  # so often a node may be lost: once may be chance
_REASON = "it was lost in earlier starts"


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
        for number, job_ref in enumerate(_jobs_to_go_on(start, ended)):
            said = () if number else requeue_of.said
            keep_off(requeue_of.of(job_ref)._replace(said=said), slurm, say)
    return ended


def begin_with_nodes(finish: Finish, say: Say) -> Ended | None:
    """Begin a start, as `Finish.begin` does; then look at the nodes that the start before has lost.

    A node that was lost twice in this submission, and of which no other fault is known since, is left out.
    Slurm takes that of a job in the queue alone, so this start gives the job back. Of a chain the jobs that
    wait do without it, and this one goes on: it has no other start.

    Args:
        finish: of the start.
        say: prints a line.

    Raises:
        HpcElasticError: as `Finish.begin`.
    """
    ended, start, slurm, log = finish.begin(), finish.start, finish.slurm, finish.log
    if start.task is None and other_job(log.state, start.epoch, start.job_ref):
        return ended
    blamed = node_faults(log.records, start.paths.name)
    last = _last_start(log, start)
    is_new = last is not None and note_taken(log, blamed, last, None, slurm, say)
    if is_new:
        blamed = node_faults(log.records, start.paths.name)
    again = _lost_again(blamed, start)
    if not (is_new or again):
        return ended
    requeue_of = look_after(start.paths, blamed, start.job_ref, slurm, finish.clock, say)
    for job_ref in _waiting(start, ended):
        keep_off(requeue_of.of(job_ref), slurm, say)
    out = [node for node in again if node in (requeue_of.nodes or ())]
    is_held = start.task is not None and log.state.ending is not None  # such a task begins nothing, and waits
    if ended is not None or start.chain or not out or is_held:
        return ended
    _stay_out(finish, out)
    return run_with_nodes(finish.run, log, start, slurm, finish.clock, say)


def _waiting(start: Start, ended: Ended | None) -> list[str]:
    """Return the jobs that wait as a start begins: the later ones of its chain, or it if it has ended."""
    if ended is not None:
        return [start.job_ref] if ended.code == ExitCode.REQUEUE else []
    return _jobs_to_come(start) if start.chain else []


def _last_start(log: RunLog, start: Start) -> Epoch | None:
    """Return the newest start of a job before one; None for a task, and where there is none."""
    began = [one.entry.epoch for one in log.records if isinstance(one.entry, EpochStarted)]
    before = [epoch for epoch in began if epoch.script < start.epoch.script]
    return max(before, default=None) if start.task is None else None


def _lost_again(blamed: Sequence[Blamed], start: Start) -> list[str]:
    """Return the nodes of a start that its submission has lost twice, where no other fault came after."""
    own = [one.event for one in blamed if one.epoch.submission == start.epoch.submission]
    newest = {event.host: event.fault for event in own}
    losses = Counter(event.host for event in own if event.fault is Fault.NODE_LOSS)
    return [
        node
        for node in hosts(start.node_list)
        if losses[node] >= _LOST_AGAIN and newest[node] is Fault.NODE_LOSS
    ]


def _stay_out(finish: Finish, nodes: Sequence[str]) -> None:
    """Record that a start is left because of its nodes, as an agent does that finds its node unfit."""
    start, log = finish.start, finish.log

    def write(entry: Entry) -> None:
        finish.patiently(lambda: log.commit(lambda _state: entry))

    if start.task is None:
        write(EpochStarted(start.epoch, start.job_ref, ()))
    epoch = start.epoch if start.task is None else log.state.epoch
    for node in nodes:
        write(NodeUnfit(epoch, node, _REASON))
    if start.task is not None:
        node_id = f"{nodes[0]}.0{start.task.tag}"
        write(NodeLeft(epoch, node_id, nodes[0], Cause.NODE_LOSS, _REASON))
    else:
        names = ", ".join(nodes)
        write(Drained(epoch, Cause.NODE_LOSS, None, f"nothing is started on {names}: {_REASON}"))


def _jobs_to_go_on(start: Start, ended: Ended) -> list[str]:
    """Return the jobs that go on with the run: the later ones of its submission, else this one again."""
    if ended.next_job:
        return [ended.next_job]
    return _jobs_to_come(start) or [start.job_ref]


def _jobs_to_come(start: Start) -> list[str]:
    """Return the later jobs of a submission."""
    try:
        links = [] if start.task is not None else read_links(start.paths, start.epoch.submission)
    except (HpcElasticError, OSError):
        links = []
    return [link.job_id for link in links if link.number > start.link and link.job_id]
