"""Which commands can be started warm, and which states of a process may be forked. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?t?)?")
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SWITCHES: Final = frozenset("bBdEIOPqsSuv")
_WITH_VALUE: Final = frozenset("WX")
_HARMLESS: Final = frozenset(("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"))
_AT_START: Final = ("PYTHON", "LC_", "LD_", "GLIBC_", "MALLOC_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOMP_")
_AT_START_NAMES: Final = frozenset(("LANG", "LANGUAGE", "TZ", "HOME"))
_STATUS: Final = {
    "SigBlk": "blocks signals",
    "SigIgn": "changes which signals are ignored",
    "SigCgt": "handles signals",
    "Umask": "changes the mask of new files",
}
_MOST_NAMED: Final = 3


class PythonCommand(NamedTuple):
    """The command line of an interpreter.

    Args:
        python: the interpreter.
        flags: before the program.
        kind: ``-m``, ``-c``, or empty for a script.
        program: module, code or script.
        args: those of the program.
    """

    python: str
    flags: tuple[str, ...]
    kind: str
    program: str
    args: tuple[str, ...]

    @property
    def interpreter(self) -> tuple[str, ...]:
        """The part that all that is started in the same way has in common."""
        return (self.python, *self.flags)

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command line."""
        kind = (self.kind,) if self.kind else ()
        return (*self.interpreter, *kind, self.program, *self.args)


def read_command(argv: tuple[str, ...]) -> PythonCommand | None:
    """Return the parts of a command; None if it is none of an interpreter, or one that cannot be imitated."""
    if not argv or not _PYTHON.fullmatch(argv[0].rpartition("/")[2]):
        return None
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in ("-m", "-c"):
            if at + 1 >= len(argv):
                return None
            return PythonCommand(argv[0], argv[1:at], word, argv[at + 1], argv[at + 2 :])
        if not word.startswith("-"):
            return PythonCommand(argv[0], argv[1:at], "", word, argv[at + 1 :])
        if word[1:2] in _WITH_VALUE:
            at += 1 if len(word) > 2 else 2  # noqa: PLR2004 - -Xdev, or -X dev
        elif word[1:] and set(word[1:]) <= _SWITCHES:
            at += 1
        else:
            return None
    return None


def bad_name(names: Collection[str]) -> str:
    """Return the first of some names that no module can have; empty if there is none."""
    return next((name for name in names if not _MODULE.fullmatch(name)), "")


def names_of(text: str) -> tuple[tuple[str, ...], str]:
    """Return the names of modules in a text with commas or blanks, and one that is none; each name once."""
    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    return names, bad_name(names)


class Snapshot(NamedTuple):
    """The state of a process, as far as it must not change while modules are imported.

    Args:
        threads: how many there are.
        files: by descriptor the file, as ``/proc/self/fd`` has it.
        cwd: the working directory.
        status: lines of ``/proc/self/status`` by their name.
    """

    threads: int
    files: Mapping[int, str]
    cwd: str
    status: Mapping[str, str]


def unsafe(before: Snapshot, after: Snapshot) -> str:
    """Return the effect of an import that no copy of the process may have; empty if there is none."""
    if after.threads > 1:
        return f"leaves {after.threads - 1} thread{'s' if after.threads > 2 else ''} running"  # noqa: PLR2004
    for fd, target in sorted(after.files.items()):
        if before.files.get(fd) == target or target in _HARMLESS:
            continue
        if target.startswith("socket:"):
            return "leaves a socket open"
        if target.startswith("/dev/"):
            return f"opens the device {target}"
        return f"leaves {target} open"
    if after.cwd != before.cwd:
        return f"changes the working directory to {after.cwd}"
    changed = [words for name, words in _STATUS.items() if after.status.get(name) != before.status.get(name)]
    return next(iter(changed), "")


class EnvRead(NamedTuple):
    """The first look of an import for a variable.

    Args:
        module: which module looked.
        preloaded: which of the modules to be preloaded was being imported.
    """

    module: str
    preloaded: str


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the variables that are not the same in two environments."""
    return {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}


def stale_reads(differ: Collection[str], reads: Mapping[str, EnvRead]) -> dict[str, str]:
    """Return which modules must not be preloaded, and why: their import saw another environment.

    Args:
        differ: the variables that a worker has otherwise than the process that imported.
        reads: the variables that imports have looked for.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(differ):
        if name in reads:
            found.setdefault(reads[name].preloaded, []).append(f"{name} (in {reads[name].module})")
    return {
        module: f"reads {' and '.join(which[:_MOST_NAMED])}, which each worker has for itself"
        for module, which in found.items()
    }


def read_by_interpreter(differ: Collection[str]) -> str:
    """Return a variable among some that an interpreter or a library has read at its start; empty if none."""
    return next(
        (name for name in sorted(differ) if name.startswith(_AT_START) or name in _AT_START_NAMES), ""
    )


def with_changes(
    env: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment with the changes that imports have made in theirs.

    Args:
        env: of a worker.
        before: of the process that imported, at first.
        after: the same at last.
    """
    made = dict(env)
    for name in differing(before, after):
        if name not in after:
            made.pop(name, None)
        elif env.get(name) == before.get(name):  # else the worker's own value would have been left alone
            made[name] = after[name]
    return made
