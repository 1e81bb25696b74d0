"""The versions of a key, and how writers agree on them.

A write lists the directory, reads the key's highest version `h` and creates version `h + 1`, which one
writer alone can do as long as nobody takes names away. But old versions are taken away, so a writer
that was stopped between listing and creating may create a number that was used long ago. Therefore:

1. The highest version of a key is never taken away, so a number is free only if it is new or if a
   higher version exists.
2. After creating version `v` a writer lists again. File systems may show a machine an old listing,
   but none that is older than what the machine itself wrote there (a listing without `v` is not used).
   If `v` is the highest there, it was new: the write counts.
3. Else somebody has written a higher version, before (then ours is a late ghost that nobody reads,
   since readers take the highest) or after (then it counts, and the higher one was computed from it).
   Every record names the latest version of each writer before it, so the highest record tells: if it
   has our version it counts, if not the write is done again.
4. A record remembers 1024 writers. Only if a writer stands still while more than that many others
   write the same key may there be no answer; then the write ends with an error that says so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.store.kv import records
from hpc_elastic.store.kv.records import KeyRecord, Listing, encode_key
from hpc_elastic.store.protocol import Store

_LARGEST = 1 << 16  # values of more bytes are read again

_UNSEEN = 0, None  # what is known of a key before its first version was seen
_LOOKS = 12  # looks at a listing that cannot be right yet, before giving up ...
_FIRST_PAUSE_S = 0.001  # ... the pauses between them double from here to 4 s in all


class ChangeWish(NamedTuple):
    """What a key shall be."""

    value: bytes
    deleted: bool = False


Change = Callable[[bytes | None], ChangeWish | None]  # from the value (None: absent); None: leave it


class Versions:
    """What one client knows and does of the keys in a directory.

    Args:
        store: where everything is kept.
        directory: the directory in it.
        place: names the directory in messages.
    """

    def __init__(self, store: Store, directory: str, place: str) -> None:
        self._store = store
        self._directory = directory
        self._place = place
        self._clock = SystemClock()
        self._known = Known()
        self._writer = WriterName()

    def attempt(self, key: bytes, change: Change) -> KeyRecord | None:
        """Change a key unless another writer is faster; None if one was."""
        before = self.current(key)
        wish = change(None if before.deleted else before.value)
        if wish is None:
            return before
        me = self._writer.current()
        after = before.successor(wish.value, deleted=wish.deleted, writer=me)
        version = after.version
        encoded = encode_key(key)
        name = records.version_name(encoded, version)
        if not self._store.create(self._directory, name, records.encode_record(after)):
            self._known.saw(encoded, version)  # whatever an old listing tells
            return None
        listing = self._look_for(encoded, version)
        if not self._counts(after, listing, me):
            return None
        self._known.remember(encoded, after)
        self._prune(encoded, version, listing, kept=1 if wish.deleted else records.KEPT_VERSIONS)
        return after

    def _counts(self, mine: KeyRecord, listing: Listing, me: str) -> bool:
        """Tell whether a version that was created counts; see the top of this file, 2 to 4."""
        if listing.latest[encode_key(mine.key)] == mine.version:
            return True
        newest = self.current(mine.key, listing)
        if newest.writers.get(me) == mine.version:
            return True
        if mine.version > newest.forgotten:
            return False
        raise StoreError(
            f"{self._place}: cannot tell whether writing key {records.shown(mine.key)} took effect: this "
            f"process stood still while more than {records.KEPT_WRITERS} others wrote the key"
        )

    def _prune(self, encoded: str, version: int, listing: Listing, *, kept: int) -> None:
        try:
            for name in listing.older(encoded, version - kept):
                self._store.unmark(self._directory, name)
        except StoreError:
            pass  # the next writer does it

    def look(self) -> Listing:
        """Return what is listed now."""
        return records.parse_names(self._store.list(self._directory))

    def _look_for(self, encoded: str, version: int) -> Listing:
        """Return a listing that is younger than a version which this process has created."""
        for pause_s in self._pauses():
            listing = self.look()
            if listing.latest.get(encoded, 0) >= version:
                return listing
            self._clock.sleep(pause_s)
        raise StoreError(
            f"{self._place}: {records.version_name(encoded, version)} was written but is not listed: "
            "this machine sees an old directory"
        )

    @staticmethod
    def _pauses() -> Iterator[float]:
        return (_FIRST_PAUSE_S * 2**look for look in range(_LOOKS))

    def current(self, key: bytes, listing: Listing | None = None) -> KeyRecord:
        """Return the newest record of a key; one with version 0 if there was never any."""
        encoded = encode_key(key)
        version = 0
        for pause_s in self._pauses():
            listing = listing or self.look()
            version = self._latest(encoded, listing)
            record = self._read(encoded, version, key) if version else records.nothing_yet(key)
            if record is not None:
                return record
            listing = None  # the version was taken away meanwhile: there is a newer one
            self._clock.sleep(pause_s)
        raise StoreError(
            f"{self._place}: key {records.shown(key)} has version {version}, which cannot be opened"
        )

    def _latest(self, encoded: str, listing: Listing) -> int:
        """Return a key's newest version; a listing may be older than what this process knows."""
        return max(listing.latest.get(encoded, 0), self._known.version(encoded))

    def _read(self, encoded: str, version: int, key: bytes | None = None) -> KeyRecord | None:
        record = self._known.record(encoded, version)
        if record is None:
            name = records.version_name(encoded, version)
            data = self._store.get(self._directory, name)
            if data is None:
                return None
            path = f"{self._place}/{name}"
            record = records.decode_record(data, path, key)
            if record.version != version:
                raise StoreError(f"{path} is damaged: it holds version {record.version}")
            self._known.remember(encoded, record)
        return record

    def is_there(self, key: bytes, listing: Listing) -> bool:
        """Tell whether a key has a value; opens only files of keys that may be deleted."""
        encoded = encode_key(key)
        version = self._latest(encoded, listing)
        if not version:
            return False
        # the deletion of a known version may be missing in the listing, that of a listed one is not
        if encoded in listing.deleted or version > listing.latest.get(encoded, 0):
            return not self.current(key, listing).deleted
        return True

    def written(self, keys: list[bytes], listing: Listing) -> list[int]:
        """Return how often each key was written."""
        return [self._latest(encode_key(key), listing) for key in keys]

    def key_of(self, encoded: str, listing: Listing) -> bytes | None:
        """Return the key of a name; None if it is too long for the name and was deleted meanwhile."""
        key = records.decode_key(encoded)
        if key is None:
            record = self._read(encoded, self._latest(encoded, listing))
            key = record.key if record else None
        return key


class Known:
    """The newest version of each key that this client has seen, so that it never sees an older one."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, KeyRecord | None]] = {}
        self._lock = threading.Lock()

    def version(self, encoded: str) -> int:
        """Return a key's newest version that was seen, 0 if none was."""
        return self._newest.get(encoded, _UNSEEN)[0]

    def record(self, encoded: str, version: int) -> KeyRecord | None:
        """Return the record of a version if it is remembered."""
        known, record = self._newest.get(encoded, _UNSEEN)
        return record if known == version else None

    def remember(self, encoded: str, record: KeyRecord) -> None:
        """Keep a version in mind unless a newer one is known."""
        with self._lock:
            if record.version >= self.version(encoded):
                self._newest[encoded] = (record.version, record if len(record.value) <= _LARGEST else None)

    def saw(self, encoded: str, version: int) -> None:
        """Keep in mind that there is a version, of whatever content."""
        with self._lock:
            if version > self.version(encoded):
                self._newest[encoded] = (version, None)


class WriterName(threading.local):
    """A name for this thread of this process, which nobody else has; a forked child gets a new one."""

    _process = 0
    _name = ""

    def current(self) -> str:
        """Return the name."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._name = os.urandom(6).hex()
        return self._name
