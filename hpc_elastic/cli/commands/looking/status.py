"""``hpc-elastic status`` and ``timeline``: the state of a run and its events."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.account.read import read_begun
from hpc_elastic.cli.run_argument import find_run, holds_runs
from hpc_elastic.cli.say import fitting, hand_out, say, say_aside, say_fact, say_in_colour
from hpc_elastic.cli.status.facts import status_facts
from hpc_elastic.cli.status.runs import list_runs, runs_json
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.explain.as_json import run_json, status_json, timeline_json
from hpc_elastic.report.run_facts import NextStep, SeenRun, ask_status, look_at
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, size_text, status_of
from hpc_elastic.report.timeline import Moment
from hpc_elastic.report.timeline import timeline as moments_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.run_files import (
    RunFiles,
    ask_job,
    read_run,
    with_excluded,
)
from hpc_elastic.slurm.run_jobs.script_tasks import array_with
from hpc_elastic.store.files import list_names
from hpc_elastic.text import visible

_GOOD = (RunPhase.RUNNING, RunPhase.DONE)
_BAD = (RunPhase.FAILED, RunPhase.GONE, RunPhase.SILENT)


def status(run: str | None = None, *, timeline: bool = False, json: bool = False) -> int:
    """Show where a run stands, the budgets that it has used, and the next command."""
    folder = RUNS_FOLDER if run is None else holds_runs(run)
    if folder is not None:
        if json:
            hand_out(runs_json(folder))
            return 0
        if (array := array_with(folder)) is not None:
            _say_array(read_run(array))
        return list_runs(folder)
    seen = look_at(read_run(find_run(run or "")), say_aside)
    lines = _lines(seen)
    if json:
        hand_out(status_json(seen, lines))
        return 0
    _say_headline(seen.run, seen.where)
    for label, text in lines:
        say_fact(label, text)
    if timeline:
        _print_timeline(seen.run)
    say_next(seen.then)
    return 0


def _say_array(run: RunFiles) -> None:
    """Print the state in Slurm of an array, whose tasks are runs of their own."""
    asked = ask_job(run, Slurm())
    is_over = asked.job is not None and asked.job.state is JobState.ENDED
    text = "its tasks have left Slurm" if is_over else asked.fields.get("JobState") or asked.trouble
    say(visible(f"{run.name}: array {run.job_id or '?'}: {text}"))


def say_next(steps: Sequence[NextStep]) -> None:
    """Print the next steps of the user."""
    for place, step in enumerate(steps):
        say(f"{'' if place else 'next:':<5} {step.text}")


def _lines(seen: SeenRun) -> list[tuple[str, str]]:
    """Return the lines below the first one: (label, text)."""
    lines = status_facts(seen._replace(asked=with_excluded(seen.asked, Slurm())))
    if not seen.where.phase.is_final and seen.where.phase is not RunPhase.GONE:
        size = size_text(seen.run.state, list_names(seen.run.paths.members))
        lines[1:1] = [("size", size)] if size else []
    return lines


def status_document(paths: RunPaths) -> str:
    """Return the document of ``status --json`` about a run."""
    seen = look_at(read_run(paths), say_aside)
    return status_json(seen, _lines(seen))


def colour_of(phase: RunPhase) -> str:
    """Return the colour of a state."""
    return "green" if phase in _GOOD else "red" if phase in _BAD else "yellow"


def run_colour(run: RunFiles, where: RunStatus) -> str:
    """Return the colour of the state of a run; of one of torchrun's, whose end is not recorded, yellow."""
    is_left = run.is_torchruns and where.phase is RunPhase.GONE
    return "yellow" if is_left else colour_of(where.phase)


def _say_headline(run: RunFiles, where: RunStatus) -> None:
    headline = "\n".join(fitting(visible(f"{run.name}: {where.text}"), "", "  "))
    say_in_colour(headline, run_colour(run, where), bold=True)


def timeline(run: str | None = None, *, json: bool = False) -> int:
    """Show the events of a run: starts, rounds, failures, drains, requeues, the end."""
    found = read_run(find_run(run))
    if json:
        where = ask_status(found, say_aside)[1]
        hand_out(timeline_json(run_json(found, where), found.submissions, _moments(found)))
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
