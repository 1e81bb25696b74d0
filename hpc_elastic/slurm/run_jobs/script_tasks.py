"""The tasks of an array of a user's own job script: each is a run of its own, below the array's directory.

A task is preempted, requeued, counted and ended for itself, as Slurm has it. Its run is made by its first
start: an array may have a hundred thousand tasks, and most of the time few of them have begun.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.paths import TASKS, RunPaths
from hpc_elastic.record.run_directory import require_run
from hpc_elastic.store import files
from hpc_elastic.typed_json import parse_object


def task_index(environ: Mapping[str, str]) -> str:
    """Return which task of an array a process belongs to, as Slurm numbers it; empty for a job of its own."""
    index = environ.get("SLURM_ARRAY_TASK_ID", "")
    return index if environ.get("SLURM_ARRAY_JOB_ID") and index.isascii() and index.isdecimal() else ""


def task_paths(array: RunPaths, index: str) -> RunPaths:
    """Return the run of a task.

    Args:
        array: the run directory of the array.
        index: the number of the task.
    """
    return RunPaths(os.path.join(array.tasks, index))


def array_of(paths: RunPaths) -> RunPaths | None:
    """Return the run directory of the array that the run of a task belongs to; None for another run."""
    return array_with(os.path.dirname(paths.root))


def array_with(folder: str) -> RunPaths | None:
    """Return the run directory of the array whose tasks have their runs in a folder; None for another one.

    Another user can put a ``run.json`` above a folder of that name, but not one of its owner's.
    """
    above, name = os.path.split(os.path.abspath(folder))
    array = RunPaths(above)
    if name != TASKS:
        return None
    try:
        owners = {os.stat(place, follow_symlinks=False).st_uid for place in (folder, above, array.identity)}
    except OSError:
        return None
    return array if len(owners) == 1 else None


def is_array_of_script(paths: RunPaths) -> bool:
    """Tell whether a run directory is that of an array, whose tasks have runs of their own."""
    return os.path.isdir(paths.tasks)


def begun_tasks(array: RunPaths) -> list[RunPaths]:
    """Return the runs of the tasks that have begun, in the order of their numbers."""
    try:
        names = os.listdir(array.tasks)
    except OSError:
        return []
    found = [task_paths(array, name) for name in sorted(names, key=natural) if name.isdecimal()]
    return [task for task in found if os.path.lexists(task.identity)]


def run_id_of(array_id: str, index: str) -> str:
    """Return the id of the run of a task.

    Args:
        array_id: that of the array.
        index: the number of the task.
    """
    return f"{array_id}_{index}"


def make_task(array: RunPaths, array_id: str, index: str) -> None:
    """Make the run of a task, unless it is there.

    Args:
        array: the run directory of the array.
        array_id: the id of the array.
        index: the number of the task.

    Raises:
        TakenOverError: another directory is in the place of that of the array, or others can write to it.
        RunDirError: it is gone, or a file in it is damaged.
        StoreError: the file system does not tell.
        OSError: it refused.
    """
    require_run(array, array_id)
    paths = task_paths(array, index)
    is_made = os.path.lexists(paths.identity)
    for directory in () if is_made else (array.tasks, paths.root, *paths.directories()):
        files.make_directory(directory)
    if not os.path.lexists(paths.site) and (site := files.read(array.site)) is not None:
        files.replace(paths.site, site)  # `submit` may write it when the first tasks have begun
    if is_made:
        return
    identity, job = _object_in(array.identity), _object_in(array.job)
    spec = job.get("spec")
    name = f"{identity.get('name', '')}_{index}"
    if isinstance(spec, dict):
        named = job | {"spec": spec | {"name": name, "run_dir": paths.root}}
        files.replace(paths.job, _bytes_of(named))
    own = identity | {"run_id": run_id_of(array_id, index), "name": name, "creator": ""}
    files.publish_new(paths.identity, _bytes_of(own))


def _object_in(path: str) -> dict[str, object]:
    """Return the content of a file of the array; nothing without the file."""
    try:
        data = files.read(path)
        return {} if data is None else parse_object(data)
    except DamagedError as error:
        raise RunDirError(f"{path} is damaged: {error}", where="run directory") from None


def _bytes_of(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
