"""Reading and writing the journal of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous import journal
from hpc_elastic.rendezvous.journal import Entry, Record
from hpc_elastic.rendezvous.state import RunState, fits, fold
from hpc_elastic.store.lock import contention_lock
from hpc_elastic.store.protocol import Store
from hpc_elastic.store.shared_dir import SharedDirStore

LOG = "journal"
_MAX_TRIES = 200


class RunLog:
    """One process's view of the journal: folds what is new, adds what still fits.

    Args:
        store: where the run lives.
        clock: for the time shown with a record.
        writer: who writes, for people: a node's name, "batch" or "login".
        lock_path: lock that keeps contenders from wasting work; None for none.
    """

    def __init__(self, store: Store, clock: Clock, writer: str, lock_path: str | None = None) -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._lock_path = lock_path
        self.state = RunState()

    def refresh(self) -> RunState:
        """Fold the records that are new and return the state.

        Raises:
            StoreError: the shared directory could not be read.
            RendezvousStateError: a record is damaged.
        """
        new = self._store.read_after(LOG, self.state.last)
        if new:
            self.state = fold(self.state, [journal.parse(number, data) for number, data in new])
        return self.state

    def commit(self, choose: Callable[[RunState], Entry | None]) -> RunState:
        """Append what `choose` wants in the newest state, as long as it still fits.

        `choose` is asked again each time somebody else was first. After the first lost race the
        lock is taken, so that many contenders do not all write and lose.

        Returns:
            The state in which the entry stands, or in which nothing more was to be added.

        Raises:
            StoreError: the shared directory refused, or others were first every time.
        """
        if self._try_append(choose):
            return self.state
        for _ in range(_MAX_TRIES):
            lock = contention_lock(self._lock_path) if self._lock_path else nullcontext()
            with lock:
                if self._try_append(choose):
                    return self.state
        raise StoreError(f"{_MAX_TRIES} attempts to add journal record {self.state.last + 1} were lost")

    def _try_append(self, choose: Callable[[RunState], Entry | None]) -> bool:
        state = self.refresh()
        entry = choose(state)
        if entry is None or not fits(state, entry):
            return True
        number, data = state.last + 1, journal.encode(entry, at=self._clock.wall(), by=self._writer)
        if not self._store.append(LOG, number, data):
            return False
        # a listing may not show the own record yet, but it stands
        self.state = fold(state, [journal.parse(number, data)])
        return True


def open_log(paths: RunPaths, writer: str) -> RunLog:
    """Return the journal of a run directory, as a command on a login node or batch host uses it."""
    return RunLog(SharedDirStore(paths.root), SystemClock(), writer, paths.lock)


def read_records(paths: RunPaths) -> list[Record]:
    """Return all records of a run, oldest first."""
    found = SharedDirStore(paths.root).read_after(LOG, 0)
    return [journal.parse(number, data) for number, data in found]


def read_state(paths: RunPaths) -> RunState:
    """Return the state of a run."""
    return fold(RunState(), read_records(paths))
