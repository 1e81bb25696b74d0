"""The private directory of an agent in its node's memory.

The agent removes it at its end, or else its guard, which leaves copies of a state there. Both may be killed
together, as Slurm does with the processes of a job. So the next agent of the user on the node removes the
directory: the states that workers have kept there may be large. If it is an agent of the same run and node,
it takes over the copies of a state. An agent that lives holds a lock on its directory.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from hpc_elastic.errors import RunDirError
from hpc_elastic.processes.guard import remove_directory

_NAME = re.compile(r"hpc_elastic-([0-9]+)-([0-9]+)-[0-9a-f]{8}")


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
    path, descriptor = _made(usual if places is None else places)
    try:
        remove_left(os.path.dirname(path), copies, path)
        yield path
    finally:
        remove_directory(path)
        os.close(descriptor)


def remove_left(place: str, copies: str = "", to: str = "") -> None:
    """Remove the directories of this user's dead agents, as far as it is possible.

    Args:
        place: in which agents have made them.
        copies: begins the names of the files that are moved; empty: none are.
        to: the directory that they are moved to.
    """
    with suppress(OSError):
        for name in os.listdir(place):
            match = _NAME.fullmatch(name)
            if match and int(match[1]) == os.geteuid() and not os.path.exists(f"/proc/{match[2]}"):
                with suppress(OSError):
                    _remove(os.path.join(place, name), copies, to)


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


def _made(places: Iterable[str]) -> tuple[str, int]:
    """Return a new directory and the descriptor that holds its lock."""
    for place in places:
        path = os.path.join(place, f"hpc_elastic-{os.geteuid()}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.mkdir(path, mode=0o700)
            descriptor = _opened(path)
        except OSError:
            continue
        with suppress(OSError):  # without locks nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path, descriptor
    raise RunDirError(
        "no node-local directory can be written to",
        where="/dev/shm, $TMPDIR and /tmp",  # noqa: S108 - words, not a path
        fix="set TMPDIR to a local directory with free space",
    )


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
