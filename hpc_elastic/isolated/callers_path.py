"""The directories that the caller of this process has put into the search path, taken out again.

Python has put them before its own library when it starts a program of ours: the directory of the script, or
the working directory, and those of PYTHONPATH. An empty part of PYTHONPATH means the working directory.

Imports nothing but modules that are part of the interpreter, since a file in one of these directories takes
the place of any other.
"""

import posix
import sys

_as_python_made_it: "list[list[str]]" = []  # the search path, while this process searches another one


def drop_callers_places() -> None:
    """No longer search the caller's directories, and search Python's own library first.

    To be called by a program of ours before it imports more. Absolute directories of PYTHONPATH other than
    the working directory come behind the library, before the installed packages. So does the directory of
    this package, wherever it is.
    """
    if sys.flags.isolated or _as_python_made_it:
        return
    _as_python_made_it.append(sys.path[:])
    has_first = not getattr(sys.flags, "safe_path", False)  # since Python 3.11
    path = sys.path[1:] if has_first else sys.path[:]
    unwanted = [known for known in map(_identity, (".", *_relative_parts())) if known is not None]
    own = [place for place in path if _is_of_python(place, unwanted)]
    end = max((path.index(place) + 1 for place in own), default=0)
    home = __file__.rpartition("/hpc_elastic/")[0]
    others = [place for place in path[:end] if place not in own]
    kept = [place for place in others if place == home or _is_wanted(place, unwanted)]
    sys.path[:] = [*own, *kept, *path[end:]]


def search_callers_places() -> None:
    """Search the directories of a plain Python again: this process runs code of the user itself."""
    if _as_python_made_it:
        sys.path[:] = _as_python_made_it.pop()


def has_own_path() -> bool:
    """Tell whether this process searches other directories than a plain Python does."""
    return bool(sys.flags.isolated or _as_python_made_it)


def _relative_parts() -> "list[str]":
    """Return the parts of PYTHONPATH that depend on the working directory."""
    parts = posix.environ.get(b"PYTHONPATH", b"").decode(sys.getfilesystemencoding(), "surrogateescape")
    return [part for part in parts.split(":") if part and part[0] != "/"]


def _is_of_python(place: str, unwanted: "list[tuple[int, int]]") -> bool:
    """Tell whether a place is the library of Python, or the archive or the extensions of it."""
    if place == sys.modules["encodings"].__path__[0].rpartition("/")[0]:  # Python cannot start without it
        return True
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    return place.rpartition("/")[2] in (archive, "lib-dynload") and _is_wanted(place, unwanted)


def _is_wanted(place: str, unwanted: "list[tuple[int, int]]") -> bool:
    return place[:1] == "/" and _identity(place) not in unwanted


def _identity(place: str) -> "tuple[int, int] | None":
    """Return device and inode of a directory; None if there is none."""
    try:
        found = posix.stat(place)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
