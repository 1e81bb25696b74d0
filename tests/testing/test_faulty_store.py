"""The faulty store keeps the contract without faults, and fails as planned with them."""

from __future__ import annotations

import errno
import threading

import pytest

from hpc_elastic.errors import StoreError
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.faulty_store import (
    Delay,
    FaultyStore,
    LoseReply,
    Meanwhile,
    RandomFaults,
    Refuse,
    Script,
    Stale,
)
from tests.store.contract import StoreContract


class TestFaultyStore(StoreContract):
    """`FaultyStore` without faults is a `Store`."""

    @pytest.fixture
    def store(self, memory_store: MemoryStore) -> FaultyStore:
        """Return an empty store in which nothing goes wrong."""
        return FaultyStore(memory_store)


def test_a_refused_operation_is_not_done(memory_store: MemoryStore) -> None:
    """The error comes before the effect, with the number that was asked for, and only once."""
    store = FaultyStore(memory_store, Script(("create", Refuse(errno.ENOSPC))))
    with pytest.raises(StoreError, match="No space left") as caught:
        store.create("kv", "a", b"1")
    assert errno.ENOSPC == caught.value.errno
    assert [] == memory_store.list("kv")
    assert store.create("kv", "a", b"1")


def test_a_lost_reply_hides_what_was_done(memory_store: MemoryStore) -> None:
    """The error comes after the effect."""
    store = FaultyStore(memory_store, Script(("append", LoseReply())))
    with pytest.raises(StoreError):
        store.append("journal", 1, b"1")
    assert [(1, b"1")] == memory_store.read_after("journal", 0)


def test_a_delay_takes_time(memory_store: MemoryStore, clock: FakeClock) -> None:
    """A delayed operation is done after its time."""
    before = clock.monotonic()
    FaultyStore(memory_store, Script(("put", Delay(2.5))), clock).put("nodes", "a", b"1")
    assert before + 2.5 == clock.monotonic()
    assert b"1" == memory_store.get("nodes", "a")


@pytest.mark.parametrize("before", [True, False])
def test_something_happens_meanwhile(memory_store: MemoryStore, before: bool) -> None:
    """What happens meanwhile sees the world before or after the operation."""
    seen: list[list[str]] = []
    happening = Meanwhile(lambda: seen.append(memory_store.list("members")), before=before)
    FaultyStore(memory_store, Script(("mark", happening))).mark("members", "a")
    assert [[] if before else ["a"]] == seen


def test_a_stall_lasts_until_it_is_ended(memory_store: MemoryStore) -> None:
    """A stalled operation is done when somebody says so."""
    goes_on = threading.Event()
    store = FaultyStore(memory_store, Script(("create", Meanwhile(goes_on.wait))))
    writer = threading.Thread(target=store.create, args=("kv", "a", b""))
    writer.start()
    assert [] == memory_store.list("kv")
    goes_on.set()
    writer.join()
    assert ["a"] == memory_store.list("kv")


def test_a_stale_listing_is_an_older_one(memory_store: MemoryStore) -> None:
    """A stale reading returns what was read before, but nothing older than this store's own writing."""
    plan = Script(("list", None), ("list", Stale()), ("list", None), ("list", Stale()))
    store = FaultyStore(memory_store, plan)
    assert [] == store.list("members")
    memory_store.mark("members", "a")
    assert [] == store.list("members")
    assert ["a"] == store.list("members")
    store.mark("members", "b")
    assert ["a", "b"] == store.list("members")
    assert plan.is_over


def test_a_seed_decides() -> None:
    """The same seed gives the same faults; without errors nothing fails."""
    asked = [("create", "kv"), ("list", "kv")] * 50
    plans = [RandomFaults(7, 0.5), RandomFaults(7, 0.5)]
    first, second = ([plan(*one) for one in asked] for plan in plans)
    assert first == second
    kinds = {type(fault) for fault in first}
    assert {type(None), Delay, Stale, Refuse, LoseReply} == kinds
    harmless = RandomFaults(7, 1, kinds=(Delay, Stale))
    assert {Delay, Stale} == {type(harmless(*one)) for one in asked}
