"""The RUN that people name: a run directory, a run id or a job id."""

from __future__ import annotations

import difflib
import os
import re
from typing import Annotated

import typer

from hpc_elastic.errors import HpcElasticError, RunDirError
from hpc_elastic.paths import RUNS_FOLDER, RunPaths
from hpc_elastic.slurm import run_dir
from hpc_elastic.slurm.existing_run import existing_run, is_run, names_of_runs
from hpc_elastic.slurm.links import read_links
from hpc_elastic.slurm.run_files import stored_spec
from hpc_elastic.slurm.submissions import read_submissions

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help=f"Run directory, or a run id, job id or job name found below ./{RUNS_FOLDER}."
    ),
]
_OF_DATE = re.compile(r"-\d{8}-\d{6}-[0-9a-f]+$")  # what `submit` adds to the job name in a run id
_FIX = "give the directory that submit printed"
_ALL = "hpc-elastic status shows those that are there; a run elsewhere is named by its directory"


def find_run(word: str) -> RunPaths:
    """Return the run that is meant.

    Raises:
        RunDirError: there is none, it is no run directory, or it belongs to somebody else.
    """
    path = os.path.expanduser(word)
    if os.path.lexists(path) and is_run(RunPaths(path)):
        return _checked(path)
    place = _place_of(word)  # a job may be called like a folder that is no run, or have a slash in its name
    if place is not None or os.path.lexists(path) or "/" in word:
        return _checked(place or path)
    names = list(names_of_runs())
    near = difflib.get_close_matches(word, names, n=1)
    fix = f"perhaps {os.path.join(RUNS_FOLDER, near[0])}" if near else _ALL if names else _FIX
    raise RunDirError(
        f"{word!r} is neither a directory nor a run id, job id or job name "
        f"below {os.path.abspath(RUNS_FOLDER)}",
        where="RUN",
        fix=fix,
    )


def _place_of(word: str) -> str | None:
    """Return the directory of the run with an id, a job or a job name; None if there is none."""
    job_id = re.sub(r"^(\d+)_\d+$", r"\1", word)  # of a task of an array, as squeue shows it
    for name in names_of_runs():
        place = os.path.join(RUNS_FOLDER, name)
        if name == word or job_id in _job_ids(RunPaths(place)):
            return place
    named = [name for name in names_of_runs() if _job_name(RunPaths(os.path.join(RUNS_FOLDER, name))) == word]
    if len(named) > 1:  # their names end with the date
        typer.echo(f"{len(named)} runs are called {word}; this is the newest, {named[-1]}", err=True)
    return os.path.join(RUNS_FOLDER, named[-1]) if named else None


def runs_in(folder: str) -> list[RunPaths]:
    """Return the runs in a folder that belong to this user."""
    return [RunPaths(os.path.join(folder, name)) for name in names_of_runs(folder)]


def holds_runs(word: str) -> str | None:
    """Return the folder that is meant if it is no run itself but holds runs, else None."""
    path = os.path.expanduser(word)
    is_folder = os.path.isdir(path) and not is_run(RunPaths(path))
    return path if is_folder and next(names_of_runs(path), None) is not None else None


def _job_name(paths: RunPaths) -> str:
    """Return the name of a run's job; where ``run.json`` is damaged, as job spec or directory have it."""
    try:
        return str(run_dir.read_identity(paths).get("name") or "")
    except (HpcElasticError, OSError):
        return str(stored_spec(paths).get("name") or _OF_DATE.sub("", paths.name))


def _job_ids(paths: RunPaths) -> list[str]:
    """Return the ids of all jobs of a run, of a chain and of arrays that `scale` has added, too."""
    try:
        done = read_submissions(paths)
        jobs = [each.job_id for each in done]
        jobs += [link.job_id for each in done for link in read_links(paths, each.number)]
        logs = [re.fullmatch(r"slurm-(\d+)(_\d+)?\.out", name) for name in os.listdir(paths.root)]
    except (HpcElasticError, OSError):
        return []
    return [*(job_id for job_id in jobs if job_id), *(log[1] for log in logs if log)]


def _checked(path: str) -> RunPaths:
    return existing_run(path, "RUN", _FIX)
