"""Reading and writing the journal of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import RendezvousStateError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import journal
from hpc_elastic.record.journal import MEMBERS, Entry, Record, RecordError, Role, news_name
from hpc_elastic.record.state import RunState, fits, fold
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.protocol import Store
from hpc_elastic.store.shared_dir import SharedDirStore, record_name, segment_name

LOG = "journal"
_MAX_TRIES = 200
_UNLOCKED_TRIES = 2  # taking the lock costs more than one lost race


class RunLog:
    """One process's view of the journal: folds new records, adds an entry that still fits.

    Args:
        store: where the run lives.
        clock: for the time shown with a record.
        writer: the writer, for people: a node's name, "batch" or "login".
        lock: keeps contenders from wasting work; None for none.
        role: the kind of the writing process.

    Attributes:
        is_member: whether the writer tells the others of a new record by its own name among the
            members; a process that is no member leaves a name of its own there.
        appended: number of the last record that this process has added.
        records: all that are read, the oldest first, for a process that is no member; a member keeps none.
    """

    is_member = True
    appended = 0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        writer: str,
        lock: ContentionLock | None = None,
        role: Role = Role.AGENT,
    ) -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._role = role
        self._lock = lock
        self.state = RunState()
        self.records: list[Record] = []
        self._is_whole = False  # not yet known

    def refresh(self) -> RunState:
        """Fold the records that are new and return the state.

        Raises:
            StoreError: the shared directory could not be read.
            RendezvousStateError: a record is damaged, or was removed.
        """
        new = self._store.read_after(LOG, self.state.last)
        if new:
            self._take(_parsed(self._store, new))
        if not self._is_whole:
            _check_whole(self._store, self.state.last)
            self._is_whole = True
        return self.state

    def commit(self, choose: Callable[[RunState], Entry | None]) -> RunState:
        """Append the entry that `choose` returns for the newest state, as long as it still fits.

        `choose` is asked again each time another writer was first. After two lost races the lock is
        taken, so that many contenders do not all write and lose.

        Returns:
            The state in which the entry stands, or in which nothing more was to be added.

        Raises:
            StoreError: the shared directory refused, or others were first every time.
        """
        for _ in range(_UNLOCKED_TRIES):
            if self._try_append(choose):
                return self.state
        for _ in range(_MAX_TRIES):
            with self._lock.held() if self._lock else nullcontext():
                if self._try_append(choose):
                    return self.state
        raise StoreError(f"{_MAX_TRIES} attempts to add journal record {self.state.last + 1} were lost")

    def _try_append(self, choose: Callable[[RunState], Entry | None]) -> bool:
        state = self.refresh()
        entry = choose(state)
        if entry is None or not fits(state, entry):
            return True
        number, at = state.last + 1, self._clock.wall()
        data = journal.encode(entry, at=at, by=self._writer, role=self._role)
        news = "" if self.is_member else news_name(number)
        if not self._store.append(LOG, number, data):
            return False
        self.appended = number
        if news:
            with suppress(StoreError):  # the record stands; an agent without the sign of it reads it later
                self._store.mark(MEMBERS, news)
        # a listing may not show the own record yet, but it stands
        self._take(journal.parse_all([(number, data)]))
        return True

    def _take(self, records: list[Record]) -> None:
        self.state = fold(self.state, records)
        if not self.is_member:
            self.records += records


def open_log(paths: RunPaths, writer: str, role: Role = Role.AGENT) -> RunLog:
    """Return the journal of a run directory, as a command on a login node or batch host uses it."""
    clock = SystemClock()
    log = RunLog(SharedDirStore(paths.root), clock, writer, ContentionLock(paths.lock, clock), role)
    log.is_member = False
    return log


def read_records(paths: RunPaths) -> list[Record]:
    """Return all records of a run, oldest first.

    Raises:
        StoreError: the run directory cannot be read.
        RendezvousStateError: a record is damaged, or was removed.
    """
    records = read_newer(paths, 0)
    _check_whole(SharedDirStore(paths.root), len(records))
    return records


def read_newer(paths: RunPaths, last: int) -> list[Record]:
    """Return the records after a number, oldest first; raises as `read_records` does."""
    store = SharedDirStore(paths.root)
    return _parsed(store, store.read_after(LOG, last))


def _check_whole(store: Store, last: int) -> None:
    """Refuse a journal with a gap: a new record would take the number of the one that was removed.

    Args:
        store: the store of the run.
        last: number of the record before the first one that is not there.
    """
    number = last + 1
    if isinstance(store, SharedDirStore) and store.is_removed(LOG, number):
        path = os.path.join(store.root, LOG, segment_name(number), record_name(number))
        raise RendezvousStateError(
            f"{path}: journal record {number} was removed; later records are there\n"
            "  fix: bring the file back from a backup or snapshot, or submit a new run"
        )


def _parsed(store: Store, found: Iterable[tuple[int, bytes]]) -> list[Record]:
    """Return the records in files; errors name the file."""
    try:
        return journal.parse_all(found)
    except RecordError as error:
        path = f"{LOG}/{segment_name(error.number)}/{record_name(error.number)}"
        root = getattr(store, "root", "")
        raise RendezvousStateError(f"{root}/{path}: {error}" if root else f"{path}: {error}") from error


def read_state(paths: RunPaths) -> RunState:
    """Return the state of a run."""
    return fold(RunState(), read_records(paths))
