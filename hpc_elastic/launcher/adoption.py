"""Give a program back what starting workers changes about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpc_elastic.multiprocessing.linux import adopt_orphans, adopts_orphans


class Adoption:
    """Whether this process adopts orphans (is a child subreaper) is as before when the last user has gone.

    Users may overlap: several threads may launch at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = False

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put it back as it was after the block."""
        with self._lock:
            if not self._users:
                self._before = adopts_orphans()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    adopt_orphans(wanted=self._before)


ADOPTION = Adoption()
"""That of this process."""
