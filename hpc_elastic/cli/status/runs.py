"""The runs of a folder, a line for each: ``hpc-elastic status`` without a run, or of such a folder."""

from __future__ import annotations

import os
import shlex

from hpc_elastic.cli.say import say
from hpc_elastic.clock import NO_TIME, SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.run_jobs.existing_run import look_into, names_of_runs
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import is_in_doubt, signs_of
from hpc_elastic.text import visible

_MOST_FOREIGN = 10  # directories of other users that are named


def list_runs(folder: str) -> int:
    """Print a line for each run in a folder, the one that changed last first; asks no Slurm."""
    there = look_into(folder)
    lines = sorted((_line(RunPaths(os.path.join(folder, name))) for name in there.runs), reverse=True)
    foreign = list(there.foreign.items()) if folder == RUNS_FOLDER else []
    shown = foreign[:_MOST_FOREIGN]
    width = max((len(visible(name)) for name in (*(line[1] for line in lines), *dict(shown))), default=0)
    for time, name, text in lines:
        say(f"{visible(name):<{width}}  {time or '?':<19}  {visible(text)}")
    if not lines:
        say(f"there are no runs below {visible(os.path.abspath(folder))}" + (" of yours" if foreign else ""))
    for name, owner in shown:
        say(f"{visible(name):<{width}}  belongs to user {owner}")
    if len(foreign) > len(shown):
        say(f"and {len(foreign) - len(shown)} more of other users")
    _say_next(folder, lines[0][1] if lines else "")
    return 0


def _say_next(folder: str, newest: str) -> None:
    if newest:
        word = shlex.quote(newest if folder == RUNS_FOLDER else os.path.join(folder, newest))
        say(f"next: hpc-elastic status {word}  (asks Slurm, too)")
    elif folder == RUNS_FOLDER and names_of_runs(os.curdir):
        say("next: hpc-elastic status .  (there are some right here)")


def _line(paths: RunPaths) -> tuple[str, str, str]:
    """Return when a run changed last, its name, and how it stands."""
    try:
        run = read_run(paths)
        return (_changed(run), paths.name, _standing(run))
    except HpcElasticError as error:
        return ("", paths.name, f"cannot be read: {_first_line(error)}")


def _first_line(error: HpcElasticError) -> str:
    return str(error).partition("\n")[0]  # what to do is told of a single run


def _changed(run: RunFiles) -> str:
    times = [done.time for done in run.submissions[-1:]]
    times += [date_text(record.at) for record in run.records[-1:]]
    return max((time for time in times if time != NO_TIME), default="")


def _standing(run: RunFiles) -> str:
    where = status_of(RunView.of(run))
    if where.phase is RunPhase.UNKNOWN and run.job_id and not run.is_local:
        return "submitted"  # whether it waits or starts just now only Slurm knows
    if run.is_torchruns and where.phase is RunPhase.GONE:
        return "torchrun's agents have left"
    if where.phase.is_final or not run.records:
        return where.phase.value
    signs = signs_of(run, SystemClock().wall())
    if not is_in_doubt(signs):
        return where.phase.value
    age_s = signs.agents_s if signs.agents_s is not None else signs.script_s
    return f"{where.phase.value}, but no sign of life for {span_text(age_s or 0.0)}"
