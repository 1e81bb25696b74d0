"""The last actions of an agent, in the place of a lost batch script."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import HpcElasticError, TakenOverError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.meet.liveness import is_alive
from hpc_elastic.meet.member_names import TERMINAL
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Decision, RunEnded
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.shared_dir import SharedDirStore

if TYPE_CHECKING:
    from hpc_elastic.meet.shared_run import SharedRun
    from hpc_elastic.node.outcome import Outcome
    from hpc_elastic.record.array_task import TaskStart
    from hpc_elastic.start.meeting import OpenAgent

_ASKING = 8  # so many of a job ask Slurm; a thousand at once would be a burden to slurmctld


def finish_in_its_place(paths: RunPaths, task: TaskStart | None, opened: OpenAgent, exit_code: int) -> None:
    """Do the work of a lost batch script after srun; the requeue ends this process too.

    Args:
        paths: the run.
        task: which start of which task of an array this is, None of a whole job.
        opened: the agent that has ended.
        exit_code: its exit code.
    """
    is_told_to_leave = exit_code == ExitCode.REQUEUE and bool(opened.loop.last_signal)
    if task is None:
        drained = opened.run.state.drained
        is_in_vain = drained is not None and drained.cause is Cause.JOIN_TIMEOUT
        place = place_before_a_round(opened.run) if is_in_vain else None
        _finish_job(paths, opened, place, is_told_to_leave=is_told_to_leave)
    elif is_told_to_leave:
        _finish_task(paths, task, opened)


def record_takeover(opened: OpenAgent, outcome: Outcome) -> None:
    """Write into the directory of a run why it has ended, wherever that is, if another one took its place."""
    if not isinstance(outcome.error, TakenOverError):
        return
    log = RunLog(SharedDirStore(opened.root.reached), SystemClock(), opened.run.node)
    ending = RunEnded(Decision.FAILED, ExitCode.FAILED, outcome.reason, None)
    with suppress(HpcElasticError, OSError):
        log.commit(lambda state: ending if state.ending is None else None)


def _finish_job(paths: RunPaths, opened: OpenAgent, place: int | None, *, is_told_to_leave: bool) -> None:
    """Finish a job; the first survivor does it, the next ones only if nothing comes of that for a while.

    Args:
        paths: the run.
        opened: the agent that has ended.
        place: this node's place if it has waited for the first round of this start in vain.
        is_told_to_leave: a signal ended it.
    """
    state, is_lost = opened.run.state, place is not None
    if place is None:
        place = opened.run.place_among_survivors()
        is_lost = state.batch_host in state.lost and state.batch_host not in state.unfit
    if place is None:
        return
    told = state.explained  # an agent without workers leaves before it has heard why it is to: it asks
    is_asking = is_told_to_leave and place < _ASKING
    is_killed = told.is_end_of_script if told else is_asking and _is_killed(paths)
    if not (is_lost or is_killed):
        return
    from hpc_elastic.slurm.end.batch_host import requeue_in_its_place  # noqa: PLC0415 - rare

    if is_killed:
        opened.log.say("the batch script was killed: the job is requeued from here")
    else:
        opened.log.say("the batch host is lost: the job is requeued from here as soon as Slurm has noticed")
    _ignore_signals()
    requeue_in_its_place(paths, os.environ, place, SystemClock(), opened.log.say)


def place_before_a_round(run: SharedRun) -> int | None:
    """Return this node's place where its start has formed no round and the batch host is silent.

    A batch host that is lost before its first round is no member of one, so no record says that it is lost.
    One whose agent has left is not lost: its batch script decides.

    Args:
        run: the run, as the agent of this node sees it.
    """
    state, facts, formed = run.state, run.facts, run.state.round
    if not facts.batch_host or facts.batch_host == run.node or run.blind_since is not None:
        return None
    if state.epoch != run.membership.epoch or (formed is not None and formed.epoch == state.epoch):
        return None
    now, lease = run.now(), run.settings.lease
    seen = (entry for entry in run.membership.roster.values() if entry.name.node == facts.batch_host)
    if any(entry.name.phase in TERMINAL or is_alive(entry, now, lease) for entry in seen):
        return None
    others = [node for node in facts.expected if node != facts.batch_host]
    return others.index(run.node) if run.node in others else None


def _finish_task(paths: RunPaths, task: TaskStart, opened: OpenAgent) -> None:
    from hpc_elastic.slurm.end import batch_host  # noqa: PLC0415 - rare

    if batch_host.task_lost_its_script(paths, task) or _is_killed(paths):
        opened.log.say("the batch script was killed: this task is requeued from here")
        _ignore_signals()
        batch_host.requeue_task_in_its_place(paths, os.environ, SystemClock(), opened.log.say)


def _is_killed(paths: RunPaths) -> bool:
    """Ask Slurm whether it ends the job for want of its batch script."""
    if Env.SUBMISSION not in os.environ:  # a user's own script, which nothing here stands in for
        return False
    from hpc_elastic.slurm.end.batch_host import ends_for_its_script  # noqa: PLC0415 - rare

    return ends_for_its_script(paths, os.environ)


def _ignore_signals() -> None:
    """Ignore those of the requeue itself, also in processes that report bad nodes to Slurm from here."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
