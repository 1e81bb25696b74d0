"""The private directory of an agent in its node's memory.

The agent removes it at its end, or else its guard, which leaves copies of a state there. Both may be killed
together, as Slurm does with the processes of a job. So the next agent of the user on the node removes the
directory: the states that workers have kept there may be large. If it is an agent of the same run and node,
it takes over the copies of a state. An agent that lives holds a lock on its directory.

The directories of a user lie in one folder, so that no files of other users have to be looked through. Where
another user has taken the name of that folder, an agent makes its directory beside it. The owner of a
directory is looked up through its descriptor: the folder of an agent that ends is removed, and another user
may take its name.

An agent may leave the states of its workers for the next start of the run (`hpc_elastic.start.kept_state`).
Such a directory has another name, which tells until when it is kept. The next agent of the user on the node
removes it after that time.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RunDirError
from hpc_elastic.processes.guard import remove_directory
from hpc_elastic.store.plain_file import OTHERS_WRITE, close_quietly

MEMORY: Final = "/dev/shm"  # noqa: S108 - where all users can make files
_NAME: Final = r"([0-9]+)-[0-9a-f]{8}"  # in the folder; the number is that of the process
_KEPT: Final = r"kept-([0-9]{1,18})-([0-9]{1,18})-[0-9a-f]{8}"  # made, and kept until [s]
_TRIES: Final = 3  # to make the folder; each time an agent that ends may have removed it
_MOST_NAMES: Final = 1000  # entries that are looked at where all users can make some


@contextmanager
def scratch_directory(places: Iterable[str] | None = None, copies: str = "") -> Iterator[str]:
    """Give a private directory in this node's memory, or else on its local disk; it is removed at the end.

    Args:
        places: where it may be made, the best one first; by default those of this node.
        copies: begins the names of the files that are taken over from a dead agent; empty: none are.

    Raises:
        RunDirError: none of them can be written to.
    """
    usual = (MEMORY, os.environ.get("TMPDIR") or "/tmp", "/tmp")  # noqa: S108
    place, path, descriptor = _made(usual if places is None else places)
    try:
        remove_left(place, copies, path)
        yield path
    finally:
        remove_directory(path)
        os.close(descriptor)
        with suppress(OSError):  # others may be in it
            os.rmdir(folder_of(place))


def remove_left(place: str, copies: str = "", to: str = "") -> None:
    """Remove the directories of this user's dead agents, as far as it is possible.

    The function of this name in ``sbatch_templates/batch.sh`` does the same at the end of a step, with the
    same names. The directories have only files.

    Args:
        place: in which agents have made them.
        copies: begins the names of the files that are moved; empty: none are.
        to: the directory that they are moved to.
    """
    with suppress(OSError):
        folder = folder_of(place)
        with suppress(OSError), own_directory(folder) as parent:
            names, now = os.listdir(parent), SystemClock().wall()
            _remove_all((name for name in names if _is_of_dead(name)), parent, copies, to)
            _remove_all((name for name in names if is_expired(name, now)), parent, "", "")
        with held(_opened(place, links=True)) as parent:
            _remove_all(list(_left_beside(place, f"{os.path.basename(folder)}-")), parent, copies, to)


def kept_name(now: float, until: float) -> str:
    """Return a name for a directory that is kept for the next start.

    Args:
        now: by the clock of this node [s since the epoch].
        until: when it may be removed [s since the epoch].
    """
    return f"kept-{int(now)}-{int(until)}-{os.urandom(4).hex()}"


def is_kept(name: str) -> bool:
    """Tell whether a name is that of a directory which is kept for the next start."""
    return re.fullmatch(_KEPT, name) is not None


def is_expired(name: str, now: float) -> bool:
    """Tell whether a directory was kept for long enough, or in the future: then a clock was wrong.

    Args:
        name: of the directory.
        now: by the clock of this node [s since the epoch].
    """
    match = re.fullmatch(_KEPT, name)
    return match is not None and not int(match[1]) <= now < int(match[2])


def own_folder(scratch: str) -> str:
    """Return the folder of this user's directories that an agent's directory is in; empty: it is in none."""
    folder, place = os.path.dirname(scratch), os.path.dirname(os.path.dirname(scratch))
    return folder if folder == folder_of(place) else ""


def _left_beside(place: str, begin: str) -> Iterator[str]:
    """Return the names of directories of dead agents beside the user's folder, of the first entries."""
    with os.scandir(place) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name.startswith(begin) and _is_of_dead(entry.name.removeprefix(begin)):
                yield entry.name


def _remove_all(names: Iterable[str], parent: int, copies: str, to: str) -> None:
    for name in names:
        with suppress(OSError):
            _remove(name, parent, copies, to)


def _is_of_dead(name: str) -> bool:
    match = re.fullmatch(_NAME, name)
    return match is not None and not os.path.exists(f"/proc/{match[1]}")


def folder_of(place: str) -> str:
    """Return the folder of this user's directories in a place."""
    return os.path.join(place, f"hpc_elastic-{os.geteuid()}")


@contextmanager
def held(descriptor: int) -> Iterator[int]:
    """Give a descriptor, and close it afterwards."""
    try:
        yield descriptor
    finally:
        close_quietly(descriptor)


@contextmanager
def own_directory(path: str, parent: int | None = None) -> Iterator[int]:
    """Give the descriptor of a directory that is this user's alone.

    Args:
        path: of the directory; the last part of it is no link.
        parent: descriptor of the directory that the path begins in; None: the current one.

    Raises:
        OSError: it is none, or others can write to it, or the file system refused.
    """
    with held(_opened(path, parent)) as descriptor:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
            raise PermissionError(f"another user's, or open to others: {path}")
        yield descriptor


def _remove(name: str, parent: int, copies: str, to: str) -> None:
    with own_directory(name, parent) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # that of an agent in another container fails
        for file in os.listdir(descriptor):
            with suppress(OSError):  # then the directory stays
                if copies and file.startswith(copies):
                    os.rename(file, os.path.join(to, file), src_dir_fd=descriptor)
                else:
                    os.unlink(file, dir_fd=descriptor)
        os.rmdir(name, dir_fd=parent)


def _made(places: Iterable[str]) -> tuple[str, str, int]:
    """Return the place of a new directory, its path, and the descriptor that holds its lock."""
    own = f"{os.getpid()}-{os.urandom(4).hex()}"
    for place in places:
        for path in (*[f"{folder_of(place)}/{own}"] * _TRIES, f"{folder_of(place)}-{own}"):
            try:
                return place, path, _made_at(path, place)
            except OSError:  # another agent may just have removed the folder
                continue
    raise RunDirError(
        "no node-local directory can be written to",
        where="/dev/shm, $TMPDIR and /tmp",  # noqa: S108 - words, not a path
        fix="set TMPDIR to a local directory with free space",
    )


def _made_at(path: str, place: str) -> int:
    """Make an agent's directory and return the descriptor that holds its lock.

    Nothing can be made in a folder that is removed, and none with a directory in it is removed: so its path
    leads into the folder that was opened.

    Args:
        path: of the directory, in the user's folder or beside it.
        place: in which the user's folder is.

    Raises:
        OSError: the folder is another user's, or just removed, or the file system refused.
    """
    above, name = os.path.split(path)
    is_beside = above != folder_of(place)
    if not is_beside:
        with suppress(FileExistsError):
            os.mkdir(above, mode=0o700)
    with held(_opened(place, links=True)) if is_beside else own_directory(above) as parent:
        os.mkdir(name, mode=0o700, dir_fd=parent)
        with own_directory(name, parent) as made:
            with suppress(OSError):  # without locks no agent removes it either
                fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.dup(made)


def _opened(path: str, parent: int | None = None, *, links: bool = False) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    return os.open(path, flags, dir_fd=parent)
