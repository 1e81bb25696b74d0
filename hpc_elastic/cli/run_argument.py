"""The RUN that people name: a run directory, a run id or a job id."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from hpc_elastic.cli.say import say_aside
from hpc_elastic.errors import HpcElasticError, InputError, RunDirError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import EpochStarted
from hpc_elastic.record.run_log import read_records
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.existing_run import (
    Folder,
    existing_run,
    foreign_owner,
    is_run,
    look_into,
    names_of_runs,
    require_listed,
)
from hpc_elastic.slurm.run_jobs.run_files import ask_job, read_run, stored_spec
from hpc_elastic.slurm.run_jobs.script_tasks import (
    array_of,
    begun_tasks,
    is_array_of_script,
    task_paths,
)
from hpc_elastic.slurm.run_jobs.submissions import read_links, read_submissions
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.store.plain_file import list_plain
from hpc_elastic.text import count_text, for_shell, visible

Choose = Callable[[str, list[str]], str]  # gets a job name and the directories of several runs
_OF_DATE = re.compile(r"-\d{8}-\d{6}-[0-9a-f]+$")  # the part that `submit` adds to the job name in a run id
_FIX = "give the directory that submit printed"
_ALL = "hpc-elastic status shows those that are there; a run elsewhere is named by its directory"


def find_run(word: str | None, *, is_whole: bool = False) -> RunPaths:
    """Return the run that is meant; of several with a job name, the newest.

    Of an array of a job script of the user's own it is a task, of those that have failed if there are some.

    Args:
        word: None: the run below the folder of runs that was submitted or started last.
        is_whole: the array itself is meant, also where one of its tasks is named.

    Raises:
        InputError: none is named, and the folder has none.
        RunDirError: there is none, it is no run directory, or it belongs to another user.
    """
    found = _newest_of_all() if word is None else _found(word, _newest)
    return (array_of(found) or found) if is_whole else task_to_show(found)


def task_to_show(paths: RunPaths) -> RunPaths:
    """Return the task of an array that is shown in its place; any other run itself."""
    tasks = begun_tasks(paths)
    if not tasks:
        return paths
    phases = {task: _phase_of(task) for task in tasks}
    failed = [task for task in tasks if phases[task] in (None, RunPhase.FAILED, RunPhase.HELD)]
    live = [task for task, phase in phases.items() if phase is not None and not phase.is_final]
    chosen = (failed or live or tasks)[0]
    say_aside(f"{count_text(len(tasks), 'task')} of this array began; this is {for_shell(chosen.root)}")
    return chosen


def _phase_of(paths: RunPaths) -> RunPhase | None:
    """Return where a run stands by its records; None if they cannot be read."""
    try:
        return status_of(RunView.of(read_run(paths))).phase
    except (HpcElasticError, OSError):
        return None


def _newest_of_all() -> RunPaths:
    """Return the run that was submitted or started last.

    Raises:
        InputError: the folder of runs has none.
        RunDirError: it cannot be listed.
    """
    there = require_listed(look_into())
    runs = [RunPaths(os.path.join(RUNS_FOLDER, name)) for name in there.runs]
    if not runs:
        folder = visible(os.path.abspath(RUNS_FOLDER))
        raise InputError(f"no run is named, and none is in {folder}", where="RUN", fix=_FIX)
    newest = max(runs, key=lambda paths: _changed_s(paths.submissions))
    if len(runs) > 1:
        say_aside(f"of {len(runs)} runs this is the newest, {visible(newest.name)}")
    return newest


def _changed_s(path: str) -> float:
    """Return when a folder got its newest file [s since the epoch]; 0 if it is not known."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def find_one_run(word: str) -> RunPaths:
    """Return the run that a user wants to change; as `find_run` else.

    Raises:
        InputError: several runs that have not ended have that job name.
        RunDirError: as `find_run`.
    """
    return _found(word, _only_one)


def _found(word: str, choose: Choose) -> RunPaths:
    path = os.path.expanduser(word)
    owner = foreign_owner(path)
    if os.path.lexists(path) and not owner and is_run(RunPaths(path)):
        return _checked(path)
    there = look_into()
    # a job may be called like a folder that is no run, or have a slash in its name
    place = _place_of(word, there, choose)
    if place is not None and owner:
        say_aside(f"{visible(path)} belongs to user {owner}; this is your run {visible(place)}")
    if place is not None or os.path.lexists(path) or "/" in word:
        return _checked(place or path)
    raise _unknown(word, there)


def _unknown(word: str, there: Folder) -> RunDirError:
    require_listed(there)
    theirs = [name for name in there.foreign if word in (name, _OF_DATE.sub("", name))]
    if theirs:
        name = visible(os.path.join(RUNS_FOLDER, theirs[-1]))
        return RunDirError(
            f"{name} belongs to user {there.foreign[theirs[-1]]}", where="RUN", fix="ask its owner"
        )
    import difflib  # noqa: PLC0415 - only after a mistake

    near = difflib.get_close_matches(word, there.runs, n=1)
    proposed = [for_shell(os.path.join(RUNS_FOLDER, name)) for name in near]
    fix = f"perhaps {proposed[0]}" if proposed else _ALL if there.runs else _FIX
    return RunDirError(
        f"{word!r} is neither a directory nor a run id, job id or job name "
        f"below {visible(os.path.abspath(RUNS_FOLDER))}",
        where="RUN",
        fix=fix,
    )


def _place_of(word: str, there: Folder, choose: Choose) -> str | None:
    """Return the directory of the run with an id, a job or a job name; None if there is none."""
    job_id, _, index = word.partition("_") if re.fullmatch(r"\d+_\d+", word) else (word, "", "")  # of squeue
    places = [os.path.join(RUNS_FOLDER, name) for name in there.runs]
    for name, place in zip(there.runs, places, strict=True):
        if name == word or job_id in _job_ids(RunPaths(place)):
            return _task_in(place, word, index) if index else place
    named = [place for place in places if _job_name(RunPaths(place)) == word]
    return choose(word, named) if len(named) > 1 else next(iter(named), None)


def _task_in(place: str, word: str, index: str) -> str:
    """Return the directory of a task's run; that of the array where its tasks are nodes of one run.

    Raises:
        RunDirError: the task has not begun. The array is another thing, and `stop` would end all of it.
    """
    array = RunPaths(place)
    task = task_paths(array, index)
    if os.path.lexists(task.identity):
        return task.root
    if is_array_of_script(array):
        shown = f"hpc-elastic status {for_shell(place)} shows those that have"
        fix = f"{shown}; one that waits leaves the queue by scancel {word}"
        raise RunDirError(f"no task {index} of this array has begun", where="RUN", fix=fix)
    return place


def _newest(word: str, places: list[str]) -> str:
    newest = places[-1]  # their names end with the date
    say_aside(f"{len(places)} runs are called {word}; this is the newest, {visible(RunPaths(newest).name)}")
    return newest


def _only_one(word: str, places: list[str]) -> str:
    """Return the one run that has not ended, or the newest if all have.

    Raises:
        InputError: several have not.
    """
    lines = {place: line for place in places if (line := line_of_living(RunPaths(place)))}
    if not lines:
        return _newest(word, places)
    if len(lines) > 1:
        raise InputError(
            f"{len(lines)} runs that are called {word} have not ended:\n" + "\n".join(lines.values()),
            where="RUN",
            fix="give the run id or the job id of the one that is meant",
        )
    (chosen,) = lines
    say_aside(f"{len(places)} runs are called {word}; this is the one that has not ended:\n{lines[chosen]}")
    return chosen


def holds_runs(word: str) -> str | None:
    """Return the folder that is meant if it is no run itself but holds runs, else None."""
    path = os.path.expanduser(word)
    if os.path.islink(path) and foreign_owner(path):
        return None
    if (folder := _tasks_of(word)) is not None:
        return folder
    is_folder = os.path.isdir(path) and not is_run(RunPaths(path))
    return path if is_folder and names_of_runs(path) else None


def _tasks_of(word: str) -> str | None:
    """Return the folder of the runs of an array's tasks, if an array with some is meant."""
    try:
        found = _found(word, _newest)
    except HpcElasticError:
        return None
    return found.tasks if begun_tasks(found) else None


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
        jobs += [] if done else _own_jobs(paths)
        logs = [re.fullmatch(r"slurm-(\d+)(_\d+)?\.out", name) for name in list_plain(paths.root, links=True)]
    except (HpcElasticError, OSError):
        return []
    return [*(job_id for job_id in jobs if job_id), *(log[1] for log in logs if log)]


def _own_jobs(paths: RunPaths) -> list[str]:
    """Return the ids of the jobs of a run that no `submit` has made."""
    entries = (record.entry for record in read_records(paths))
    return [entry.job_id for entry in entries if isinstance(entry, EpochStarted)]


def _checked(path: str) -> RunPaths:
    return existing_run(path, "RUN", _FIX)


def line_of_living(paths: RunPaths) -> str:
    """Return a line that tells a run from others, or nothing if it has ended or its job is gone.

    A run that cannot be read, or about whose job Slurm does not answer, may live.
    """
    try:
        run = read_run(paths)
        asked = ask_job(run, Slurm())
    except (HpcElasticError, OSError) as error:
        why = str(error).partition("\n")[0]
        return f"  {visible(paths.name)}  cannot be read: {visible(why)}"
    is_over = asked.job is not None and asked.job.state is JobState.ENDED
    if is_over or (asked.job is None and run.state.ending is not None):
        return ""
    where = status_of(RunView.of(run, asked.job)).text
    return f"  {visible(paths.name)}  job {run.job_id or '?'}: {visible(where)}"
