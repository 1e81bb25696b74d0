"""Whether the directory with the name of a run directory is still that of the run.

A directory that does not answer is no reason to give a run up: the file system may be away for a
while. One that answers, and is another user's, another run's, or open to others, is not the run's.
"""

from __future__ import annotations

import errno
import json
import os
import stat

from hpc_elastic.errors import TakenOverError, UnfitFileError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import IDENTITY
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import OTHERS_WRITE, owner_name
from hpc_elastic.store.trust import TrustedPlace, is_exposed, trusted_uids, way_to
from hpc_elastic.text import for_shell


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
        _refuse_foreign_above(root, is_closed=error.errno == errno.EACCES)
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
    except (ValueError, RecursionError):  # others tell that the file is damaged
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


def _refuse_foreign_above(root: str, *, is_closed: bool) -> None:
    """Refuse a directory that cannot be reached, if the obstacle is another user's.

    Args:
        root: the run directory.
        is_closed: whether the way ends for want of permission.

    Raises:
        TakenOverError: it is.
    """
    obstacle, owner = "", 0
    try:
        trusted = trusted_uids()
        for place in way_to(root):
            is_seen = place.entry_uid is not None
            obstacle, owner = (place.entry, place.entry_uid or 0) if is_seen else (place.path, place.uid)
            if place.is_link and owner not in trusted:
                what = f"{obstacle} is in its way, a link that belongs to user {owner_name(owner)}"
                raise taken(root, what)
    except OSError:  # the file system is away
        return
    if is_closed and owner not in trusted:
        raise taken(root, f"{obstacle} is in its way, which belongs to user {owner_name(owner)}")


class _Seen(NamedTuple):
    device: int
    inode: int
    uid: int


def _seen(status: os.stat_result) -> _Seen:
    return _Seen(status.st_dev, status.st_ino, status.st_uid)


class _Kept(NamedTuple):
    """An entry on the way to a run directory. A file system that is mounted again has another device."""

    inode: int
    uid: int | None
    is_directory: bool


def _kept(place: TrustedPlace) -> _Kept:
    return _Kept(place.inode, place.entry_uid, place.is_directory)


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
        self._way = {place.entry: _kept(place) for place in way_to(root)}

    @property
    def reached(self) -> str:
        """A path of this process that leads to the directory wherever it is now."""
        return f"/proc/self/fd/{self._fd}"

    def check(self) -> None:
        """Look at the entry with the directory's name; costs one `stat` while the directory is reached.

        Does not report a file system that does not answer: the next reading or writing does.

        Raises:
            TakenOverError: it is another directory, or others can write to it.
        """
        try:
            status = os.stat(self._root)
        except OSError:
            self._check_way()
            return
        if not stat.S_ISDIR(status.st_mode):
            raise taken(self._root, "it is not a directory any more")
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
        self._seen = _seen(status)  # the file system gives new numbers to forgotten files, as sshfs does

    def _check_way(self) -> None:
        """Look whether an entry on the way to the directory was exchanged, those above first.

        A link counts by its own owner: its target can be a directory of root's, or missing.

        Raises:
            TakenOverError: it was.
        """
        try:
            trusted = trusted_uids()
            for place in way_to(self._root):
                if place.entry_uid is None or self._way.get(place.entry) == _kept(place):
                    continue
                what = "it" if place.entry == self._root else f"{place.entry} on the way to it"
                if place.entry_uid not in trusted:
                    link = "is a link that " if place.is_link else ""
                    raise taken(self._root, f"{what} {link}now belongs to user {owner_name(place.entry_uid)}")
                if kind := self._kind_moved_there(place):
                    raise taken(self._root, f"{what} is now {kind}, and other users can put one there")
        except OSError:  # the file system is away
            return

    def _kind_moved_there(self, place: TrustedPlace) -> str:
        """Return the kind of a changed entry, the user's or root's; empty if others cannot have moved it.

        A directory of root's may be the place of a file system that is not mounted.
        """
        if place.is_directory and (place.entry_uid != os.geteuid() or place.entry not in self._way):
            return ""
        if not is_exposed(place):
            return ""
        return "another directory" if place.is_directory else "a link" if place.is_link else "a file"

    def close(self) -> None:
        """Let the directory go."""
        os.close(self._fd)
