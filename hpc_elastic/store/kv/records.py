"""File names and records of the key-value store. Pure.

A key's file names are ``<encoded key>+<version>``. What is written under a name never changes; the
highest version counts. An empty file ``<encoded key>+deleted`` says that one of the key's versions
may be a deletion, so that nobody has to open the files of keys that were never deleted.

A record is one line of JSON, then the value::

    {"format":1,"by":"0.1.0","key":"a","version":3,"deleted":false,"length":2,"writers":{"5f0c…":3},"forgotten":0}
    42
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from hpc_elastic import __version__
from hpc_elastic.errors import DamagedError, InputError, StoreError
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
    """What the names in a directory tell."""

    names: list[str]
    latest: Mapping[str, int]  # encoded key -> highest version
    deleted: frozenset[str]  # encoded keys that may be deleted

    def older(self, encoded: str, version: int) -> list[str]:
        """Return the names of a key's versions up to one, the oldest first."""
        mine = [name for name in self.names if name.startswith(f"{encoded}+")]
        numbers = sorted(filter(None, (whole_number(name.rpartition("+")[2]) for name in mine)))
        return [version_name(encoded, number) for number in numbers if number <= version]


def parse_names(names: Iterable[str]) -> Listing:
    """Return what the names in a directory tell; names of other makers tell nothing."""
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
    writers: Mapping[str, int]  # who wrote a version up to this one, and which was their latest
    forgotten: int  # of versions up to this one the writers may be missing

    def successor(self, value: bytes, *, deleted: bool, writer: str) -> KeyRecord:
        """Return the record that follows this one."""
        version = self.version + 1
        writers = sorted({**self.writers, writer: version}.items(), key=lambda entry: entry[1])
        dropped = writers[:-KEPT_WRITERS]
        forgotten = dropped[-1][1] if dropped else self.forgotten
        return KeyRecord(self.key, version, value, deleted, dict(writers[-KEPT_WRITERS:]), forgotten)


def nothing_yet(key: bytes) -> KeyRecord:
    """Return what precedes the first record of a key."""
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
