"""The store on a shared directory: no server, no port, no host to lose.

Layout of a log: ``<log>/<segment>/<number>``. A segment holds 256 records, so that the directory
that every agent lists once per interval stays small however long the run lives.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import TypeVar

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError, UnfitFileError
from hpc_elastic.store import files
from hpc_elastic.store.files import PAUSES_S, make_directory

SEGMENT_RECORDS = 256
_MOST_BYTES = 64 << 20  # of a record; values of the key-value store are the largest
_FIRST_LOOK_S = 0.001  # time between two looks while waiting: grows from here ...
_LOOK_GROWTH = 1.5
_LOOK_S = 0.05  # ... to this: as fresh as the listings of network file systems are
_LATE_S = 30.0  # a waiter of this age is in no hurry ...
_LATE_LOOK_S = 0.5  # ... and looks as rarely as this

# Only where a directory's times advance in steps (see `Mount.has_coarse_times`):
_STEP_S = 0.03  # longer than a step: 10 ms at most on Linux servers
_STIR_AFTER_S = 0.25  # a waiter changes the directory itself after so long, so that it is read anew ...
_STIR_EVERY_S = 1.0  # ... and again and again
_HINTS: dict[int | None, str] = {
    errno.ENOSPC: " (the file system is full, or out of inodes)",
    errno.EDQUOT: " (your quota is used up)",
    errno.EACCES: " (no permission)",
    errno.ESTALE: " (the file server lost the file handle)",
}
_T = TypeVar("_T")


def segment_name(number: int) -> str:
    """Return the name of the segment that holds a record."""
    return f"{number // SEGMENT_RECORDS:06d}"


def record_name(number: int) -> str:
    """Return the file name of a record."""
    return f"{number:08d}"


@cache
def _let_come(path: str) -> None:
    """Wait for a name as long as a network file system may hide it, once in a process."""
    for pause_s in PAUSES_S:
        if os.path.lexists(path):
            return
        SystemClock().sleep(pause_s)


class SharedDirStore:
    """A `Store` in a directory that all nodes see.

    Args:
        root: the run directory; must exist.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._is_coarse: bool | None = None  # not yet known

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` exclusively; see `Store.append`."""
        segment = os.path.join(log, segment_name(number))
        if number % SEGMENT_RECORDS == 0:
            with _errors_named(os.path.join(self.root, segment, record_name(number))):
                self.make_directory(segment)
        return self._publish(segment, record_name(number), value)

    def _publish(self, directory: str, name: str, value: bytes) -> bool:
        path = os.path.join(self.root, directory, name)
        with _errors_named(path):
            is_ours = self._in(directory, lambda: files.publish_new(path, value))
        if is_ours:
            self._show(os.path.dirname(path))
        return is_ours

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`; see `Store.read_after`."""
        found: list[tuple[int, bytes]] = []
        directory = os.path.join(self.root, log)
        with _errors_named(directory):
            wanted = number + 1
            while self._segment_exists(directory, wanted):
                segment = os.path.join(directory, segment_name(wanted))
                got = _read_run(segment, wanted)
                found += got
                wanted += len(got)
                if not got or wanted % SEGMENT_RECORDS:
                    break
        return found

    def is_removed(self, log: str, number: int) -> bool:
        """Tell whether a record was removed: later ones are there, and it does not come into sight.

        Looks longer than a network file system shows a later name without an earlier one; once in a process.
        """
        segment = os.path.join(self.root, log, segment_name(number))
        path = os.path.join(segment, record_name(number))
        with _errors_named(segment):
            if not self._has_later(log, number):  # nor is it looked for by name, see `make_directory`
                return False
            _let_come(path)
            return self._has_later(log, number) and not os.path.lexists(path)

    def _has_later(self, log: str, number: int) -> bool:
        """Tell whether records after a number are there; a segment is made when the one before is full."""
        directory = os.path.join(self.root, log)
        segments = files.list_names(directory)
        if any(name > segment_name(number) for name in segments if name.isdigit()):
            return True
        here = segment_name(number)
        names = files.list_names(os.path.join(directory, here)) if here in segments else []
        return any(name > record_name(number) for name in names if name.isdigit())

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        path = os.path.join(self.root, directory, name)
        with _errors_named(path):
            self._in(directory, lambda: files.replace(path, value))

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        path = os.path.join(self.root, directory, name)
        with _errors_named(path):
            return files.read(path, limit=_MOST_BYTES)

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively; see `Store.create`."""
        return self._publish(directory, name, value)

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> list[str]:
        """Wait for other names; see `Store.wait`.

        A change by this machine is seen at once where inotify works, everything else by looking.
        """
        from hpc_elastic.store.watch import Watch  # noqa: PLC0415 - ctypes; only where something waits

        path = os.path.join(self.root, directory)
        known = list(known)
        clock = SystemClock()
        started = clock.monotonic()
        look_s, stir_at = _FIRST_LOOK_S, _STIR_AFTER_S
        with closing(Watch()) as watch, _errors_named(path):
            self.make_directory(directory)  # a name must not be looked for again and again
            while True:
                watch.add_directory(path)  # before looking, so that nothing falls in between
                names = files.list_names(path)
                waited = clock.monotonic() - started
                if names != known or waited >= timeout:
                    return names
                if waited >= stir_at and self._has_coarse_times():
                    stir_at = waited + _STIR_EVERY_S
                    files.stir(path)
                watch.wait(min(look_s, timeout - waited))
                look_s = min(look_s * _LOOK_GROWTH, _LOOK_S if waited < _LATE_S else _LATE_LOOK_S)

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        path = os.path.join(self.root, directory)
        with _errors_named(path):
            return files.list_names(path)

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        path = os.path.join(self.root, directory)
        with _errors_named(os.path.join(path, name)):
            if instead_of is None:
                self._in(directory, lambda: files.touch_name(path, name))
                self._show(path)
            elif instead_of != name:
                self._in(directory, lambda: files.rename_name(path, instead_of, name))

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        path = os.path.join(self.root, directory)
        with _errors_named(os.path.join(path, name)):
            files.remove_name(path, name)

    def _has_coarse_times(self) -> bool:
        if self._is_coarse is None:
            from hpc_elastic.store.mount import mount_at  # noqa: PLC0415 - once, and not by a reader

            self._is_coarse = mount_at(self.root).has_coarse_times
        return self._is_coarse

    def _show(self, path: str) -> None:
        """Make sure that a process that has just listed a directory does not miss the new name for ever.

        A second change, one step of the directory's times later, is seen by all. It is only a help:
        the name stands, so that no error is raised. A name that is gone may be seen for longer.
        """
        if self._has_coarse_times():
            SystemClock().sleep(_STEP_S)
            with suppress(OSError):
                os.utime(path)

    def make_directory(self, directory: str) -> None:
        """Make a directory and those between it and the root, private to their owner, if it is absent.

        A network file system may go on for half a minute not to see a directory that it has looked
        for in vain; making it ends that.
        """
        path = self.root
        for part in directory.split("/"):
            above, path = path, os.path.join(path, part)
            if make_directory(path):
                self._show(above)

    def _in(self, directory: str, act: Callable[[], _T]) -> _T:
        """Do something in a directory, which is made if it is absent.

        One that several clients make at the same moment may be absent again for a moment; see `directories`.
        """
        for pause_s in (0.0, *PAUSES_S):
            try:
                return act()
            except FileNotFoundError:
                files.retry(lambda: os.stat(self.root))  # a run that was removed is not made again
            with suppress(FileNotFoundError):
                self.make_directory(directory)
            SystemClock().sleep(pause_s)
        return act()

    @staticmethod
    def _segment_exists(directory: str, number: int) -> bool:
        """Tell whether a segment is there, without looking up a name that may not exist yet."""
        if number % SEGMENT_RECORDS > 1:
            return True
        return segment_name(number) in files.list_names(directory)


def _read_run(segment: str, first: int) -> list[tuple[int, bytes]]:
    """Return the records of one segment from `first` on, up to the first gap."""
    names = set(files.list_names(segment))
    got: list[tuple[int, bytes]] = []
    number = first
    while record_name(number) in names and number // SEGMENT_RECORDS == first // SEGMENT_RECORDS:
        path = os.path.join(segment, record_name(number))
        value = files.read(path, limit=_MOST_BYTES)
        if value is None:  # listed but not visible by name yet: the next look gets it
            break
        got.append((number, value))
        number += 1
    return got


@contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the path and the thing to look at."""
    try:
        yield
    except UnfitFileError:  # it stays so, however long a waiter waits
        raise
    except OSError as error:
        hint = _HINTS.get(error.errno, "")
        raise StoreError(f"{path}: {error.strerror}{hint}", errno=error.errno) from error
