"""The removal of leftovers of dead writers: private files, and key-value scopes of old rounds.

Leftovers do no harm: no reader takes them for names. They only add up, in directories that
every agent lists all the time. So a sweep is bounded, errors end nothing, and it is enough if one
process sweeps now and then.

A private file lives for milliseconds. It is left over when its writer is gone, which can be known on
the writer's own machine, or when it is old. Age is measured by the file server's clock alone: against a
file that is created beside it now. A writer that was frozen for that long writes its file again
(`hpc_elastic.store.files`).
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterable

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import OF_ROUND, RunPaths
from hpc_elastic.store import files

AGE_S = 3600.0
MOST = 1000  # files per sweep
_SEGMENTS = 4  # of the journal: the newest, where records are still written
_SCOPES = 16  # of the key-value store; more are there only if the old ones are not swept
_STEP = re.compile(r"(\d+)\+.+")  # a step at which a node can stop in a round
_ROUND_LOGS = re.compile(r"(?:attempt_|hang-)(\d+)(?:\.\d+)?")
_OFFER = re.compile(r".+\.(\d+)\.json")  # the data of a node for a round


class Swept(NamedTuple):
    """The result of a sweep.

    Attributes:
        removed: paths that are gone.
        kept: private files that may belong to living writers, or were too many for one sweep.
        errors: files that could not be looked at or removed, with the reason.
    """

    removed: tuple[str, ...]
    kept: int
    errors: tuple[str, ...]


_NOTHING = Swept((), 0, ())


class Writer(NamedTuple):
    """The maker of a private file, as its name has it."""

    host: str
    pid: int
    namespace: str  # of the pid; see `files.pid_namespace`


def writer_of(name: str) -> Writer | None:
    """Return the maker of a private file; None if the name has none."""
    fields = name.removeprefix(files.TEMPORARY).rsplit(".", 3)
    if len(fields) != len(("host", "pid", "counter", "nonce")):
        return None
    host, pid, _, nonce = fields
    namespace, dash, _ = nonce.partition("-")
    if not (dash and pid.isascii() and pid.isdecimal() and int(pid) > 0):
        return None
    return Writer(host, int(pid), namespace)


def is_gone(writer: Writer | None, host: str, namespace: str) -> bool:
    """Tell whether it is certain that a writer does not live any more.

    Args:
        writer: the maker of a file.
        host: the name of this machine.
        namespace: in which this process sees process ids; in another container the same pid is
            another maker, and "0" is unknown.
    """
    if writer is None or namespace == "0" or (writer.host, writer.namespace) != (host, namespace):
        return False
    try:
        os.kill(writer.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def run_directories(paths: RunPaths) -> list[str]:
    """Return the directories of a run in which private files are made."""
    return [
        paths.root,
        paths.submissions,
        *_newest(paths.journal, _SEGMENTS),
        paths.members,
        paths.nodes,
        paths.checkpoints,
        *_newest(paths.kv, _SCOPES),
    ]


def _newest(directory: str, most: int) -> list[str]:
    """Return the last directories of a directory, by name."""
    try:
        return [os.path.join(directory, name) for name in files.list_names(directory)[-most:]]
    except OSError:
        return []


def tidy(paths: RunPaths, first: int, keep_logs: int = 0) -> Swept:
    """Take away all leftovers in a run directory. Never raises OSError.

    Args:
        paths: the files of the run.
        first: the oldest round that may still have workers.
        keep_logs: of how many rounds the workers' logs stay; 0: of all.
    """
    logs = sweep_logs(paths, first - keep_logs) if keep_logs > 0 else _NOTHING
    parts = (sweep_rounds(paths, first), sweep_names(paths, first), logs, sweep(run_directories(paths)))
    return Swept(
        tuple(path for part in parts for path in part.removed),
        sum(part.kept for part in parts),
        tuple(error for part in parts for error in part.errors),
    )


def sweep_names(paths: RunPaths, first: int, *, most: int = MOST) -> Swept:
    """Remove the nodes' files of the rounds before `first`. Never raises OSError.

    These are the steps at which they could stop, and their contributions.
    """
    removed: list[str] = []
    errors: list[str] = []
    for directory, pattern in ((paths.steps, _STEP), (paths.nodes, _OFFER)):
        try:
            names = files.list_names(directory)
        except OSError as error:
            errors.append(f"{directory}: {error.strerror}")
            continue
        over = [name for name in names if (found := pattern.fullmatch(name)) and int(found[1]) < first]
        for name in over[: most - len(removed)]:
            path = os.path.join(directory, name)
            if _remove(os.unlink, path, errors):
                removed.append(path)
    return Swept(tuple(removed), 0, tuple(errors))


def sweep(directories: Iterable[str], *, age_s: float = AGE_S, most: int = MOST) -> Swept:
    """Remove the private files that dead writers left in these directories. Never raises OSError.

    Args:
        directories: not looked into any deeper; absent ones are passed over.
        age_s: how old a file must be if it is unknown whether its writer lives [s].
        most: files removed at most.
    """
    host, namespace = os.uname().nodename, files.pid_namespace()
    removed: list[str] = []
    errors: list[str] = []
    kept = 0
    for directory in directories:
        try:
            names = [name for name in os.listdir(directory) if name.startswith(files.TEMPORARY)]
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(f"{directory}: {error.strerror}")
            continue
        kept += len(names)
        dead = [name for name in names if is_gone(writer_of(name), host, namespace)]
        try:
            dead += _old(directory, sorted({*names} - {*dead}), age_s)
        except OSError as error:
            errors.append(f"the clock of the file system of {directory} cannot be read: {error.strerror}")
        for name in dead[: most - len(removed)]:
            path = os.path.join(directory, name)
            try:
                files.remove_name(directory, name)
            except OSError as error:
                errors.append(f"{path}: {error.strerror}")
            else:
                removed.append(path)
    return Swept(tuple(removed), kept - len(removed), tuple(errors))


def _old(directory: str, names: list[str], age_s: float) -> list[str]:
    """Return the names of files that the file server calls older than `age_s`.

    Raises:
        OSError: its clock could not be asked.
    """
    if not names:
        return []
    now = _server_time(directory)
    return [name for name in names if now - _written(os.path.join(directory, name)) > age_s]


def _server_time(directory: str) -> float:
    """Return the time by which the file system of a directory dates files [s since the epoch]."""
    path = files.private_name(directory)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)
        files.remove_name(directory, os.path.basename(path))


def _written(path: str) -> float:
    """Return when a file was written last [s since the epoch]; never, if it is no file or gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return math.inf
    return status.st_mtime if stat.S_ISREG(status.st_mode) else math.inf


def sweep_rounds(paths: RunPaths, first: int, *, most: int = MOST) -> Swept:
    """Remove the key-value scopes of the rounds before `first`. Never raises OSError.

    Scopes that users named stay. A worker that still uses a removed scope gets a `StoreError` or finds it
    empty; only workers of a round that is over could.

    Args:
        paths: the files of the run.
        first: the oldest round whose scope is still used.
        most: files and directories removed at most; the next sweep goes on with the rest.
    """

    def is_over(name: str) -> bool:
        number = name.removeprefix(OF_ROUND)
        return name.startswith(OF_ROUND) and number.isascii() and number.isdecimal() and int(number) < first

    return _sweep_trees(paths.kv, is_over, most)


def sweep_logs(paths: RunPaths, last: int, *, most: int = MOST) -> Swept:
    """Remove the logs of the rounds up to `last`, and the looks at hangs. Never raises OSError.

    Args:
        paths: the files of the run.
        last: the newest round whose logs go.
        most: files and directories removed at most; the next sweep goes on with the rest.
    """

    def is_old(name: str) -> bool:
        found = _ROUND_LOGS.fullmatch(name)
        return found is not None and int(found[1]) <= last

    return _sweep_trees(paths.logs, is_old, most)


def _sweep_trees(directory: str, is_over: Callable[[str], bool], most: int) -> Swept:
    removed: list[str] = []
    errors: list[str] = []
    try:
        scopes = [name for name in files.list_names(directory) if is_over(name)]
    except OSError as error:
        return Swept((), 0, (f"{directory}: {error.strerror}",))
    left = most
    for name in scopes:
        path = os.path.join(directory, name)
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        left = _remove_tree(path, left, errors)
        if not os.path.lexists(path):
            removed.append(path)
    return Swept(tuple(removed), len(scopes) - len(removed), tuple(errors))


def _remove_tree(directory: str, left: int, errors: list[str]) -> int:
    """Remove a directory with its content, at most `left` things; return how many may still go."""
    for path, folders, names in os.walk(
        directory, topdown=False, onerror=lambda error: errors.append(str(error))
    ):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        for name in (*names, *links):
            if left <= 0:
                return 0
            left -= _remove(os.unlink, os.path.join(path, name), errors)
        if left <= 0:
            return 0
        left -= _remove(os.rmdir, path, errors)
    return left


def _remove(how: Callable[[str], None], path: str, errors: list[str]) -> int:
    try:
        how(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        errors.append(f"{path}: {error.strerror}")
        return 0
    return 1
