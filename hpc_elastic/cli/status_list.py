"""The runs of a folder, a line for each: ``hpc-elastic status`` without a run, or of such a folder."""

from __future__ import annotations

import os
import shlex

import typer

from hpc_elastic.cli.run_argument import runs_in
from hpc_elastic.clock import NO_TIME, SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RUNS_FOLDER, RunPaths
from hpc_elastic.report.run_status import Phase, RunView, status_of
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.run_files import RunFiles, read_run
from hpc_elastic.slurm.signs_of_life import is_in_doubt, signs_of


def list_runs(folder: str) -> int:
    """Print a line for each run in a folder, the one that changed last first; asks no Slurm."""
    lines = sorted(map(_line, runs_in(folder)), reverse=True)
    if not lines:
        typer.echo(f"there are no runs below {os.path.abspath(folder)}")
        if folder == RUNS_FOLDER and runs_in(os.curdir):
            typer.echo("next: hpc-elastic status .  (there are some right here)")
        return 0
    width = max(len(name) for _, name, _ in lines)
    for time, name, text in lines:
        typer.echo(f"{name:<{width}}  {time or '?':<19}  {text}")
    newest = lines[0][1]
    word = newest if folder == RUNS_FOLDER else shlex.quote(os.path.join(folder, newest))
    typer.echo(f"next: hpc-elastic status {word}  (asks Slurm, too)")
    return 0


def _line(paths: RunPaths) -> tuple[str, str, str]:
    """Return when a run changed last, its name, and how it stands."""
    try:
        run = read_run(paths)
        return (_changed(run), paths.name, _standing(run))
    except HpcElasticError as error:
        return ("", paths.name, f"cannot be read: {error}")


def _changed(run: RunFiles) -> str:
    times = [done.time for done in run.submissions[-1:]]
    times += [date_text(record.at) for record in run.records[-1:]]
    return max((time for time in times if time != NO_TIME), default="")


def _standing(run: RunFiles) -> str:
    where = status_of(RunView.of(run))
    if where.phase is Phase.UNKNOWN and run.job_id and not run.is_local:
        return "submitted"  # whether it waits or starts just now only Slurm knows
    if run.is_torchruns and where.phase is Phase.GONE:
        return "torchrun's agents have left"
    if where.phase.is_final or not run.records:
        return where.phase.value
    signs = signs_of(run, SystemClock().wall())
    if not is_in_doubt(signs):
        return where.phase.value
    age_s = signs.agents_s if signs.agents_s is not None else signs.script_s
    return f"{where.phase.value}, but no sign of life for {span_text(age_s or 0.0)}"
