"""Notes of a forked worker on its imports, in memory that the agent reads; they survive its end.

The worker's side runs in the workers' interpreter, with the standard library alone.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from hpc_elastic.processes.linux import map_memory
from hpc_elastic.processes.preload.rules import Imported, installed_in, is_fit_to_learn, noted

_SIZE: Final = 1 << 16  # bytes: some 600 modules
_NUMBER: Final = 8  # bytes of each number at the beginning: how many bytes follow, how many imports began
_BEGIN: Final = 2 * _NUMBER


class NoteBook:
    """The agent's side: memory that one worker writes to."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("hpc_elastic", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _SIZE)
        self._memory = mmap.mmap(self.fd, _SIZE)

    @property
    def used(self) -> int:
        """How many bytes the worker has written."""
        return min(int.from_bytes(self._memory[:_NUMBER], "little"), _SIZE - _BEGIN)

    @property
    def begun(self) -> int:
        """How many imports the worker has begun, of modules of any kind."""
        return int.from_bytes(self._memory[_NUMBER:_BEGIN], "little")

    def imported(self) -> list[Imported]:
        """Return the modules that the worker has imported itself, in their order."""
        return noted(self._memory[_BEGIN : _BEGIN + self.used])

    def close(self) -> None:
        """Give the memory back; a worker keeps its own."""
        self._memory.close()
        os.close(self.fd)


class Noting:
    """The worker's side: a finder of modules that asks those behind it, and notes their answers.

    Modules that are imported by a noted one come with it, and are not noted.

    Args:
        fd: the memory of a `NoteBook`; it is closed.
    """

    def __init__(self, fd: int) -> None:
        self._memory = map_memory(fd, _SIZE)
        os.close(fd)
        self._pid = os.getpid()
        self._end = _BEGIN
        self._begun = 0
        self._last: ModuleSpec | None = None
        self._env = dict(_environ())

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the answer of the finders behind this one."""
        if os.getpid() == self._pid:
            self._begun += 1
            self._memory[_NUMBER:_BEGIN] = self._begun.to_bytes(_NUMBER, "little")
        finders = sys.meta_path
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                with suppress(Exception):  # a finder of the user's may return anything
                    self._note(name, spec)
                return spec
        return None

    def _note(self, name: str, spec: ModuleSpec) -> None:
        last: Any = self._last
        if last is not None and getattr(last, "_initializing", False):
            return  # it is imported by the last one
        if os.getpid() != self._pid:
            return
        if last is not None and last.name not in sys.modules:  # only looked for, or it has failed
            self._write(f"-{last.name}\n")
            self._last = None
        site = site_of_spec(spec)
        if not is_fit_to_learn(Imported(name, site)):
            return
        self._last = spec
        now = _environ()
        changed = sorted(key for key in now.keys() | self._env.keys() if now.get(key) != self._env.get(key))
        self._write("\t".join((name, site, *map(_text, changed))) + "\n")

    def _write(self, line: str) -> None:
        data = line.encode("utf-8", "replace")
        if self._end + len(data) > _SIZE:
            return
        self._memory[self._end : self._end + len(data)] = data
        self._end += len(data)
        self._memory[:_NUMBER] = (self._end - _BEGIN).to_bytes(_NUMBER, "little")


def begin(fd: int) -> None:
    """Note each further import of this process."""
    noting: Any = Noting(fd)
    sys.meta_path.insert(0, noting)


def _environ() -> dict[Any, Any]:
    """Return the environment without a look for any variable in it."""
    environ: Any = os.environ
    return vars(environ)["_data"]  # type: ignore[no-any-return]


def _text(name: Any) -> str:
    return os.fsdecode(name).translate({9: "?", 10: "?"})


def site_of_spec(spec: ModuleSpec) -> str:
    """Return the directory of installed packages that a module is in; empty if it is in none."""
    return installed_in(spec.origin if spec.has_location else next(iter(_locations(spec)), None))


def _locations(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())
