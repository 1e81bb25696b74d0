"""The RUN that people name: a run directory, a run id or a job id."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator
from typing import Annotated

import typer

from hpc_elastic.errors import HpcElasticError, RunDirError
from hpc_elastic.paths import RUNS_FOLDER, RunPaths
from hpc_elastic.slurm import run_dir
from hpc_elastic.slurm.submissions import read_submissions

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help=f"Run directory, or a run id, job id or job name found below ./{RUNS_FOLDER}."
    ),
]


def find_run(word: str) -> RunPaths:
    """Return the run that is meant.

    Raises:
        RunDirError: there is none, it is no run directory, or it belongs to somebody else.
    """
    path = os.path.expanduser(word)
    if os.path.lexists(path):
        return _checked(path)
    if "/" in word:
        raise RunDirError(
            f"the directory {word} does not exist", where="RUN", fix="give the directory that submit printed"
        )
    job_id = re.sub(r"^(\d+)_\d+$", r"\1", word)  # of a task of an array, as squeue shows it
    for name in _runs():
        place = os.path.join(RUNS_FOLDER, name)
        if name == word or job_id in _job_ids(RunPaths(place)):
            return _checked(place)
    named = [name for name in _runs() if _job_name(RunPaths(os.path.join(RUNS_FOLDER, name))) == word]
    if named:  # their names end with the date
        if len(named) > 1:
            typer.echo(f"{len(named)} runs are called {word}; this is the newest, {named[-1]}", err=True)
        return _checked(os.path.join(RUNS_FOLDER, named[-1]))
    near = difflib.get_close_matches(word, list(_runs()), n=1) or sorted(_runs(), reverse=True)[:1]
    fix = (
        f"perhaps {os.path.join(RUNS_FOLDER, near[0])}" if near else "give the directory that submit printed"
    )
    raise RunDirError(
        f"{word!r} is neither a directory nor a run id, job id or job name "
        f"below {os.path.abspath(RUNS_FOLDER)}",
        where="RUN",
        fix=fix,
    )


def runs_in(folder: str) -> list[RunPaths]:
    """Return the runs in a folder that belong to this user."""
    return [RunPaths(os.path.join(folder, name)) for name in _runs(folder)]


def holds_runs(word: str) -> str | None:
    """Return the folder that is meant if it is no run itself but holds runs, else None."""
    path = os.path.expanduser(word)
    is_folder = os.path.isdir(path) and not _is_run(RunPaths(path))
    return path if is_folder and next(_runs(path), None) is not None else None


def _is_run(paths: RunPaths) -> bool:
    return os.path.exists(paths.identity) or os.path.isdir(paths.journal)


def _runs(folder: str = RUNS_FOLDER) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        paths = RunPaths(os.path.join(folder, name))
        if _is_run(paths) and (folder == RUNS_FOLDER or os.stat(paths.root).st_uid == os.geteuid()):
            yield name


def _job_name(paths: RunPaths) -> str:
    try:
        return str(run_dir.read_identity(paths).get("name"))
    except (HpcElasticError, OSError):
        return ""


def _job_ids(paths: RunPaths) -> list[str]:
    try:
        return [done.job_id for done in read_submissions(paths) if done.job_id]
    except (HpcElasticError, OSError):
        return []


def _checked(path: str) -> RunPaths:
    paths = RunPaths(path)
    if not os.path.isdir(path):
        raise RunDirError(
            f"{path} is not a directory", where="RUN", fix="give the directory that submit printed"
        )
    if os.stat(path).st_uid != os.geteuid():
        raise RunDirError(
            f"the run in {path} belongs to user {_owner(path)}", where="RUN", fix="ask its owner"
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunDirError(
            f"the run directory {path} cannot be read", where="RUN", fix=f"chmod u+rwx {shlex.quote(path)}"
        )
    if not _is_run(paths):
        inside = [name for name, _ in zip(_runs(path), range(3), strict=False)]
        raise RunDirError(
            f"{path} is not a run directory: it has no run.json",
            where="RUN",
            fix=f"it holds runs; name one of them, such as {os.path.join(path, inside[-1])}"
            if inside
            else "give the directory that submit printed",
        )
    return paths


def _owner(path: str) -> str:
    import pwd  # noqa: PLC0415 - only for this message

    uid = os.stat(path).st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
