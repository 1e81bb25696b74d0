"""Which commands can be started warm, and which states of a process may be forked. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.values import is_module_name

_PYTHON: Final = r"python(\d+(\.\d+)?t?)?"
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

AUTO: Final = "auto"
"""In place of a name: the modules that workers have imported."""
_SITES: Final = ("/site-packages/", "/dist-packages/")
_OURS: Final = "hpc_elastic"
_LONGEST: Final = 200  # characters of a name that is learned
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {  # imported only when `Checkpoints` is made
    "hpc_elastic.frameworks.torch": (
        "hpc_elastic.frameworks.torch.checkpoints",
        "torch.distributed.checkpoint._state_dict_stager",
        "hpc_elastic.worker.progress",
    )
}
SAFE_AT_END: Final[Mapping[str, str]] = {
    "logging.shutdown": "Python 3.11: flushes handlers",
    "weakref.finalize._exitfunc": "Python 3.11: each finalizer is judged itself",
    "multiprocessing.util._exit_function": "Python 3.11: ends the children of a process",
    "concurrent.futures.thread._python_exit": "Python 3.11: ends the threads of a process",
    "concurrent.futures.process._python_exit": "Python 3.11: ends the children of a process",
    "torch": "2.13: ends children, prints statistics, forgets operators",
    "PIL._imaging.clear_cache": "13.0: frees memory",
    "matplotlib._pylab_helpers.Gcf.destroy_all": "3.11: closes figures",
    "filelock._core._shutdown._release_live_locks": "4.3: releases locks whose files are open",
    "huggingface_hub.utils._http.close_session": "2.4: closes connections",
    "certifi.core.exit_cacert_ctx": "2026.10: forgets the path of a file of the package",
}
"""The functions for the end of a process, or their packages, that touch nothing but the process itself."""
SAFE_TO_DRAW: Final[Mapping[str, str]] = {
    "multiprocessing.process": "Python 3.11: a key; each worker gets its own",
    "numpy.random": "2.4: the state of its common generator; each worker gets its own",
    "torch.distributed._composable.contract": "2.13: names of attributes",
    "sympy.core.symbol": "1.14: the first number of dummy symbols",
    "scipy.stats._distribution_infrastructure": "1.17: examples of its documentation",
    "rich.style": "15.0: the first number of links",
    "transformers.utils.hub": "5.24: the name of a session, for statistics",
    "hpc_elastic.store.files": "names of files, beside the number of the process",
}
"""The modules that may draw random numbers as they are imported: no result of a worker depends on them."""
_READ_BY_LIBRARIES: Final = ("PYTORCH_", "TORCH_", "CUDA_", "HIP_", "NCCL_", "XLA_", "TF_", "JAX_")


def with_needed(names: Collection[str]) -> list[str]:
    """Return modules in the order of their import, each followed by those that its users need later."""
    return [each for name in names for each in (name, *_NEEDED.get(name, ()))]


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
    if not argv or not re.fullmatch(_PYTHON, argv[0].rpartition("/")[2]):
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


class Imported(NamedTuple):
    """A module that a worker has imported, other than by another such module.

    Args:
        name: of the module.
        site: the directory of installed packages that it was found in.
        changed: the variables that had another value by then than at the worker's start.
    """

    name: str
    site: str
    changed: tuple[str, ...] = ()


def installed_in(path: str | None) -> str:
    """Return the directory of installed packages that a file is in; empty for a file of a project."""
    for site in _SITES:
        head, found, _ = (path or "").rpartition(site)
        if found:
            return head + site.rstrip("/")
    return ""


def is_fit_to_learn(module: Imported) -> bool:
    """Tell whether a module is installed, and none of this package, which a worker imports in a moment."""
    name = module.name
    is_plain = len(name) <= _LONGEST and is_module_name(name) and name.partition(".")[0] != _OURS
    return is_plain and bool(installed_in(f"{module.site}/"))


def noted(data: bytes) -> list[Imported]:
    """Return the modules in the notes of a worker; one whose import came to nothing is not among them."""
    found: dict[str, Imported] = {}
    lines = data.decode("utf-8", "replace").split("\n")[:-1]
    for line in lines:
        if line.startswith("-"):
            found.pop(line[1:], None)
            continue
        name, _, rest = line.partition("\t")
        site, *changed = rest.split("\t")
        module = Imported(name, site, tuple(changed))
        if is_fit_to_learn(module):
            found.setdefault(name, module)
    return list(found.values())


def imported_by_most(books: Collection[Collection[Imported]]) -> list[Imported]:
    """Return the modules that more than half of some workers have imported, in the order of the first."""
    counts: dict[str, int] = {}
    first: dict[str, Imported] = {}
    for book in books:
        for module in book:
            counts[module.name] = counts.get(module.name, 0) + 1
            known = first.setdefault(module.name, module)
            changed = tuple(dict.fromkeys((*known.changed, *module.changed)))
            first[module.name] = known._replace(changed=changed)
    return [module for name, module in first.items() if 2 * counts[name] > len(books)]


def set_by_program(changed: Collection[str], before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the variables that the program of a worker has set before an import, and no other import has.

    Args:
        changed: those that had another value in the worker.
        before: the environment of the process that preloads, at first.
        now: the same when the import is due.
    """
    return {name for name in changed if before.get(name) == now.get(name)}


def read_at_import(names: Collection[str], reads: Collection[str]) -> str:
    """Return one of some variables that an import looks for, or may do so out of sight; empty if none."""
    out_of_sight = (*_AT_START, *_READ_BY_LIBRARIES)
    return next((name for name in sorted(names) if name in reads or name.startswith(out_of_sight)), "")


class Snapshot(NamedTuple):
    """The state of a process, as far as it must not change while modules are imported.

    Args:
        threads: how many there are.
        files: by descriptor the file, as ``/proc/self/fd`` has it.
        cwd: the working directory.
        status: lines of ``/proc/self/status`` by their name.
        has_child: it has started a process that it has not waited for.
        shared: the memory that processes may share: addresses, and the names of the files.
    """

    threads: int
    files: Mapping[int, str]
    cwd: str
    status: Mapping[str, str]
    has_child: bool = False
    shared: frozenset[tuple[str, str]] = frozenset()


def shared_memory(maps: str) -> frozenset[tuple[str, str]]:
    """Return the parts of memory that a copy of a process would share, from ``/proc/self/maps``.

    A plain file that is only read is none of them: a process that Python starts has the same.
    """
    found = set()
    for line in maps.splitlines():
        address, rights, _, _, _, *path = line.split(None, 5)
        name = path[0] if path else "without a file"
        is_plain = name.startswith("/") and not name.startswith("/dev/") and not name.endswith("(deleted)")
        if rights[3] == "s" and not (is_plain and "w" not in rights):
            found.add((address, name))
    return frozenset(found)


def unsafe(before: Snapshot, after: Snapshot) -> str:
    """Return the effect of an import that no copy of the process may have; empty if there is none."""
    if after.threads > 1:
        return f"leaves {after.threads - 1} thread{'s' if after.threads > 2 else ''} running"  # noqa: PLR2004
    opened = _left_open(before, after)
    if opened:
        return opened
    if after.has_child and not before.has_child:
        return "leaves a child process"
    shared = sorted(name for _, name in after.shared - before.shared)
    if shared:
        return f"makes memory that all copies would share ({shared[0]}), as that of a lock between processes"
    if after.cwd != before.cwd:
        return f"changes the working directory to {after.cwd}"
    changed = [words for name, words in _STATUS.items() if after.status.get(name) != before.status.get(name)]
    return next(iter(changed), "")


def _left_open(before: Snapshot, after: Snapshot) -> str:
    for fd, target in sorted(after.files.items()):
        if before.files.get(fd) == target or target in _HARMLESS:
            continue
        if target.startswith("socket:"):
            return "leaves a socket open"
        if target.startswith("/dev/"):
            return f"opens the device {target}"
        return f"leaves {target} open"
    return ""


class Traces(NamedTuple):
    """The traces of an import inside the interpreter.

    Args:
        at_end: the functions that are to be called at the end of the process or of an object.
        is_unseen_at_end: there are more of them, which Python does not show.
        temporary: temporary files and directories that are there; an empty one if its path is not known.
        drawers: the modules that have drawn random numbers that differ from process to process.
        pid_keepers: the modules that have the number of the process among their values.
    """

    at_end: tuple[str, ...] = ()
    is_unseen_at_end: bool = False
    temporary: tuple[str, ...] = ()
    drawers: tuple[str, ...] = ()
    pid_keepers: tuple[str, ...] = ()


def unfit(traces: Traces) -> str:
    """Return the trace of an import that no copy of the process may have; empty if there is none."""
    if traces.temporary:
        path = traces.temporary[0] or "of a name that is not known"
        return f"leaves a temporary file or directory, which the first copy that ends may remove: {path}"
    at_end = next((name for name in traces.at_end if not _is_known(name, SAFE_AT_END)), "")
    if at_end:
        return f"registers a function for its end, which each copy would call: {at_end}"
    if traces.is_unseen_at_end:
        return "registers a function for its end, which each copy would call"
    drawer = next((name for name in traces.drawers if not _is_known(name, SAFE_TO_DRAW)), "")
    if drawer:
        return f"draws random numbers, which would be the same in all copies (in {drawer})"
    if traces.pid_keepers:
        return f"keeps the number of its process (in {traces.pid_keepers[0]})"
    return ""


def _is_known(name: str, known: Collection[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in known)


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
