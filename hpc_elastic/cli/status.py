"""``hpc-elastic status`` and ``timeline``: where a run stands and what happened in it."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Optional

import typer

from hpc_elastic.cli.run_argument import RunArgument, find_run, known_runs
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RUNS_FOLDER
from hpc_elastic.report.run_size import size_text
from hpc_elastic.report.run_status import Phase, RunStatus, RunView, status_of
from hpc_elastic.report.timeline import count_text, span_text
from hpc_elastic.report.timeline import timeline as moments_of
from hpc_elastic.slurm.commands import Slurm
from hpc_elastic.slurm.lifecycle import GONE, MAX_REQUEUES
from hpc_elastic.slurm.parse import JobState
from hpc_elastic.slurm.run_dir import identity_trouble
from hpc_elastic.slurm.run_files import Asked, RunFiles, ask_job, newest_checkpoint, read_run
from hpc_elastic.store.files import list_names

_GOOD = (Phase.RUNNING, Phase.DONE)
_BAD = (Phase.FAILED, Phase.GONE)
_MAX_RESTARTS = 3  # of a job spec

ShowTimeline = Annotated[bool, typer.Option("--timeline", help="Show what happened, too.")]


OptionalRun = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time on Python 3.10 too
    typer.Argument(
        metavar="[RUN]",
        help=f"Run directory, run id, job id or job name. Without it: all runs below ./{RUNS_FOLDER}.",
        show_default=False,
    ),
]


def status(
    run: OptionalRun = None,
    timeline: ShowTimeline = False,  # noqa: FBT002 - typer's way to write a flag
) -> int:
    """Show where a run stands, what it has used up, and what to do next."""
    if run is None:
        return _list_runs()
    found = read_run(find_run(run))
    asked = ask_job(found, Slurm())
    where = status_of(RunView(found.state, found.submission, found.job_id, asked.job, found.has_script))
    colour = "green" if where.phase in _GOOD else "red" if where.phase in _BAD else "yellow"
    typer.secho(f"{found.name}: {where.text}", fg=colour, bold=True)
    facts = _facts(found, asked)
    if not where.phase.is_final and where.phase is not Phase.GONE:
        size = size_text(found.state, list_names(found.paths.members))
        facts[1:1] = [("size", size)] if size else []
    for label, text in facts:
        typer.echo(f"  {label:<12}{text}")
    if timeline:
        _print_timeline(found)
    typer.echo(f"next: {_next(found, where)}")
    return 0


def _list_runs() -> int:
    """Print a line for each run below the runs folder, the one that changed last first; asks no Slurm."""
    lines = []
    for paths in known_runs():
        try:
            found = read_run(paths)
        except HpcElasticError as error:
            lines.append(("", paths.name, f"cannot be read: {error}"))
            continue
        times = [done.time for done in found.submissions[-1:]]
        times += [date_text(record.at) for record in found.records[-1:]]
        where = status_of(RunView(found.state, found.submission, found.job_id, None, found.has_script))
        lines.append((max(times, default=""), paths.name, where.phase.value))
    if not lines:
        typer.echo(f"there are no runs below {os.path.abspath(RUNS_FOLDER)}")
        return 0
    width = max(len(name) for _, name, _ in lines)
    for time, name, text in sorted(lines, reverse=True):
        typer.echo(f"{name:<{width}}  {time or '?':<19}  {text}")
    typer.echo(f"next: hpc-elastic status {max(lines)[1]}  (asks Slurm, too)")
    return 0


def timeline(run: RunArgument) -> int:
    """Show what happened in a run: starts, rounds, failures, drains, requeues, the end."""
    _print_timeline(read_run(find_run(run)))
    return 0


def _facts(run: RunFiles, asked: Asked) -> list[tuple[str, str]]:
    now_s = SystemClock().wall()
    state = run.state
    facts = [("run", run.paths.root)]
    if run.job_id:
        facts.append(("job", _job_text(run, asked)))
    if asked.trouble:
        facts.append(("", asked.trouble))
    facts += zip(("damaged", ""), identity_trouble(run.paths), strict=False)
    saved = newest_checkpoint(run.paths, now_s)
    if saved is not None:
        where = f" ({saved.path})" if saved.path else ""
        facts.append(("checkpoint", f"step {saved.step}, saved {span_text(saved.age_s)} ago{where}"))
    elif state.rounds:
        facts.append(("checkpoint", "none marked (hpc_elastic.worker.checkpoint_saved)"))
    facts.append(("used", _used_text(run)))
    if asked.job is not None and asked.job.state is JobState.ENDED and state.ending is None:
        facts += [("batch log", path) for path in _batch_log(run)]
    if run.records:
        last = moments_of(run.records)[-1]
        facts.append(("last", f"{date_text(last.at)} ({span_text(now_s - last.at)} ago) {last.text}"))
    return facts


def _used_text(run: RunFiles) -> str:
    """Return how much of the budgets is used; of a run without a job spec nobody knows the limits."""
    crashes, requeues = run.state.crashes, run.state.requeues
    if not run.spec:
        return f"{count_text(crashes, 'failure')}, {count_text(requeues, 'requeue')}"
    most = run.spec.get("max_restarts", _MAX_RESTARTS)
    most_requeues = run.spec.get("max_requeues") or MAX_REQUEUES
    return f"{min(crashes, most)} of {most} restarts, {requeues} of {most_requeues} requeues"


def _batch_log(run: RunFiles) -> list[str]:
    path = run.paths.batch_log.replace("%j", run.job_id)
    return [path] if os.path.exists(path) else []


def _job_text(run: RunFiles, asked: Asked) -> str:
    if run.is_local:
        return f"{run.job_id} on one machine" + (
            "; it does not run here any more" if asked.job == GONE else ""
        )
    if not asked.fields:
        return run.job_id + (" (Slurm does not know it any more)" if asked.job == GONE else "")
    labels = _JOB_LABELS.get(asked.job.state, _ENDED_LABELS) if asked.job else ()
    unknown_from = date_text(SystemClock().wall() + _NO_ESTIMATE_S).replace(" ", "T")
    if (
        asked.job is not None
        and asked.job.state in _WAITING
        and asked.fields.get("StartTime", "") > unknown_from
    ):
        labels = labels[1:]  # what Slurm says when it has no estimate
    more = [f"{text} {asked.fields[key]}" for key, text in labels if asked.fields.get(key, "") not in _EMPTY]
    return ", ".join([f"{run.job_id}: {asked.fields.get('JobState', '?')}", *more])


_NO_ESTIMATE_S = 300 * 86400.0
_WAITING = (JobState.PENDING, JobState.REQUEUED)
_QUEUED_LABELS = (("StartTime", "expected to start"), ("Partition", "partition"))
_RUNNING_LABELS = (
    ("StartTime", "since"),
    ("EndTime", "until"),
    ("NodeList", "on"),
    ("Partition", "partition"),
)
_ENDED_LABELS = (("EndTime", "ended"),)
_JOB_LABELS = {
    JobState.PENDING: _QUEUED_LABELS,
    JobState.REQUEUED: _QUEUED_LABELS,
    JobState.RUNNING: _RUNNING_LABELS,
    JobState.SUSPENDED: _RUNNING_LABELS,
    JobState.COMPLETING: _RUNNING_LABELS,
}
_EMPTY = ("", "None", "(null)", "Unknown", "N/A")


def _print_timeline(run: RunFiles) -> None:
    told = -1
    for moment in moments_of(run.records):
        for done in run.submissions:
            if told < done.number <= moment.submission:
                typer.echo(f"{done.time or '?':<19}  submitted as {_job_name(done.job_id)}")
                told = done.number
        typer.echo(f"{date_text(moment.at)}  {moment.text}")
    for done in run.submissions:
        if done.number > told:
            typer.echo(f"{done.time or '?':<19}  submitted as {_job_name(done.job_id)}")


def _job_name(job_id: str) -> str:
    return f"job {job_id}" if job_id else "a job whose id is not known (sbatch did not answer)"


def _next(run: RunFiles, where: RunStatus) -> str:
    root = shlex.quote(run.paths.root)
    if where.phase is Phase.DONE:
        return f"hpc-elastic logs {root}"
    again = run.command_to_go_on
    if where.phase is Phase.FAILED:
        return f"hpc-elastic logs {root}, then {again}"
    if where.phase is Phase.GONE and _batch_log(run):
        return f"read {shlex.quote(_batch_log(run)[0])}, then {again}"
    if where.phase.is_final or where.phase is Phase.GONE:
        return again
    if where.phase is Phase.QUEUED:
        return f"hpc-elastic status {root} once the job has started"
    return f"hpc-elastic logs -f {root}"
