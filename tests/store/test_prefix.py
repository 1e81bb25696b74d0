"""A prefix store is a part of another store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hpc_elastic.store.kv.store import KeyValueStore, PrefixStore
from hpc_elastic.store.memory import MemoryStore


@pytest.fixture
def kv(memory_store: MemoryStore) -> KeyValueStore:
    """Return an empty store."""
    return KeyValueStore(memory_store, "kv")


def test_keys_begin_with_the_prefix(kv: KeyValueStore) -> None:
    """The other store has the keys, below the prefix and a slash."""
    PrefixStore("a", PrefixStore("b", kv)).set("c", "1")
    assert ["b/a/c"] == kv.list_keys()


def test_parts_are_separate(kv: KeyValueStore) -> None:
    """Parts with different prefixes do not see each other's keys."""
    parts = [PrefixStore(prefix, kv) for prefix in ("", "a", "aa")]
    for number, part in enumerate(parts):
        part.set("key", str(number))
    assert [b"0", b"1", b"2"] == [part.get("key") for part in parts]
    assert [["key"]] * 3 == [part.list_keys() for part in parts]


def test_the_timeout_is_the_stores(kv: KeyValueStore) -> None:
    """Part and store have one timeout."""
    part = PrefixStore(prefix="a", store=kv)
    part.set_timeout(timedelta(seconds=3))
    assert timedelta(seconds=3) == kv.timeout == part.timeout
    assert part.underlying_store is kv
    assert part.counts_writes
    assert "PrefixStore('a', KeyValueStore('kv'))" == repr(part)


def test_errors_name_the_whole_key(kv: KeyValueStore) -> None:
    """A timeout names the key as the other store has it."""
    with pytest.raises(TimeoutError, match="key 'a/x'"):
        PrefixStore("a", kv).wait(["x"], 0)
