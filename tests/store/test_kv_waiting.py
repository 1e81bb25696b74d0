"""How long a key-value store waits, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from hpc_elastic.errors import StoreTimeoutError
from hpc_elastic.store.kv.store import KeyValueStore, seconds
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock

LONG = timedelta(seconds=50)
NOW = timedelta(0)


@pytest.fixture
def kv(memory_store: MemoryStore) -> KeyValueStore:
    """Return an empty store that would wait longer than a test may."""
    return KeyValueStore(memory_store, "kv", timeout=LONG)


def test_writes_are_counted(kv: KeyValueStore) -> None:
    """Each write counts, also one that changes nothing; a key that nobody has written has none."""
    assert [1, 2, 3] == [kv.write("a", value) for value in ("1", "1", "2")]
    assert [3, 0] == kv.written(["a", "b"])


def test_as_many_writes_are_waited_for_as_asked(kv: KeyValueStore) -> None:
    """Not one more, and not one less; who waits in vain is told which keys are missing."""
    kv.write("a", "1")
    kv.write("a", "2")
    kv.write("b", "1")
    kv.wait_written(["a", "b"], 1, NOW)
    kv.wait_written(["a"], 2, NOW)
    with pytest.raises(StoreTimeoutError) as caught:
        kv.wait_written(["a", "b"], 2, NOW)
    assert ("b",) == caught.value.missing


@pytest.mark.parametrize("given", [0.01, timedelta(seconds=0.01)])
def test_the_time_given_counts_before_that_of_the_store(kv: KeyValueStore, given: timedelta | float) -> None:
    """Whether it is a number or a timedelta, and whatever is waited for."""
    with pytest.raises(StoreTimeoutError, match=r"not within 0\.01 s"):
        kv.wait_written(["a"], 1, given)
    with pytest.raises(StoreTimeoutError, match=r"not within 0\.01 s"):
        kv.wait(["a"], given)
    with pytest.raises(StoreTimeoutError, match=r"not within 0\.01 s"):
        kv.barrier("b", 2, given)


def test_without_a_time_that_of_the_store_counts(kv: KeyValueStore) -> None:
    """It can be changed."""
    kv.set_timeout(0.02)
    for wait in (
        lambda: kv.wait_written(["a"], 1),
        lambda: kv.wait(["a"]),
        lambda: kv.get("a"),
        lambda: kv.queue_pop("a"),
        lambda: kv.barrier("b", 2),
    ):
        with pytest.raises(StoreTimeoutError, match=r"not within 0\.02 s"):
            wait()


def test_a_clone_waits_as_long(kv: KeyValueStore) -> None:
    """And its messages name the same place."""
    kv.set_timeout(7)
    assert (timedelta(seconds=7), repr(kv)) == (kv.clone().timeout, repr(kv.clone()))


@pytest.mark.parametrize("timeout", [-1, -0.1, "5", b"6", float("nan"), None, timedelta(seconds=-1)])
def test_a_timeout_is_a_span(timeout: float) -> None:
    """Text, less than nothing and what is no number are refused."""
    with pytest.raises(ValueError, match="timeout must be a timedelta or seconds"):
        seconds(timeout)


def test_no_time_and_all_time_are_spans() -> None:
    """Who does not want to wait says so, and who wants to wait for ever, too."""
    assert [0.0, 0.0, 1.5, float("inf")] == [seconds(one) for one in (0, NOW, 1.5, float("inf"))]


def test_who_says_nothing_waits_five_minutes(memory_store: MemoryStore) -> None:
    """As the stores of torch do."""
    assert timedelta(seconds=300) == KeyValueStore(memory_store, "kv").timeout


class Slowly(MemoryStore):
    """One in which a key is written each time that somebody has waited for ten seconds."""

    def __init__(self, clock: FakeClock, *keys: str) -> None:
        super().__init__()
        self._clock = clock
        self._keys = list(keys)

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> list[str]:  # noqa: ARG002 - the same call
        """Let ten seconds pass, and a key come."""
        self._clock.advance(10.0)
        KeyValueStore(self, directory).set(self._keys.pop(0), b"x")
        return self.list(directory)


@pytest.mark.parametrize(("keys", "paused"), [(("a",), False), (("a", "b"), True)])
def test_who_has_what_it_waits_for_pauses_no_more(keys: tuple[str, ...], *, paused: bool) -> None:
    """Only while a further key is missing."""
    clock = FakeClock()
    began = clock.monotonic()
    kv = KeyValueStore(Slowly(clock, *keys), "kv")
    kv._clock = clock  # type: ignore[assignment]
    kv.wait(list(keys))
    assert paused is (clock.monotonic() - began > 10.0 * len(keys))
