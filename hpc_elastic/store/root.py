"""Whether the directory with the name of a run directory is still that of the run.

A directory that does not answer is no reason to give a run up: the file system may be away for a
while. One that answers, and is another user's, another run's, or open to others, is not the run's.
"""

from __future__ import annotations

import errno
import json
import os
from typing import NamedTuple

from hpc_elastic.errors import TakenOverError, UnfitFileError
from hpc_elastic.paths import IDENTITY
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import OTHERS_WRITE, owner_name
from hpc_elastic.text import for_shell

_HIDDEN = (errno.EACCES, errno.ENOENT, errno.ENOTDIR)


def require_same(root: str, run_id: str) -> os.stat_result:
    """Check that a directory is the user's alone, and holds the run.

    Args:
        root: the run directory.
        run_id: name of the run; empty: any.

    Raises:
        TakenOverError: it is another user's, open to others, or another run's.
        OSError: the file system does not tell.
    """
    try:
        found = files.retry(lambda: os.stat(root))
    except OSError as error:
        if error.errno == errno.EACCES:
            _refuse_foreign_above(root)
        raise
    if found.st_uid != os.geteuid():
        raise taken(root, f"it belongs to user {owner_name(found.st_uid)}, not to you")
    if found.st_mode & OTHERS_WRITE:
        mode = found.st_mode & 0o777
        raise TakenOverError(
            f"others can write to it (mode {mode:o})",
            where=f"run directory {root}",
            fix=f"chmod 700 {for_shell(root)}; then: hpc-elastic submit --resume {for_shell(root)}",
        )
    other = run_id_in(root) if run_id else ""
    if other not in ("", run_id):
        raise taken(root, f"it holds the run {other}, not {run_id}")
    return found


def run_id_in(root: str) -> str:
    """Return the name of the run that was submitted in a directory; empty if that is unknown.

    Raises:
        OSError: the file system does not tell.
    """
    data = files.read(os.path.join(root, IDENTITY))
    try:
        found = json.loads(data or b"{}")
    except ValueError:  # others tell that the file is damaged
        return ""
    run_id = found.get("run_id") if isinstance(found, dict) else None
    return run_id if isinstance(run_id, str) else ""


def taken(root: str, what: str) -> TakenOverError:
    """Return the error of a directory that is not that of the run any more.

    Args:
        root: the run directory.
        what: the finding in its place.
    """
    return TakenOverError(
        what,
        where=f"run directory {root}",
        fix="another directory is in its place; when it is back, or moved to a place of your "
        "own: hpc-elastic submit --resume RUN_DIR",
    )


def _refuse_foreign_above(root: str) -> None:
    """Refuse a directory that cannot be reached, if the obstacle is another user's.

    Raises:
        TakenOverError: it is.
    """
    place = _nearest(root)
    found = os.stat(place)
    if found.st_uid not in (0, os.geteuid()):
        raise taken(root, f"{place} is in its way, which belongs to user {owner_name(found.st_uid)}")


def _nearest(path: str) -> str:
    """Return the existing part of a path."""
    place = os.path.dirname(path)
    while place != "/":
        try:
            os.stat(place)
        except OSError:
            place = os.path.dirname(place)
        else:
            break
    return place


class _Seen(NamedTuple):
    device: int
    inode: int
    uid: int


def _seen(status: os.stat_result) -> _Seen:
    return _Seen(status.st_dev, status.st_ino, status.st_uid)


class HeldRoot:
    """The run directory as it was when an agent began; held open, so that it can be reached when moved.

    Args:
        root: the run directory, which must be the user's alone.

    Raises:
        OSError: the file system does not tell.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._run_id = run_id_in(root)
        self._fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._seen = _seen(os.fstat(self._fd))
        self._above = {place: _seen(os.stat(place)) for place in _above(root)}

    @property
    def reached(self) -> str:
        """A path of this process that leads to the directory wherever it is now."""
        return f"/proc/self/fd/{self._fd}"

    def check(self) -> None:
        """Look at the entry with the directory's name; costs one `stat`.

        Does not report a file system that does not answer: the next reading or writing does.

        Raises:
            TakenOverError: it is another directory, or others can write to it.
        """
        try:
            status = os.stat(self._root)
        except OSError as error:
            if error.errno in _HIDDEN:
                self._check_above()
            return
        if _seen(status) == self._seen and not status.st_mode & OTHERS_WRITE:
            return
        try:
            require_same(self._root, self._run_id)
            if self._run_id and not run_id_in(self._root):
                raise taken(self._root, f"it is another directory, without the run {self._run_id}")
        except UnfitFileError as error:
            raise taken(self._root, f"{error.filename}: {error.strerror}") from None
        except OSError:
            return
        self._seen = _seen(status)  # the file system numbers anew what it has forgotten, as sshfs does

    def _check_above(self) -> None:
        """Look whether a directory above was exchanged.

        Raises:
            TakenOverError: it was.
        """
        place = _nearest(self._root)
        before = self._above.get(place)
        try:
            now = _seen(os.stat(place))
        except OSError:
            return
        if before is not None and now != before and now.uid not in (0, os.geteuid()):
            raise taken(self._root, f"{place} above it now belongs to user {owner_name(now.uid)}")

    def close(self) -> None:
        """Let the directory go."""
        os.close(self._fd)


def _above(path: str) -> list[str]:
    """Return all directories above a path."""
    found, place = [], path
    while place != "/":
        place = os.path.dirname(place)
        found.append(place)
    return found
