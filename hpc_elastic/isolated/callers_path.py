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
    callers = _CallersPlaces()
    own = [place for place in path if _is_of_python(place, callers)]
    end = max((path.index(place) + 1 for place in own), default=0)
    home = __file__.rpartition("/hpc_elastic/")[0]
    others = [place for place in path[:end] if place not in own]
    kept = [place for place in others if place == home or callers.has_named(place)]
    sys.path[:] = [*own, *kept, *path[end:]]


def search_callers_places() -> None:
    """Search the directories of a plain Python again: this process runs code of the user itself."""
    if _as_python_made_it:
        sys.path[:] = _as_python_made_it.pop()


def has_own_path() -> bool:
    """Tell whether this process searches other directories than a plain Python does."""
    return bool(sys.flags.isolated or _as_python_made_it)


class _CallersPlaces:
    """The working directory, and the parts of PYTHONPATH.

    Absolute parts are the caller's choice. A relative part names a place in the working directory, whose
    entries may be of other users: a directory, an archive or a place in one, or one that is made later.
    """

    def __init__(self) -> None:
        given = posix.environ.get(b"PYTHONPATH", b"").decode(sys.getfilesystemencoding(), "surrogateescape")
        parts = given.split(":")
        relative = [".", *(part for part in parts if part and part[0] != "/")]
        try:
            here = posix.getcwd()
        except OSError:  # it is gone; then the search path has the relative parts as they are
            here = ""
        texts = [f"{here}/{part}" for part in relative] if here else []
        self._unwanted = {*texts, *map(_normal, texts)}
        self._unwanted_ids = {known for known in map(_identity, relative) if known is not None}
        absolute = [part for part in parts if part[:1] == "/"]
        self._absolute = {*absolute, *map(_normal, absolute)}

    def may_have(self, place: str) -> bool:
        """Tell whether a place is absolute, and neither the working directory nor a relative part."""
        return place[:1] == "/" and place not in self._unwanted and _identity(place) not in self._unwanted_ids

    def has_named(self, place: str) -> bool:
        """Tell whether such a place is an absolute part."""
        return self.may_have(place) and place in self._absolute


def _normal(place: str) -> str:
    """Return an absolute place as site puts it into the search path, as os.path.abspath does."""
    names: list[str] = []
    for name in place.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    start = "//" if place[:2] == "//" and place[:3] != "///" else "/"
    return start + "/".join(names)


def _is_of_python(place: str, callers: _CallersPlaces) -> bool:
    """Tell whether a place is the library of Python, or the archive or the extensions of it."""
    if place == sys.modules["encodings"].__path__[0].rpartition("/")[0]:  # Python cannot start without it
        return True
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    return place.rpartition("/")[2] in (archive, "lib-dynload") and callers.may_have(place)


def _identity(place: str) -> "tuple[int, int] | None":
    """Return device and inode of a file or directory; None if there is none."""
    try:
        found = posix.stat(place)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
