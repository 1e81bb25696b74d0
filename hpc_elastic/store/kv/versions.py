"""The file names, records and versions of the keys of a key-value store; writers agree on the newest.

A write lists the directory, reads the key's highest version `h` and creates version `h + 1`, which one
writer alone can do as long as no name is taken away. But old versions are taken away, so a writer
that was stopped between listing and creating may create a number that was used long ago. Therefore:

1. The highest version of a key is never taken away, so a number is free only if it is new or if a
   higher version exists.
2. After creating version `v` a writer lists again. File systems may show a machine an old listing,
   but none that is older than the machine's own writes there (a listing without `v` is not used).
   If `v` is the highest there, it was new: the write counts.
3. Else another writer has a higher version, from before (then ours is a late ghost that is never read,
   since readers take the highest) or after (then it counts, and the higher one was computed from it).
   Every record names the latest version of each writer before it, so the highest record tells: if it
   has our version it counts, if not the write is done again.
4. A record remembers 1024 writers. Only if a writer stands still while more than that many others
   write the same key may there be no answer; then the write ends with an error that says so.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from hpc_elastic import __version__
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import DamagedError, InputError, StoreError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.protocol import Store
from hpc_elastic.typed_json import Count, Prose, decode, parse_object, whole_number

FORMAT = 1
KEPT_VERSIONS = 8  # so many versions of a key stay, for readers that are behind
KEPT_WRITERS = 1024  # so many writers does a record remember, 18 bytes each
MAX_VALUE = 16 * 2**20  # bytes
_MAX_NAME = 180  # characters of an encoded key; file systems take 255
_SPECIAL = re.compile(rb"[^A-Za-z0-9_.-]|^\.")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_DELETED = "deleted"
_INT64 = range(-(2**63), 2**63)
_SHOWN_KEYS = 16

_LARGEST = 1 << 16  # values of more bytes are read again

_UNSEEN = 0, None  # knowledge of a key before its first version was seen
_LOOKS = 12  # looks at a listing that cannot be right yet, before giving up ...
_FIRST_PAUSE_S = 0.001  # ... the pauses between them double from here to 4 s in all


class ChangeWish(NamedTuple):
    """The new value of a key."""

    value: bytes
    deleted: bool = False


Change = Callable[[bytes | None], ChangeWish | None]  # from the value (None: absent); None: leave it


class Versions:
    """One client's knowledge of the keys in a directory, and its writes."""

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
        name = version_name(encoded, version)
        if not self._store.create(self._directory, name, encode_record(after)):
            self._known.saw(encoded, version)  # an old listing may tell less
            return None
        listing = self._look_for(encoded, version)
        if not self._counts(after, listing, me):
            return None
        self._known.remember(encoded, after)
        self._prune(encoded, version, listing, kept=1 if wish.deleted else KEPT_VERSIONS)
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
            f"{self._place}: cannot tell whether writing key {shown(mine.key)} took effect: this "
            f"process stood still while more than {KEPT_WRITERS} others wrote the key"
        )

    def _prune(self, encoded: str, version: int, listing: Listing, *, kept: int) -> None:
        try:
            for name in listing.older(encoded, version - kept):
                self._store.unmark(self._directory, name)
        except StoreError:
            pass  # the next writer does it

    def look(self) -> Listing:
        """Return the listing of now."""
        return parse_names(self._store.list(self._directory))

    def _look_for(self, encoded: str, version: int) -> Listing:
        """Return a listing that is younger than a version which this process has created."""
        for pause_s in self._pauses():
            listing = self.look()
            if listing.latest.get(encoded, 0) >= version:
                return listing
            self._clock.sleep(pause_s)
        raise StoreError(
            f"{self._place}: {version_name(encoded, version)} was written but is not listed: "
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
            record = self._read(encoded, version, key) if version else nothing_yet(key)
            if record is not None:
                return record
            listing = None  # the version was taken away meanwhile: there is a newer one
            self._clock.sleep(pause_s)
        raise StoreError(f"{self._place}: key {shown(key)} has version {version}, which cannot be opened")

    def _latest(self, encoded: str, listing: Listing) -> int:
        """Return a key's newest version; a listing may be older than this process's knowledge."""
        return max(listing.latest.get(encoded, 0), self._known.version(encoded))

    def _read(self, encoded: str, version: int, key: bytes | None = None) -> KeyRecord | None:
        record = self._known.record(encoded, version)
        if record is None:
            name = version_name(encoded, version)
            data = self._store.get(self._directory, name)
            if data is None:
                return None
            path = f"{self._place}/{name}"
            record = decode_record(data, path, key)
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
        key = decode_key(encoded)
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
        """Keep in mind that there is a version, of any content."""
        with self._lock:
            if version > self.version(encoded):
                self._newest[encoded] = (version, None)


class WriterName(threading.local):
    """A name for this thread of this process alone; a forked child gets a new one."""

    _process = 0
    _name = ""

    def current(self) -> str:
        """Return the name."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._name = os.urandom(6).hex()
        return self._name


def key_bytes(key: str | bytes) -> bytes:
    """Return a key as bytes.

    Raises:
        TypeError: it is neither text nor bytes.
    """
    return _bytes(key, "a key")


def value_bytes(key: bytes, value: str | bytes) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: it is neither text nor bytes.
    """
    return _bytes(value, f"the value of key {key_text(key)!r}")


def _bytes(value: str | bytes, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return value
    raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}: {value!r}")


def some_shown(keys: Sequence[bytes]) -> str:
    """Return keys for people; of many only the first."""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return f"key {', '.join(shown(key) for key in keys[:_SHOWN_KEYS])}{more}"


def added(key: bytes, before: bytes, value: int) -> bytes:
    """Return the value of a key after adding to its number.

    Raises:
        ValueError: it is no whole number, or the sum has more than 64 bits.
    """
    try:
        total = int(before) + value
    except ValueError:
        raise ValueError(f"the value of key {shown(key)} is no whole number: {before[:80]!r}") from None
    if total not in _INT64:
        raise ValueError(f"key {shown(key)} cannot be {total}: that is more than 64 bits")
    return str(total).encode()


def key_text(key: bytes) -> str:
    """Return a key as text; bytes that are no UTF-8 come back by `key_bytes`."""
    return key.decode("utf-8", "surrogateescape")


def shown(key: bytes) -> str:
    """Return a key for a message: quoted, and cut if it is long."""
    text = repr(key_text(key))
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME // 2]}… ({len(key)} bytes)"


def encode_key(key: bytes) -> str:
    """Return a key as a part of a file name: percent-encoded, or its hash if that is too long."""
    if len(key) <= _MAX_NAME:
        name = _SPECIAL.sub(lambda match: b"%%%02X" % ord(match[0]), key).decode("ascii")
        if len(name) <= _MAX_NAME:
            return name
    return f"%%{sha256(key).hexdigest()}"


def decode_key(encoded: str) -> bytes | None:
    """Return the key of an encoded name, or None if the name holds only its hash."""
    if encoded.startswith("%%"):
        return None
    return _ESCAPED.sub(
        lambda match: bytes.fromhex(match[1].decode()), encoded.encode("utf-8", "surrogateescape")
    )


def version_name(encoded: str, version: int) -> str:
    """Return the file name of a version of a key."""
    return f"{encoded}+{version:08d}"


def deleted_name(encoded: str) -> str:
    """Return the name that says that a key may be deleted."""
    return f"{encoded}+{_DELETED}"


class Listing(NamedTuple):
    """The facts in the names of a directory."""

    names: list[str]
    latest: Mapping[str, int]  # encoded key -> highest version
    deleted: frozenset[str]  # encoded keys that may be deleted

    def older(self, encoded: str, version: int) -> list[str]:
        """Return the names of a key's versions up to one, the oldest first."""
        mine = [name for name in self.names if name.startswith(f"{encoded}+")]
        numbers = sorted(filter(None, (whole_number(name.rpartition("+")[2]) for name in mine)))
        return [version_name(encoded, number) for number in numbers if number <= version]


def parse_names(names: Iterable[str]) -> Listing:
    """Return the facts in the names of a directory; names of other makers have none."""
    kept = list(names)
    latest: dict[str, int] = {}
    deleted = set()
    for name in kept:
        encoded, plus, version = name.rpartition("+")
        if plus and version == _DELETED:
            deleted.add(encoded)
        elif plus and (number := whole_number(version)):
            latest[encoded] = max(number, latest.get(encoded, number))
    return Listing(kept, latest, frozenset(deleted))


class _Header(NamedTuple):
    """The first line of a record's file."""

    key: Prose
    version: Count
    deleted: bool
    length: Count
    writers: dict[str, Count]
    forgotten: Count


class KeyRecord(NamedTuple):
    """One version of a key."""

    key: bytes
    version: int
    value: bytes
    deleted: bool
    writers: Mapping[str, int]  # writers of versions up to this one, each with its latest
    forgotten: int  # of versions up to this one the writers may be missing

    def successor(self, value: bytes, *, deleted: bool, writer: str) -> KeyRecord:
        """Return the record that follows this one."""
        version = self.version + 1
        writers = sorted({**self.writers, writer: version}.items(), key=lambda entry: entry[1])
        dropped = writers[:-KEPT_WRITERS]
        forgotten = dropped[-1][1] if dropped else self.forgotten
        return KeyRecord(self.key, version, value, deleted, dict(writers[-KEPT_WRITERS:]), forgotten)


def nothing_yet(key: bytes) -> KeyRecord:
    """Return the record before the first one of a key."""
    return KeyRecord(key, 0, b"", deleted=True, writers={}, forgotten=0)


def encode_record(record: KeyRecord) -> bytes:
    """Return the content of a record's file.

    Raises:
        InputError: the value is too large.
    """
    if len(record.value) > MAX_VALUE:
        raise InputError(
            f"the value of key {shown(record.key)} has {len(record.value)} bytes; "
            f"the key-value store takes at most {MAX_VALUE}",
            fix="write it to a file on the shared file system and store the file's path",
        )
    header = {
        "format": FORMAT,
        "by": __version__,
        "key": key_text(record.key),
        "version": record.version,
        "deleted": record.deleted,
        "length": len(record.value),
        "writers": dict(record.writers),
        "forgotten": record.forgotten,
    }
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + record.value


def decode_record(data: bytes, path: str, key: bytes | None = None) -> KeyRecord:
    """Return the record in a file.

    Args:
        data: the file's content.
        path: the file, for messages.
        key: the key that it must be of, if it is known.

    Raises:
        StoreError: the record is damaged, of another key, or of a newer version of this package.
    """
    head, newline, value = data.partition(b"\n")
    header = _header(head)
    written = header.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise StoreError(
            f"{path} was written by hpc_elastic {header.get('by', '?')} (format {written}); this is "
            f"hpc_elastic {__version__} (format {FORMAT}): use the newer one for all processes of the run"
        )
    try:
        found = decode(_Header, header)
    except DamagedError:
        raise StoreError(f"{path} is damaged: its first line is {head[:80]!r}") from None
    record = KeyRecord(
        key_bytes(found.key), found.version, value, found.deleted, found.writers, found.forgotten
    )
    if not newline or written != FORMAT or found.length != len(value):
        raise StoreError(f"{path} is damaged: {len(value)} bytes follow the first line {head[:80]!r}")
    if key is not None and record.key != key:
        raise StoreError(f"{path} is damaged: it holds key {shown(record.key)}, not {shown(key)}")
    return record


def _header(head: bytes) -> dict[str, Any]:
    try:
        return parse_object(head)
    except DamagedError:
        return {}
