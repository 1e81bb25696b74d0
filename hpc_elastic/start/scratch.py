"""The private directory of an agent in its node's memory.

The agent removes it at its end, or else its guard, which leaves copies of a state there. Both may be killed
together, as Slurm does with the processes of a job. So the next agent of the user on the node removes the
directory: the states that workers have kept there may be large. If it is an agent of the same run and node,
it takes over the copies of a state. An agent that lives holds a lock on its directory.

The directories of a user lie in one folder, so that no files of other users have to be looked through. Where
another user has taken the name of that folder, an agent makes its directory beside it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from hpc_elastic.errors import RunDirError
from hpc_elastic.processes.guard import remove_directory
from hpc_elastic.store.plain_file import OTHERS_WRITE

_NAME: Final = re.compile(r"([0-9]+)-[0-9a-f]{8}")  # in the folder; the number is that of the process
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
    usual = ("/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp")  # noqa: S108
    place, path, descriptor = _made(usual if places is None else places)
    try:
        remove_left(place, copies, path)
        yield path
    finally:
        remove_directory(path)
        os.close(descriptor)
        with suppress(OSError):  # others may be in it
            os.rmdir(_folder(place))


def remove_left(place: str, copies: str = "", to: str = "") -> None:
    """Remove the directories of this user's dead agents, as far as it is possible.

    Args:
        place: in which agents have made them.
        copies: begins the names of the files that are moved; empty: none are.
        to: the directory that they are moved to.
    """
    with suppress(OSError):
        for path in list(_left_in(place)):
            with suppress(OSError):
                _remove(path, copies, to)


def _left_in(place: str) -> Iterator[str]:
    """Return the directories with the names of dead agents: all in the user's folder, few beside it."""
    folder = _folder(place)
    beside = f"{os.path.basename(folder)}-"
    with suppress(OSError):
        if _is_own(folder):
            yield from (os.path.join(folder, name) for name in os.listdir(folder) if _is_of_dead(name))
    with os.scandir(place) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name.startswith(beside) and _is_of_dead(entry.name.removeprefix(beside)):
                yield entry.path


def _is_of_dead(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and not os.path.exists(f"/proc/{match[1]}")


def _folder(place: str) -> str:
    return os.path.join(place, f"hpc_elastic-{os.geteuid()}")


def _is_own(folder: str) -> bool:
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_WRITE


def _remove(path: str, copies: str, to: str) -> None:
    descriptor = _opened(path)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # that of an agent in another container fails
        for name in os.listdir(descriptor):
            if copies and name.startswith(copies):
                os.rename(name, os.path.join(to, name), src_dir_fd=descriptor)
            else:
                os.unlink(name, dir_fd=descriptor)
        os.rmdir(path)
    finally:
        os.close(descriptor)


def _made(places: Iterable[str]) -> tuple[str, str, int]:
    """Return the place of a new directory, its path, and the descriptor that holds its lock."""
    own = f"{os.getpid()}-{os.urandom(4).hex()}"
    for place in places:
        for begin in _begins(place):
            path = f"{begin}{own}"
            try:
                os.mkdir(path, mode=0o700)
                descriptor = _opened(path)
            except OSError:  # another agent may just have removed the folder
                continue
            with suppress(OSError):  # without locks nobody removes it either
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return place, path, descriptor
    raise RunDirError(
        "no node-local directory can be written to",
        where="/dev/shm, $TMPDIR and /tmp",  # noqa: S108 - words, not a path
        fix="set TMPDIR to a local directory with free space",
    )


def _begins(place: str) -> list[str]:
    """Return how paths in a place may begin: in the user's folder if it is that, and beside it."""
    folder = _folder(place)
    with suppress(OSError):
        os.mkdir(folder, mode=0o700)
    try:
        return [f"{folder}/", f"{folder}-"] if _is_own(folder) else [f"{folder}-"]
    except OSError:
        return [f"{folder}-"]


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
