"""``hpc-elastic status`` and ``timeline``: the state of a run and its events."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.account.account import Account, account_of
from hpc_elastic.account.read import read_begun
from hpc_elastic.cli.run_argument import find_run, holds_runs
from hpc_elastic.cli.say import fitting, hand_out, say, say_aside, say_fact, say_in_colour
from hpc_elastic.cli.status.facts import batch_log, status_facts
from hpc_elastic.cli.status.runs import list_runs, runs_json
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.explain.as_json import run_json, status_json, timeline_json
from hpc_elastic.report.explain.facts import history_of
from hpc_elastic.report.queue_text import what_helps
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, size_text, status_of
from hpc_elastic.report.timeline import Moment
from hpc_elastic.report.timeline import timeline as moments_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.may_start import first_to_do
from hpc_elastic.slurm.run_jobs.run_files import (
    RunFiles,
    SlurmAnswer,
    ask_job,
    is_array,
    read_run,
    with_excluded,
)
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, script_counts, signs_of, silent_for
from hpc_elastic.store.files import list_names
from hpc_elastic.text import for_shell, visible

WAITS = (RunPhase.QUEUED, RunPhase.REQUEUED)
GOES_ON = (
    *WAITS,
    RunPhase.STARTING,
    RunPhase.RUNNING,
    RunPhase.RESTARTING,
    RunPhase.PAUSING,
    RunPhase.DRAINING,
)
"""Phases of a run that goes on by itself."""
_GOOD = (RunPhase.RUNNING, RunPhase.DONE)
_MENDED = "when it is mended"
_BAD = (RunPhase.FAILED, RunPhase.GONE, RunPhase.SILENT)


def status(run: str | None = None, *, timeline: bool = False, json: bool = False) -> int:
    """Show where a run stands, the budgets that it has used, and the next command."""
    folder = RUNS_FOLDER if run is None else holds_runs(run)
    if folder is not None:
        if json:
            hand_out(runs_json(folder))
        return 0 if json else list_runs(folder)
    found = read_run(find_run(run or ""))
    seen = _look(found)
    if json:
        hand_out(_document(found, seen))
        return 0
    _say_headline(found, seen.where)
    for label, text in seen.facts:
        say_fact(label, text)
    if timeline:
        _print_timeline(found)
    say_next(seen.then)
    return 0


def say_next(steps: Sequence[str]) -> None:
    """Print the next steps of the user."""
    for place, step in enumerate(steps):
        say(f"{'' if place else 'next:':<5} {step}")


class _StatusView(NamedTuple):
    """The findings of `status` about a run."""

    where: RunStatus
    account: Account
    facts: list[tuple[str, str]]
    then: list[str]


def _look(found: RunFiles) -> _StatusView:
    asked, where = ask_status(found)
    asked = with_excluded(asked, Slurm())
    account = account_of(history_of(found, open_until(where.phase)))
    facts = status_facts(found, asked, account)
    if not where.phase.is_final and where.phase is not RunPhase.GONE:
        size = size_text(found.state, list_names(found.paths.members))
        facts[1:1] = [("size", size)] if size else []
    return _StatusView(where, account, facts, next_steps(found, where, asked))


def _document(found: RunFiles, seen: _StatusView) -> str:
    return status_json(run_json(found, seen.where), seen.account, seen.facts, seen.then)


def status_document(paths: RunPaths) -> str:
    """Return the document of ``status --json`` about a run."""
    found = read_run(paths)
    return _document(found, _look(found))


def ask_status(run: RunFiles) -> tuple[SlurmAnswer, RunStatus]:
    """Return Slurm's answer about the job of a run, and the state by it and by the signs of life."""
    asked = ask_job(run, Slurm())
    silent_s = silent_for(run, SystemClock(), say_aside) if may_live(asked.job) else None
    return asked, status_of(RunView.of(run, asked.job, silent_s))


def colour_of(phase: RunPhase) -> str:
    """Return the colour of a state."""
    return "green" if phase in _GOOD else "red" if phase in _BAD else "yellow"


def _say_headline(run: RunFiles, where: RunStatus) -> None:
    is_left = run.is_torchruns and where.phase is RunPhase.GONE
    colour = "yellow" if is_left else colour_of(where.phase)
    headline = "\n".join(fitting(visible(f"{run.name}: {where.text}"), "", "  "))
    say_in_colour(headline, colour, bold=True)


def timeline(run: str | None = None, *, json: bool = False) -> int:
    """Show the events of a run: starts, rounds, failures, drains, requeues, the end."""
    found = read_run(find_run(run))
    if json:
        hand_out(timeline_json(run_json(found, ask_status(found)[1]), found.submissions, _moments(found)))
        return 0
    _print_timeline(found)
    _print_outside(found)
    return 0


def _print_outside(run: RunFiles) -> None:
    """Return the state of a job that was to start again: the run itself has no record of that."""
    state = run.state
    if state.ending is not None or not run.job_id or not (state.requeued or state.drained or state.deserted):
        return
    where = status_of(RunView.of(run, ask_job(run, Slurm()).job))
    if where.phase in (RunPhase.GONE, RunPhase.STOPPED):
        say(f"{date_text(SystemClock().wall())}  Slurm says now: {visible(where.text)}")


def _moments(run: RunFiles) -> list[Moment]:
    return moments_of(run.records, by_torchrun=run.is_torchruns, begun=read_begun(run.paths))


def _print_timeline(run: RunFiles) -> None:
    told = -1
    for moment in _moments(run):
        for done in run.submissions:
            if told < done.number <= moment.submission:
                say(f"{done.time or '?':<19}  submitted as {_job_name(done.job_id)}")
                told = done.number
        say(f"{date_text(moment.at)}  {visible(moment.text)}")
    for done in run.submissions:
        if done.number > told:
            say(f"{done.time or '?':<19}  submitted as {_job_name(done.job_id)}")


def _job_name(job_id: str) -> str:
    return f"job {job_id}" if job_id else "a job whose id is not known (sbatch did not answer)"


def open_until(phase: RunPhase) -> float | None:
    """Return until when the account of a run is open; None: its last event ends it."""
    is_over = phase.is_final or phase in (RunPhase.GONE, RunPhase.SILENT)
    return None if is_over else SystemClock().wall()


def next_steps(run: RunFiles, where: RunStatus, asked: SlurmAnswer) -> list[str]:
    """Return the next steps of the user for the state that a run is in, at most one command in each."""
    root, again, phase = for_shell(run.paths.root), run.command_to_go_on, where.phase
    if run.is_torchruns and phase is not RunPhase.SILENT:
        return ["read torchrun's output", f"to start it again: {again}"]
    if phase is RunPhase.SILENT:
        return _next_of_silent(run, asked)
    if phase is RunPhase.HELD:
        is_there = asked.job is None or asked.job.state.is_active
        release = f"scontrol release {run.job_id}"
        return [f"hpc-elastic logs {root}", f"{_MENDED}: {release if is_there else again}"]
    if phase is RunPhase.GONE and batch_log(run):
        return [f"read {for_shell(batch_log(run)[0])}", again]
    if phase in WAITS and (helps := what_helps_to_start(run, asked)):
        return [helps]
    told = {
        RunPhase.DONE: [f"hpc-elastic logs {root}"],
        RunPhase.FAILED: [f"hpc-elastic logs {root}", f"{_MENDED}: {again}"],
        RunPhase.QUEUED: [f"hpc-elastic status {root} once the job has started"],
    }
    is_over = phase.is_final or phase is RunPhase.GONE or run.was_interrupted
    waits = is_over and asked.job is not None and asked.job.state.is_active  # not for long
    first = [first_to_do(run.job_id, asked.job.state)] if waits and asked.job is not None else []
    return told.get(phase, [*first, again] if is_over else [f"hpc-elastic logs -f {root}"])


def what_helps_to_start(run: RunFiles, asked: SlurmAnswer) -> str:
    """Return the fix for a job that does not start by itself; empty if it does."""
    if asked.job is not None and asked.job.to_be_released:
        return f"scontrol release {run.job_id} (where an administrator holds it: ask why)"
    return what_helps(asked.fields, for_shell(run.paths.root))


def _next_of_silent(run: RunFiles, asked: SlurmAnswer) -> list[str]:
    """Return the fix for a run whose agents are silent."""
    root = for_shell(run.paths.root)
    if asked.job is None:
        job = f"whether job {run.job_id} runs" if run.job_id else "whether it runs"
        where = "where torchrun was started" if run.is_torchruns else "on a login node"
        return [f"look {where} {job}", f"if not: {run.command_to_go_on}"]
    if script_counts(signs_of(run, SystemClock().wall())):
        return [f"its batch script lives and acts by itself: hpc-elastic status {root} in a minute"]
    again, found = run.command_to_go_on, asked.job
    if found.state is JobState.RUNNING and found.may_requeue and not (is_array(run) or run.is_torchruns):
        again = f"to start it again: scontrol requeue {run.job_id}"  # nothing else does: no process is left
    return [f"hpc-elastic logs {root}", f"to end it: hpc-elastic cancel {root}", again]
