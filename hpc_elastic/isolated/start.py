"""Starts this package from one file, which has its modules and those of Python that it needs.

    python -I -S .../hpc_elastic/isolated/start.py FILE WORDS...

On a busy shared file system each name that is looked up costs milliseconds, and an ordinary start looks up
hundreds. `hpc_elastic.isolated.one_file` writes the file. It is taken only if it is complete and undamaged,
made by this version of Python and package, and if no other user can write to it. Otherwise the installed
package starts.

Imports nothing but modules that are part of the interpreter.
"""

import _imp
import marshal
import posix
import sys

TYPE_CHECKING = False  # typing is no part of the interpreter
if TYPE_CHECKING:
    from typing import Any

_COMMANDS = "hpc_elastic.cli.main"
_FORMAT = b"hpc_elastic start 2\n"
_NUMBER = 20  # digits of a length
_SIZES = 3 * _NUMBER  # of the index, of an agent's modules, of all modules
_SUM = 8  # bytes of a checksum
_SUMS = 2 * _SUM  # of sizes, index and an agent's modules; of the other modules
_OTHERS_WRITE = 0o022


ModuleCode = tuple[str, bool, bytes]
"""The file of a module, whether it is a package, and its code."""


class NotUsableError(Exception):
    """The file is not to be used; the text says why."""


def head_of(home: str) -> bytes:
    """Return the beginning of a file for this interpreter and a directory of this package."""
    fd = posix.open(f"{home}/__init__.py", posix.O_RDONLY | posix.O_CLOEXEC)
    with_version = _read(fd, posix.fstat(fd).st_size)
    posix.close(fd)
    place = home.encode(errors="surrogateescape")
    return b"\n".join((_FORMAT, sys.version.encode(), place, with_version, b""))


def packed(home: str, codes: dict[str, ModuleCode], agents: int) -> bytes:
    """Return the content of a file.

    Args:
        home: the directory of this package.
        codes: the modules.
        agents: how many of them, the first ones, an agent needs.
    """
    index, at, ends = {}, 0, [0]
    for name, (origin, is_package, code) in codes.items():
        index[name] = (origin, is_package, at, at + len(code))
        at += len(code)
        ends.append(at)
    listed = marshal.dumps(index)
    sizes = b"%020d%020d%020d" % (len(listed), ends[agents], at)
    data = b"".join(code for _, _, code in codes.values())
    sums = _sum_of(sizes + listed + data[: ends[agents]]) + _sum_of(data[ends[agents] :])
    return b"".join((head_of(home), sizes, sums, listed, data))


class ModulesOfFile:
    """Finds and loads the modules of a file.

    Args:
        path: the file.
        home: the directory of this package.
        is_agent: only the modules of an agent are read.

    Raises:
        NotUsableError: it is not to be used.
        OSError: it cannot be read.
    """

    def __init__(self, path: str, home: str, *, is_agent: bool) -> None:
        head = head_of(home)
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            listed, data = _parts_of(fd, head, _size_of_own(fd, path), is_agent=is_agent)
        finally:
            posix.close(fd)
        self._index = marshal.loads(listed)  # noqa: S302 - no other user can write it
        places = {name: (begin, end) for name, (_, _, begin, end) in self._index.items() if end <= len(data)}
        self._codes = {name: data[begin:end] for name, (begin, end) in places.items()}

    def find_spec(self, name: str, _path: "Any" = None, _target: "Any" = None) -> "Any":
        """Return where a module is, as Python asks; None if it is not here."""
        if name not in self._codes:
            return None
        known = self._index[name]
        make: Any = type(sys.__spec__)
        spec = make(name, self, origin=known[0], is_package=known[1])
        spec.has_location = True
        if known[1]:
            spec.submodule_search_locations.append(known[0].rpartition("/")[0])
        return spec

    def create_module(self, _spec: "Any") -> None:
        """Leave the making of modules to Python."""

    def exec_module(self, module: "Any") -> None:
        """Run the code of a module, which is not kept."""
        exec(marshal.loads(self._codes.pop(module.__name__)), module.__dict__)  # noqa: S102, S302

    def invalidate_caches(self) -> None:
        """Give all code back; Python calls it when modules are to be looked up anew."""
        self._codes.clear()


class InstalledPackages:
    """Searches the installed packages, too, as soon as a module is in none of the other places.

    It stays among the finders: Python locks each call of a finder, but not the way from one to the next, so
    a thread may have asked all others before another thread makes the packages known.
    """

    def __init__(self) -> None:
        self._is_known = False  # or just being made known by this thread

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return where a module is, as Python asks; None if it is nowhere."""
        if path is not None or name in sys.stdlib_module_names:
            return None  # Python's own are in no package, though some are missing here, such as msvcrt
        self._make_known()
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        return next((spec for spec in found if spec is not None), None)

    def _make_known(self) -> None:
        """Search the installed packages from now on."""
        if self._is_known:
            return
        self._is_known = True
        from hpc_elastic.isolated.search_path import search_installed  # noqa: PLC0415 - it may be in the file

        search_installed()


def _parts_of(fd: int, head: bytes, size: int, *, is_agent: bool) -> "tuple[bytes, bytes]":
    """Return the index of a file and the code of its modules; raises NotUsableError if it is not sound."""
    begin = _read(fd, len(head) + _SIZES + _SUMS)
    if begin[: len(head)] != head:
        raise NotUsableError("it was made by another version of Python or of hpc_elastic")
    told, sums = begin[len(head) : len(head) + _SIZES], begin[len(head) + _SIZES :]
    if len(sums) < _SUMS:
        raise NotUsableError("it is not complete")
    sizes = [told[at : at + _NUMBER] for at in range(0, _SIZES, _NUMBER)]
    listed, agents, codes = (int(one) if one.isdigit() else -1 for one in sizes)
    if min(listed, agents, codes - agents) < 0:
        raise NotUsableError("it is damaged")
    if size != len(begin) + listed + codes:
        raise NotUsableError("it is not complete")
    index, data = _read(fd, listed), _read(fd, agents)
    others = b"" if is_agent else _read(fd, codes - agents)
    is_sound = _sum_of(told + index + data) == sums[:_SUM]
    if not is_sound or not (is_agent or _sum_of(others) == sums[_SUM:]):
        raise NotUsableError("it is damaged")
    return index, data + others


def _sum_of(data: bytes) -> bytes:
    """Return a checksum; it is that of the interpreter, since zlib may be a file of its own."""
    return _imp.source_hash(len(data), data)


def _size_of_own(fd: int, path: str) -> int:
    """Return the size of a file; raises NotUsableError if another user can write to it."""
    own = posix.fstat(fd)
    for stat in (own, posix.stat(path.rpartition("/")[0] or "/")):
        if stat.st_uid not in (0, posix.geteuid()) or stat.st_mode & _OTHERS_WRITE:
            raise NotUsableError("another user can write to it")
    return own.st_size


def _read(fd: int, size: int) -> bytes:
    """Return the next bytes of a file, as far as it has so many."""
    parts = []
    while size and (part := posix.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _tell(path: str, why: "Any") -> None:
    """Tell once, on the first node of a job."""
    if posix.environ.get(b"SLURM_NODEID", b"0") == b"0":
        text = f"note: {path} is not used, and the installed package starts: {why}\n"
        posix.write(2, text.encode(errors="surrogateescape"))


def main(argv: list[str]) -> int:
    """Run a command of this package and return its exit code.

    Args:
        argv: the path of this file, that of the file with the modules, and the words of the command.
    """
    home = argv[0].rpartition("/")[0].rpartition("/")[0]
    sys.argv = [argv[0], *argv[2:]]
    try:
        sys.meta_path.insert(0, ModulesOfFile(argv[1], home, is_agent=argv[2:3] == ["run"]))
        sys.meta_path.append(InstalledPackages())
    except (OSError, NotUsableError, ValueError, EOFError, TypeError) as error:
        _tell(argv[1], error.strerror if isinstance(error, OSError) else error)
        import site  # noqa: PLC0415 - not loaded yet

        site.main()
    commands: Any = __import__(_COMMANDS, fromlist=["main"])
    return int(commands.main(argv[2:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
