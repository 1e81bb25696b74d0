"""The facts of a run at one moment, with Slurm's answer: one set for status, explain, report and watch."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpc_elastic.account.account import Account, NewestStep, account_of
from hpc_elastic.account.in_order import SubmitTime
from hpc_elastic.account.read import read_facts, read_gpus
from hpc_elastic.account.spans import History
from hpc_elastic.clock import SystemClock, wall_of
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.saved import users_ways_back
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.report.queue_text import what_helps
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.may_start import first_to_do
from hpc_elastic.slurm.run_jobs.newest_step import newest_step_of
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, SlurmAnswer, ask_job, is_array
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, script_counts, signs_of, silent_for
from hpc_elastic.text import for_shell

_WAITS = (RunPhase.QUEUED, RunPhase.REQUEUED)
_GOES_ON = (
    *_WAITS,
    RunPhase.STARTING,
    RunPhase.RUNNING,
    RunPhase.RESTARTING,
    RunPhase.PAUSING,
    RunPhase.DRAINING,
)
"""Phases of a run that goes on by itself."""
_MENDED = "when it is mended:"
Say = Callable[[str], None]


class NextStep(NamedTuple):
    """A thing for the user to do, with at most one command."""

    before: str = ""  # words before the command, with their colon; without a command: all words
    command: str = ""  # that can be copied
    after: str = ""
    is_start: bool = False  # it starts the run again

    @property
    def text(self) -> str:
        """The step as one line."""
        return " ".join(filter(None, (self.before, self.command, self.after)))


class SeenRun(NamedTuple):
    """Everything that is known of a run at one moment."""

    run: RunFiles
    asked: SlurmAnswer
    where: RunStatus
    account: Account
    newest: NewestStep | None  # of the workers, by their heartbeats; None: none run, or they tell no steps
    then: list[NextStep]  # of its user

    @property
    def goes_on(self) -> bool:
        """Whether the run goes on by itself; one that its user stops does not."""
        run, phase = self.run, self.where.phase
        is_ended = run.is_torchruns or run.was_interrupted or drain_cause(run.state) in USERS_WISH
        needs_help = phase in _WAITS and bool(_what_helps_to_start(run, self.asked))
        return not needs_help and not is_ended and phase in _GOES_ON


def look_at(run: RunFiles, say: Say, asked: SlurmAnswer | None = None) -> SeenRun:
    """Return the facts of a run.

    Args:
        run: its files.
        say: gets a line while one waits for a sign of life.
        asked: the answer of Slurm about its job; None: it is asked.
    """
    if asked is None:
        asked, where = ask_status(run, say)
    else:
        where = status_of(RunView.of(run, asked.job))
    account = account_at(run, where.phase)
    return SeenRun(run, asked, where, account, newest_step_of(run), next_steps(run, where, asked))


def ask_status(run: RunFiles, say: Say) -> tuple[SlurmAnswer, RunStatus]:
    """Return Slurm's answer about the job of a run, and the state by it and by the signs of life."""
    asked = ask_job(run, Slurm())
    silent_s = silent_for(run, SystemClock(), say) if may_live(asked.job) else None
    return asked, status_of(RunView.of(run, asked.job, silent_s))


def account_at(run: RunFiles, phase: RunPhase) -> Account:
    """Return the account of a run up to now; that of one that is over ends with its last event."""
    is_over = phase.is_final or phase in (RunPhase.GONE, RunPhase.SILENT)
    return account_of(history_of(run, None if is_over else SystemClock().wall()))


def history_of(run: RunFiles, now: float | None) -> History:
    """Return the source of a run's account.

    Args:
        run: its files.
        now: wall time if the run goes on [s since the epoch]; None: the last event ends the account.
    """
    times = [(done.number, wall_of(done.time.replace(" ", "T"))) for done in run.submissions]
    submitted = [SubmitTime(number, at) for number, at in times if at is not None]
    newest = newest_step(run.paths, BEGINNING)
    saved = None if newest == BEGINNING else newest
    gpus, backs = read_gpus(run.paths), users_ways_back(run.paths)
    return History(run.records, read_facts(run.paths), submitted, saved, now, gpus, backs)


def batch_log(run: RunFiles) -> list[str]:
    """Return the log of the newest job's script, if there is one."""
    path = run.paths.batch_log.replace("%j", run.job_id)
    return [path] if os.path.exists(path) else []


def next_steps(run: RunFiles, where: RunStatus, asked: SlurmAnswer) -> list[NextStep]:
    """Return the next steps of the user for the state that a run is in."""
    root, phase = for_shell(run.paths.root), where.phase
    logs = NextStep(command=f"hpc-elastic logs {root}")
    if run.is_torchruns and phase is not RunPhase.SILENT:
        return [NextStep("read torchrun's output"), _again(run, "to start it again:")]
    if phase is RunPhase.SILENT:
        return _next_of_silent(run, asked)
    if phase is RunPhase.HELD:
        is_there = asked.job is None or asked.job.state.is_active
        release = NextStep(_MENDED, f"scontrol release {run.job_id}")
        return [logs, release if is_there else _again(run, _MENDED)]
    if phase is RunPhase.GONE and batch_log(run):
        return [NextStep(f"read {for_shell(batch_log(run)[0])}"), _again(run)]
    if phase in _WAITS and (helps := _what_helps_to_start(run, asked)):
        return [helps]
    told = {
        RunPhase.DONE: [logs],
        RunPhase.FAILED: [logs, _again(run, _MENDED)],
        RunPhase.QUEUED: [NextStep(command=f"hpc-elastic status {root}", after="once the job has started")],
    }
    is_over = phase.is_final or phase is RunPhase.GONE or run.was_interrupted
    waits = is_over and asked.job is not None and asked.job.state.is_active  # not for long
    first = [NextStep(first_to_do(run.job_id, asked.job.state))] if waits and asked.job is not None else []
    follow = NextStep(command=f"hpc-elastic logs -f {root}")
    return told.get(phase, [*first, _again(run)] if is_over else [follow])


def _again(run: RunFiles, before: str = "") -> NextStep:
    """Return the step that starts a run again; without a script of this package it has words alone."""
    again = run.command_to_go_on
    if run.has_script:
        return NextStep(before, again, is_start=True)
    return NextStep(f"{before} {again}" if before else again, is_start=True)


def _what_helps_to_start(run: RunFiles, asked: SlurmAnswer) -> NextStep | None:
    """Return the fix for a job that does not start by itself; None if it does."""
    if asked.job is not None and asked.job.to_be_released:
        release = f"scontrol release {run.job_id}"
        return NextStep(command=release, after="(where an administrator holds it: ask why)")
    helps = what_helps(asked.fields, for_shell(run.paths.root))
    return NextStep(helps) if helps else None


def _next_of_silent(run: RunFiles, asked: SlurmAnswer) -> list[NextStep]:
    """Return the fix for a run whose agents are silent."""
    root = for_shell(run.paths.root)
    if asked.job is None:
        job = f"whether job {run.job_id} runs" if run.job_id else "whether it runs"
        where = "where torchrun was started" if run.is_torchruns else "on a login node"
        return [NextStep(f"look {where} {job}"), _again(run, "if not:")]
    if script_counts(signs_of(run, SystemClock().wall())):
        look = f"hpc-elastic status {root}"
        return [NextStep("its batch script lives and acts by itself:", look, "in a minute")]
    again, found = _again(run), asked.job
    if found.state is JobState.RUNNING and found.may_requeue and not (is_array(run) or run.is_torchruns):
        # nothing else does: no process is left
        again = NextStep("to start it again:", f"scontrol requeue {run.job_id}")
    end = NextStep("to end it:", f"hpc-elastic cancel {root}")
    return [NextStep(command=f"hpc-elastic logs {root}"), end, again]
