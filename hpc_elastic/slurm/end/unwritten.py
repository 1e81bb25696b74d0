"""Starts that have ended without a record: all that could write one were gone. Pure.

All nodes of a job were lost together, or Slurm has killed the agents and finish before they came to write.
The next start finds that out, and charges the end to its cause before it begins:

    Slurm's accounting names the cause            -> that
    Slurm has named it in the batch log           -> that
    Slurm's accounting has it as REQUEUED, and the
      agents knew no reason for their signal      -> a requeue by hand
    Slurm's accounting has it as FAILED, and the
      agents knew no reason for their signal      -> not known: a preemption looks otherwise
    agents had been asked to leave                -> the cause of that
    Slurm's accounting has it as REQUEUED         -> a requeue by hand
    the log is there, without any such word, and
      by Slurm the batch host is down, or has
      started anew since                          -> that node was lost
    else                                          -> not known

A batch script that was killed leaves such a log, too, so the log alone blames no node.

The jobs of a chain follow each other as the starts of one job do. Of a task of an array the end of its last
start is charged to the round in which it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import TaskStart, start_of
from hpc_elastic.record.journal import (
    Answer,
    Cause,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    RoundEnded,
)
from hpc_elastic.record.state import RunState, has_ended
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.slurm.client.answers import PastStart
from hpc_elastic.slurm.client.job_standing import due_to

NOT_KNOWN = "nothing tells why"
_BY_HAND = "REQUEUED"
_BY_ITSELF = ("FAILED", "OUT_OF_MEMORY", "COMPLETED")  # its script has ended, or was killed
_SILENT = "neither Slurm nor an agent has said a word, and its node was down or has started anew since"
_CAUSE_OF = {
    "NODE_FAIL": Cause.NODE_LOSS,
    "BOOT_FAIL": Cause.NODE_LOSS,
    "PREEMPTED": Cause.PREEMPTION,
    "TIMEOUT": Cause.TIME_LIMIT,
    "LAUNCH_FAILED": Cause.LAUNCH_FAILURE,
}
_MARK = re.compile(r"^.*hpc_elastic finish: this is start (\d+) of (?:job|task) \S+$", re.MULTILINE)


class SlurmSays(NamedTuple):
    """The words of Slurm about the starts of a job, beside its records."""

    accounted: Sequence[PastStart] = ()  # by Slurm's accounting, one for each start; empty if it is not known
    log: str = ""  # the end of the log of the batch script
    failed: frozenset[str] = frozenset()  # nodes that are down, or have started anew since the newest start
    job_id: str = ""  # of an earlier job of a chain

    @property
    def has_run(self) -> bool:
        """Whether the job has run, as far as that is known: else it was cancelled as it waited."""
        return bool(self.log.strip()) or any(row.nodes for row in self.accounted)


class Unwritten(NamedTuple):
    """The end of a start without a record."""

    epoch: Epoch  # of the start
    job_id: str  # its job
    cause: Cause
    nodes: tuple[str, ...]  # that were lost, as far as that is known
    why: str  # for people


def mark_text(start: int, noun: str, job_ref: str) -> str:
    """Return the line by which a log tells where a start begins in it.

    Args:
        start: restart count of Slurm.
        noun: job or task.
        job_ref: its name.
    """
    return f"this is start {start} of {noun} {job_ref}"


def part_of(log: str, restart: int, *, has_run: bool = False) -> str:
    """Return the part of a log that one start has written; empty if a further start has not marked its own.

    Slurm counts a restart, too, for a job that is requeued by hand before its script runs.

    Args:
        log: of the batch script, or its end, in which the mark of a start with much output is missing.
        restart: of the start.
        has_run: whether its agents have begun, so that it has marked its part.
    """
    began = 0 if has_run or not restart else None
    for mark in _MARK.finditer(log):
        if int(mark[1]) > restart:
            return "" if began is None else log[began : mark.start()]
        began = mark.end() if int(mark[1]) == restart else None
    return "" if began is None else log[began:]


def of_job(
    state: RunState,
    epoch: Epoch,
    told: SlurmSays,
    earlier: Mapping[int, SlurmSays] = MappingProxyType({}),
) -> list[Unwritten]:
    """Return the ends of earlier starts of a job, or of its chain, that have no record, the oldest first.

    Args:
        state: the run, before this start has begun in it.
        epoch: of this start.
        told: by Slurm about its job.
        earlier: the same about earlier jobs of the chain, by their links.
    """
    known = state.epoch
    is_same = known.submission == epoch.submission
    if known.submission > epoch.submission or (is_same and (known.link > epoch.link or has_ended(state))):
        return []
    if is_same and known.link == epoch.link:
        return [_end(state, epoch._replace(restart=one), told) for one in range(_first(state), epoch.restart)]
    last, found = known.link if is_same else -1, []
    for link, says in sorted(earlier.items()):
        if link == last and _first(state) == known.restart:
            found.append(_end(state, known, says))
        elif last < link < epoch.link and says.has_run:
            found.append(_end(state, epoch._replace(link=link, restart=0), says))
    return found + [_end(state, epoch._replace(restart=one), told) for one in range(epoch.restart)]


def _first(state: RunState) -> int:
    """Return the restart count of the first start whose end has no record; one that is held was put back."""
    return state.epoch.restart + (state.requeued or state.ending is not None)


def _end(state: RunState, epoch: Epoch, told: SlurmSays) -> Unwritten:
    began, job_id = state.epoch.script == epoch.script, told.job_id
    row = told.accounted[epoch.restart] if epoch.restart < len(told.accounted) else None
    nodes = row.nodes if row is not None else state.expected if began else ()
    host = (state.batch_host,) if began and state.batch_host else nodes[:1]
    failed = told.failed if began else frozenset()
    log = part_of(told.log, epoch.restart, has_run=began)
    cause, why, is_silent = _cause(state if began else None, row, log, has_failed=not failed.isdisjoint(host))
    is_known = len(failed) <= 1 and (is_silent or len(nodes) == 1)  # several at once: by the power, say
    lost = host if cause is Cause.NODE_LOSS and is_known else ()
    return Unwritten(epoch, job_id, cause, lost, why)


def _cause(
    state: RunState | None, row: PastStart | None, log: str, *, has_failed: bool
) -> tuple[Cause, str, bool]:
    """Return why a start has ended, the same for people, and whether its batch host has said nothing.

    Args:
        state: the run, if the start has begun in it.
        row: of Slurm's accounting.
        log: the part of the log that the start has written.
        has_failed: whether Slurm says that its batch host, or the node of the task, has failed since.
    """
    asked = None if state is None else drain_cause(state)
    asked = None if asked in USERS_WISH else asked  # another end came first, and the wish stands
    said = due_to(log)
    is_silent = bool(log.strip()) and said is None and asked is None
    by_slurm = None if row is None else _CAUSE_OF.get(row.state)
    if by_slurm is not None and row is not None:
        return by_slurm, f"Slurm has it as {row.state}", is_silent
    if said is not None:
        return said, "Slurm has said so in the batch log", False
    by_hand = row is not None and row.state == _BY_HAND
    is_other = by_hand or (row is not None and row.state in _BY_ITSELF)
    if asked is not None and not (is_other and state is not None and _is_guess(state)):
        return asked, "its agents had been asked to leave", False
    if by_hand:
        return Cause.REQUEUE, f"Slurm has it as {_BY_HAND}", False
    if is_silent and row is None and has_failed:
        return Cause.NODE_LOSS, _SILENT, True
    return Cause.UNKNOWN, NOT_KNOWN, False


def _is_guess(state: RunState) -> bool:
    """Tell whether agents have left for a signal whose reason Slurm had not told them."""
    asked = state.drained or state.drain
    if asked is None or asked.cause is not Cause.PREEMPTION or not asked.asked.signal:
        return False
    return asked.asked.answer not in (Answer.CONFIRMS, Answer.DENIES)


def entries_of(found: Iterable[Unwritten], state: RunState, job_id: str) -> list[EpochStarted | Requeued]:
    """Return the records of the ends of earlier starts of a job.

    Args:
        found: these.
        state: the run before.
        job_id: the job of the start that has found them.
    """
    made: list[EpochStarted | Requeued] = []
    for one in found:
        mine = one.epoch._replace(relaunch=0)
        if state.epoch.script == mine.script:
            mine = state.epoch
        else:
            made.append(EpochStarted(mine, one.job_id or job_id, ()))
        made.append(Requeued(mine, one.cause, f"found by the next start: {one.why}", nodes=one.nodes))
    return made


def member_of(state: RunState, start: TaskStart) -> Member | None:
    """Return the agent of an earlier start of a task that is still a member of the running round.

    Of a run that is held each script has recorded the end of its start.

    Args:
        state: the run.
        start: of the task.
    """
    members = () if state.running is None or state.ending is not None else state.running.members
    for member in members:
        known = start_of(member.node_id)
        is_earlier = known is not None and known.task == start.task and known.restart < start.restart
        if is_earlier and member.node_id not in state.left:
            return member
    return None


def goodbye_for(state: RunState, start: TaskStart, cause: Cause, why: str) -> NodeLeft | None:
    """Return the record with which the agent of a start of a task should have left.

    Args:
        state: the run.
        start: of the task, which ends now.
        cause: of the end, by Slurm.
        why: the same for people.

    Returns:
        It; None: the agent has left with one, or was in no round that runs.
    """
    member = member_of(state, start._replace(restart=start.restart + 1))
    known = None if member is None else start_of(member.node_id)
    if member is None or known is None or known.restart != start.restart:
        return None
    return NodeLeft(state.epoch, member.node_id, member.node, cause, f"found by its batch script: {why}")


def of_task(
    state: RunState, member: Member, told: SlurmSays, ended: Callable[[], Collection[str]]
) -> tuple[Entry, str]:
    """Return the record of the end of an earlier start of a task, and its cause for people.

    Args:
        state: the run; a round runs.
        member: the agent of that start in it.
        told: by Slurm.
        ended: returns the agents of the round whose starts are over by Slurm. They were lost with this one,
            and the next starts of their tasks come later.
    """
    known = start_of(member.node_id)
    restart = 0 if known is None else known.restart
    row = told.accounted[restart] if restart < len(told.accounted) else None
    log = part_of(told.log, restart, has_run=True)
    cause, why, _ = _cause(None, row, log, has_failed=member.node in told.failed)
    if cause is Cause.NODE_LOSS and state.running is not None:
        over = {member.node_id, *ended()} - state.left
        nodes = tuple(one.node for one in state.running.members if one.node_id in over)
        return RoundEnded(state.running.number, cause, nodes, None), why
    return NodeLeft(state.epoch, member.node_id, member.node, cause, f"found by the next start: {why}"), why
