"""A queue in one key."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import QueueEmptyError, StoreError
from hpc_elastic.store import DistError, DistStoreError
from hpc_elastic.store.kv.store import KeyValueStore, items_of, value_of
from hpc_elastic.store.memory import MemoryStore


@given(st.lists(st.binary()))
def test_items_come_back(items: list[bytes]) -> None:
    """Whatever bytes the items have."""
    assert items == items_of(b"q", value_of(items))


def test_an_absent_key_is_an_empty_queue() -> None:
    """Nobody has put anything in."""
    assert [] == items_of(b"q", None)


@pytest.mark.parametrize("value", [b"", b"word", b"queue 1\n5\nabc", b"queue 1\nx\nabc", b"queue 1\n3"])
def test_what_is_no_queue_is_told(value: bytes) -> None:
    """A value that somebody has set is not taken for a queue, and damage not for items."""
    with pytest.raises(StoreError, match="key 'q' has a value that is no queue"):
        items_of(b"q", value)


def test_a_value_is_left_alone(memory_store: MemoryStore) -> None:
    """Using a key for both is an error that changes nothing."""
    store = KeyValueStore(memory_store, "kv")
    store.set("q", "word")
    for call in (
        lambda: store.queue_push("q", "1"),
        lambda: store.queue_pop("q"),
        lambda: store.queue_len("q"),
    ):
        with pytest.raises(StoreError, match="no queue"):
            call()
    assert b"word" == store.get("q")


def test_each_item_is_taken_once(memory_store: MemoryStore) -> None:
    """Several clients that push and pop at the same time lose nothing and get nothing twice."""
    taken: list[bytes] = []

    def work(number: int) -> None:
        store = KeyValueStore(memory_store, "kv", timeout=timedelta(seconds=50))
        for item in range(20):
            store.queue_push("q", f"{number}-{item}")
            taken.append(store.queue_pop("q"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(f"{number}-{item}".encode() for number in range(4) for item in range(20)) == sorted(taken)


def test_errors_are_of_torchs_family(memory_store: MemoryStore) -> None:
    """Code that catches torch's errors by their names, or as RuntimeErrors, goes on working."""
    store = KeyValueStore(memory_store, "kv")
    for kind in (QueueEmptyError, DistStoreError, DistError, RuntimeError, TimeoutError):
        with pytest.raises(kind, match="queue 'q' is empty"):
            store.queue_pop("q", block=False)


@pytest.mark.parametrize("world_size", [0, -1])
def test_a_barrier_is_for_somebody(memory_store: MemoryStore, world_size: int) -> None:
    """Nobody can come to a barrier for nobody."""
    with pytest.raises(ValueError, match="world_size must be at least 1"):
        KeyValueStore(memory_store, "kv").barrier("b", world_size)


def test_who_finds_a_queue_empty_writes_nothing(memory_store: MemoryStore) -> None:
    """Else those who look again and again would wake all who wait for a value."""
    store = KeyValueStore(memory_store, "kv")
    for written in (0, 2):
        for _ in range(2):
            with pytest.raises(QueueEmptyError):
                store.queue_pop("q", block=False)
            assert [written] == store.written(["q"])
        if not written:
            store.queue_push("q", "1")
            assert b"1" == store.queue_pop("q")
