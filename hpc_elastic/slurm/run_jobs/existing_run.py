"""A run directory that is there already: is it one, may this user read it, and was its maker interrupted?"""

from __future__ import annotations

import os
import stat

from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths, absence_of
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import absence_fix, access_fix, owner_name
from hpc_elastic.text import for_shell, visible
from hpc_elastic.typed_json import parse_object

_STARTED = 19  # the place of the start time behind the name in /proc/PID/stat


def is_run(paths: RunPaths) -> bool:
    """Tell whether a directory holds a run, of `submit` or of a script of the user's own; opens nothing."""
    return os.path.lexists(paths.identity) or _mode_of(paths.journal) == stat.S_IFDIR


def _mode_of(path: str) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return None


class Folder(NamedTuple):
    """The content of a folder, by name, sorted."""

    runs: tuple[str, ...]  # this user's
    foreign: dict[str, str]  # directories of other users with their owners; their content is not read
    trouble: str = ""  # why a folder that is there cannot be listed; empty: it can be, or is not there


def look_into(folder: str = RUNS_FOLDER) -> Folder:
    """Return this user's runs in a folder; links and directories of others are not followed or opened.

    Raises:
        RunDirError: the folder is a link of another user's.
    """
    refuse_foreign_link(folder, "RUN")
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return Folder((), {})
    except OSError as error:
        return Folder((), {}, error.strerror or str(error))
    runs, foreign = [], {}
    for name in names:
        place = os.path.join(folder, name)
        owner = foreign_owner(place)
        if owner and _mode_of(place) == stat.S_IFDIR and not name.startswith("."):
            foreign[name] = owner
        elif not owner and is_run(RunPaths(place)) and not _is_second_name(place):
            runs.append(name)
    return Folder(tuple(runs), foreign)


def require_listed(there: Folder, folder: str = RUNS_FOLDER) -> Folder:
    """Return the content of a folder that could be listed, or is not there.

    Raises:
        RunDirError: it is there, but cannot be listed.
    """
    if there.trouble:
        place = os.path.abspath(folder)
        what = f"the runs below {visible(place)} cannot be listed: {there.trouble}"
        raise RunDirError(what, where="RUN", fix=access_fix(place, "rx"))
    return there


def names_of_runs(folder: str = RUNS_FOLDER) -> tuple[str, ...]:
    """Return the names of this user's runs in a folder, sorted; as `look_into`."""
    return look_into(folder).runs


def foreign_owner(place: str) -> str:
    """Return the owner of a directory or link if it is another user, else nothing.

    A link of another user's is not followed; one of root's is.
    """
    try:
        found = os.lstat(place)
        if stat.S_ISLNK(found.st_mode) and found.st_uid in (os.geteuid(), 0):
            found = os.stat(place)
    except OSError:
        return ""
    return "" if found.st_uid == os.geteuid() else visible(owner_name(found.st_uid))


def refuse_foreign_link(place: str, where: str) -> None:
    """Refuse a link that another user has made: it may lead anywhere.

    Raises:
        RunDirError: it is one.
    """
    if os.path.islink(place) and os.lstat(place).st_uid not in (os.geteuid(), 0):
        raise RunDirError(
            f"{visible(place)} is a link of user {foreign_owner(place)}'s, which is not followed",
            where=where,
            fix="give the real path, if you trust it",
        )


def _is_second_name(place: str) -> bool:
    """Tell whether a place is a link to a run beside it, as submitit's folder has one for each job."""
    return os.path.islink(place) and os.path.dirname(os.path.realpath(place)) == os.path.realpath(
        os.path.dirname(place)
    )


def existing_run(path: str, where: str, fix: str) -> RunPaths:
    """Return the run in a directory.

    Args:
        path: the directory.
        where: the source of the path.
        fix: where the user gets the name of one from.

    Raises:
        RunDirError: it is not there, no directory, another user's, cannot be read, or holds no run.
    """
    paths = RunPaths(path)
    refuse_foreign_link(path, where)
    if not os.path.isdir(path):
        is_there = os.path.lexists(path)
        what = f"{path} is not a directory" if is_there else f"the directory {path} {absence_of(path)}"
        raise RunDirError(what, where=where, fix=absence_fix(path, fix))
    if foreign_owner(path):
        raise _foreign(paths, path, where, fix)
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunDirError(
            f"the run directory {path} cannot be read", where=where, fix=f"chmod u+rwx {for_shell(path)}"
        )
    if not is_run(paths):
        raise _no_run(paths, path, where, fix)
    return paths


def _foreign(paths: RunPaths, path: str, where: str, fix: str) -> RunDirError:
    """Return the text about another user's directory; nothing in it is followed or opened."""
    owner = foreign_owner(path)
    if not os.access(path, os.X_OK):
        what = f"{path} belongs to user {owner}, and others cannot look into it"
    elif any(map(os.path.lexists, (paths.identity, paths.journal))):
        what = f"the run in {path} belongs to user {owner}"
    else:
        return _no_run(paths, path, where, fix)
    return RunDirError(what, where=where, fix="ask its owner")


def _no_run(paths: RunPaths, path: str, where: str, fix: str) -> RunDirError:
    """Return the text about a directory that holds no run."""
    inside = names_of_runs(path)
    one = for_shell(os.path.join(path, inside[-1])) if inside else ""
    shown = path if set(path) - {".", "/"} else os.path.abspath(path)
    return RunDirError(
        f"{shown} is not a run directory: it has no {os.path.basename(paths.identity)}",
        where=where,
        fix=f"it holds runs; name one of them, such as {one}" if one else fix,
    )


def creator() -> str:
    """Return this process, for ``run.json``: host, container, process id and start time."""
    return _process(os.getpid())


def _process(pid: int) -> str:
    started = _started(pid)
    return f"{os.uname().nodename} {files.pid_namespace()} {pid} {started}"


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[_STARTED]
    except (OSError, IndexError):
        return ""


def was_left(paths: RunPaths) -> bool:
    """Tell whether the first submission of a run was killed before its job was recorded.

    Raises:
        RunDirError: a submission's record is damaged.
    """
    words = _creator_of(paths).split()
    if not words:
        return False
    mine = creator().split()
    if len(words) != len(mine) or not words[2].isdecimal():
        return False
    is_here = words[:2] == mine[:2]
    is_gone = is_here and _process(int(words[2])).split() != words
    done = read_submissions(paths)
    return is_gone and len(done) <= 1 and not any(one.job_id for one in done)


def may_be_made_anew(paths: RunPaths) -> bool:
    """Tell whether nothing was queued by such a submission, so that its files can be written once more."""
    return was_left(paths) and not read_submissions(paths)


def may_be_queued(paths: RunPaths) -> bool:
    """Tell whether such a submission was about to call sbatch, so that Slurm is to be asked first."""
    return was_left(paths) and bool(read_submissions(paths))


def _creator_of(paths: RunPaths) -> str:
    try:
        data = files.read(paths.identity)
        found = "" if data is None else parse_object(data).get("creator", "")
    except (OSError, DamagedError):
        return ""
    return found if isinstance(found, str) else ""
