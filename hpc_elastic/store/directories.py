"""Making directories that several clients of a shared file system may make at the same moment.

On Gluster a client that loses the race for a directory may for a moment be told that what is above
it is not there, that its handle is stale, or that its name is taken by something that cannot be
looked at. All three pass when the client looks again. So does a fourth, which the winner sees as well:
for some milliseconds the new directory is absent again.
"""

from __future__ import annotations

import errno
import os
import stat

from hpc_elastic.clock import SystemClock
from hpc_elastic.store.files import named, retry

PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Between looks at a directory that several clients make; it was seen to be absent for 20 ms."""


def make_directory(path: str) -> bool:
    """Make a directory that only its owner can use, unless the name is there; the one above must exist.

    Returns:
        Whether it was made here, as far as the file system tells.

    Raises:
        OSError: the file system refused.
    """
    with named(path):
        try:
            retry(lambda: os.mkdir(path, 0o700))
        except FileExistsError:
            return False
        except OSError:
            if not os.path.isdir(path):  # file servers may refuse what is there already
                raise
            return False
        return True


def make_directories(path: str, mode: int = 0o700) -> None:
    """Make a directory, and those above it that are missing; anybody may make them at the same moment.

    Args:
        path: the directory.
        mode: the permissions of all that are made here, less what the umask takes away.

    Raises:
        OSError: the file system refused, or something else has the name.
    """
    for pause_s in PAUSES_S:
        try:
            _make_all(path, mode)
        except OSError as error:
            if not _passes(path, error):
                raise
        else:
            return
        SystemClock().sleep(pause_s)
    _make_all(path, mode)


def _make_all(path: str, mode: int) -> None:
    """Make a directory and those above it; unlike `os.makedirs`, all with the same permissions."""
    missing = [path]
    while (above := os.path.dirname(missing[-1])) not in ("", missing[-1]) and not os.path.exists(above):
        missing.append(above)
    for each in reversed(missing):
        try:
            os.mkdir(each, mode)
        except OSError:  # file servers may refuse with another error what is there already
            if not os.path.isdir(each):
                raise


def _passes(path: str, error: OSError) -> bool:
    if error.errno != errno.EEXIST:
        return error.errno in (errno.ENOENT, errno.ESTALE)
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return True
