"""Undo the changes that a launch makes to its program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from hpc_elastic.processes.linux import adopt_orphans, adopts_orphans

_PACKAGE = __name__.partition(".")[0]

_T = TypeVar("_T")


class AsBefore(Generic[_T]):
    """Something about this process that is as before when the last user has gone.

    Users may overlap: several threads may launch at once.

    Args:
        read: returns how it is.
        write: makes it so.
    """

    def __init__(self, read: Callable[[], _T], write: Callable[[_T], None]) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._read = read
        self._write = write
        self._before = read()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put it back as it was after the block."""
        with self._lock:
            if not self._users:
                self._before = self._read()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before)


ADOPTION = AsBefore(adopts_orphans, lambda wanted: adopt_orphans(wanted=wanted))
"""Whether this process adopts orphans (is a child subreaper)."""


def is_changed(agent: object) -> bool:
    """Tell whether an agent is not the package's own, or has methods that are not.

    Args:
        agent: the class, or the replacement by a program.
    """
    if not isinstance(agent, type) or not _is_own(agent.__module__):
        return True
    own = [base for base in agent.__mro__ if _is_own(base.__module__)]
    return any(_is_foreign(value) for base in own for value in vars(base).values())


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _is_foreign(value: object) -> bool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    is_method = callable(function) and not isinstance(function, type)
    return is_method and not _is_own(getattr(function, "__module__", None) or "")
