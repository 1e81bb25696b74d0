"""What every key-value store with torch's interface must do; ours and torch's own run these tests."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

SHORT = timedelta(seconds=0.05)
LONG = timedelta(seconds=50)
TOO_LATE = (TimeoutError, RuntimeError)  # ours, and torch's DistStoreError

KEYS = ["a", "a b", "a/b", "/", "..", ".hidden", "é", "%2F", "a+00000001", "x+deleted", "k" * 10_000, "~"]


class KeyValueContract:
    """Tests of a key-value store.

    A subclass provides the fixtures `kv`, empty at the start, and `other`, another client of it.
    """

    def test_a_value_is_read_back(self, kv: Any, other: Any) -> None:
        """Text and bytes are read as bytes, also by another client."""
        kv.set("text", "é")
        kv.set("bytes", b"\x00\xff\n")
        assert b"\xc3\xa9" == other.get("text")
        assert b"\x00\xff\n" == other.get("bytes")

    def test_the_last_value_counts(self, kv: Any, other: Any) -> None:
        """Whoever sets a key, everybody reads the last value."""
        for number in range(12):
            (kv if number % 2 else other).set("a", str(number))
            assert str(number).encode() == kv.get("a") == other.get("a")

    def test_a_value_may_be_empty(self, kv: Any, other: Any) -> None:
        """An empty value is a value."""
        kv.set("a", "")
        assert b"" == other.get("a")
        assert other.check(["a"])

    @pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:12])
    def test_any_key(self, kv: Any, other: Any, key: str) -> None:
        """A key may be any text; it is another key than all others."""
        kv.set(key, "1")
        assert b"1" == other.get(key)
        assert other.check([key])
        assert not other.check([key + "x"])
        assert [key] == _keys_of(other)

    def test_a_key_may_be_bytes(self, kv: Any, other: Any) -> None:
        """A key as bytes is the key of the text they stand for."""
        kv.set("é".encode(), "1")
        assert b"1" == other.get("é")

    def test_large_values(self, kv: Any, other: Any) -> None:
        """A value of a few megabytes comes back whole."""
        value = bytes(range(256)) * 8192
        kv.set("a", value)
        assert value == other.get("a")

    def test_adding_counts(self, kv: Any, other: Any) -> None:
        """Adding starts at 0, goes up and down, and the number is read as decimal text."""
        assert 5 == kv.add("n", 5)
        assert -1 == other.add("n", -6)
        assert b"-1" == kv.get("n")
        assert [*range(20)] == [(kv if number % 3 else other).add("n", 1) for number in range(20)]

    def test_adding_starts_from_what_was_set(self, kv: Any) -> None:
        """A number that was set as text can be added to; an empty one is 0."""
        kv.set("n", "40")
        assert 42 == kv.add("n", 2)
        kv.set("n", "")
        assert 1 == kv.add("n", 1)

    def test_adding_has_64_bits(self, kv: Any) -> None:
        """Numbers of 64 bits are kept exactly."""
        assert 2**62 == kv.add("n", 2**62)
        assert 2**62 + 2**61 == kv.add("n", 2**61)

    def test_appending(self, kv: Any, other: Any) -> None:
        """Appending makes a key, or makes its value longer; nothing is something, too."""
        kv.append("a", "1")
        other.append("a", b"2\x00")
        kv.append("a", "")
        assert b"12\x00" == other.get("a")
        kv.append("b", "")
        assert other.check(["b"])

    @pytest.mark.parametrize(
        ("before", "expected", "answer", "after"),
        [
            (None, "", b"new", b"new"),
            (None, "old", b"old", None),
            ("old", "", b"old", b"old"),
            ("old", "old", b"new", b"new"),
            ("old", "other", b"old", b"old"),
            ("", "", b"new", b"new"),
            ("", "old", b"", b""),
        ],
    )
    def test_compare_set(
        self, kv: Any, before: str | None, expected: str, answer: bytes, after: bytes | None
    ) -> None:
        """A key is set if it has the expected value, or is absent and nothing is expected."""
        if before is not None:
            kv.set("a", before)
        assert answer == kv.compare_set("a", expected, "new")
        assert kv.check(["a"]) == (after is not None)
        if after is not None:
            assert after == kv.get("a")

    def test_checking(self, kv: Any, other: Any) -> None:
        """Checking tells whether all keys are there; it never waits."""
        kv.set("a", "1")
        assert other.check(["a"])
        assert not other.check(["a", "b"])
        assert other.check([])

    def test_many_at_once(self, kv: Any, other: Any) -> None:
        """Several keys are set and read in the order they are given in."""
        kv.multi_set(["b", "a", "c"], ["2", "1", "3"])
        assert [b"1", b"2", b"3", b"1"] == other.multi_get(["a", "b", "c", "a"])
        assert [] == other.multi_get([])

    def test_deleting(self, kv: Any, other: Any) -> None:
        """A deleted key is absent until it is set again; deleting what is absent says so."""
        kv.set("a", "1")
        assert b"1" == other.get("a")
        assert kv.delete_key("a")
        assert not other.check(["a"])
        assert not kv.check(["a"])
        assert not other.delete_key("a")
        assert not other.delete_key("b")
        other.set("a", "2")
        assert kv.check(["a"])
        assert b"2" == kv.get("a")

    def test_a_deleted_key_starts_anew(self, kv: Any, other: Any) -> None:
        """What follows a deletion finds the key absent."""
        kv.add("n", 5)
        assert other.delete_key("n")
        assert 1 == kv.add("n", 1)
        kv.delete_key("n")
        assert b"new" == other.compare_set("n", "", "new")
        kv.delete_key("n")
        kv.append("n", "x")
        assert b"x" == other.get("n")

    def test_a_deleted_key_is_waited_for(self, kv: Any, other: Any) -> None:
        """Waiting for a key that was deleted is waiting for one that never was."""
        kv.set("a", "1")
        kv.delete_key("a")
        with pytest.raises(TOO_LATE):
            other.wait(["a"], SHORT)

    def test_keys_are_listed(self, kv: Any, other: Any) -> None:
        """All keys that have a value are listed, once each."""
        assert [] == _keys_of(kv)
        kv.set("a", "1")
        kv.set("a", "2")
        kv.set("k" * 10_000, "3")
        kv.add("n", 1)
        kv.set("gone", "4")
        kv.delete_key("gone")
        assert ["a", "k" * 10_000, "n"] == _keys_of(other)
        assert 3 == other.num_keys() - self.own_keys

    own_keys = 0  # keys that a store makes for itself

    def test_waiting_for_what_is_there(self, kv: Any, other: Any) -> None:
        """Whoever waits for keys that are there, or for none, goes on at once."""
        kv.multi_set(["a", "b"], ["1", "2"])
        other.wait(["a", "b"])
        other.wait(["b", "a"], LONG)
        other.wait([])

    def test_waiting_ends_with_an_error(self, kv: Any) -> None:
        """Whoever waits in vain gets an error when the time given, or the store's, is over."""
        kv.set("a", "1")
        with pytest.raises(TOO_LATE):
            kv.wait(["a", "b"], SHORT)
        kv.set_timeout(SHORT)
        assert kv.timeout == SHORT
        with pytest.raises(TOO_LATE):
            kv.wait(["a", "b"])
        with pytest.raises(TOO_LATE):
            kv.get("b")
        with pytest.raises(TOO_LATE):
            kv.multi_get(["a", "b"])

    def test_getting_waits(self, kv: Any, other: Any) -> None:
        """Getting a key that is absent waits until another client sets it."""
        values: list[bytes] = []
        reader = threading.Thread(target=lambda: values.append(other.get("a")))
        reader.start()
        kv.set("a", "1")
        reader.join()
        assert [b"1"] == values

    def test_waiting_for_all(self, kv: Any, other: Any) -> None:
        """Waiting ends when the last key is there, however it was made."""
        done: list[list[bytes]] = []

        def read() -> None:
            other.wait(["a", "b", "c", "d"], LONG)
            done.append(other.multi_get(["a", "b", "c", "d"]))

        reader = threading.Thread(target=read)
        reader.start()
        kv.set("a", "1")
        kv.add("b", 2)
        kv.append("c", "3")
        assert not done
        kv.compare_set("d", "", "4")
        reader.join()
        assert [[b"1", b"2", b"3", b"4"]] == done

    def test_a_clone_shares_the_keys(self, kv: Any) -> None:
        """A clone is another client of the same keys."""
        clone = kv.clone()
        kv.set("a", "1")
        assert b"1" == clone.get("a")
        assert 1 == clone.add("n", 1)
        assert 2 == kv.add("n", 1)

    def test_the_extended_interface_is_there(self, kv: Any) -> None:
        """The store says that it can append and do many keys at once."""
        assert kv.has_extended_api()

    def test_queues(self, kv: Any, other: Any) -> None:
        """Values come out of a queue as they went in, the oldest first, each once."""
        kv.queue_push("q", "é")
        other.queue_push("q", b"\x00\n2\n")
        kv.queue_push("q", "")
        assert 3 == other.queue_len("q")
        assert other.check(["q"])
        other.wait(["q"], SHORT)
        taken = [kv.queue_pop("q"), other.queue_pop(key="q", block=False), kv.queue_pop("q", False)]
        assert [b"\xc3\xa9", b"\x00\n2\n", b""] == taken
        assert 0 == kv.queue_len("q") == kv.queue_len("never")
        assert not other.check(["q"])

    def test_an_empty_queue(self, kv: Any) -> None:
        """Who does not want to wait gets an error at once; who does gets one when time is over."""
        for name in ("never", "q"):
            if name == "q":
                kv.queue_push("q", "1")
                kv.queue_pop("q")
            with pytest.raises(RuntimeError) as caught:
                kv.queue_pop(name, block=False)
            assert "QueueEmptyError" == type(caught.value).__name__
        kv.set_timeout(SHORT)
        with pytest.raises(TOO_LATE):
            kv.queue_pop("q")

    def test_a_queue_is_waited_for(self, kv: Any, other: Any) -> None:
        """Who waits for an empty queue gets what another client puts into it."""
        values: list[bytes] = []
        reader = threading.Thread(target=lambda: values.append(other.queue_pop("q")))
        reader.start()
        kv.queue_push("q", "1")
        reader.join()
        assert [b"1"] == values

    def test_barriers(self, kv: Any, other: Any) -> None:
        """All who come to a barrier leave it together, one alone does not."""
        kv.barrier("alone", 1)
        kv.barrier("alone", 1, LONG)
        waiting = threading.Thread(target=lambda: other.barrier("b", 2, LONG))
        waiting.start()
        kv.barrier("b", 2)
        waiting.join()
        with pytest.raises(TOO_LATE):
            kv.barrier(key="c", world_size=2, timeout=SHORT)

    @pytest.mark.parametrize("call", ["get", "set_key", "set_value", "check", "wait"])
    def test_wrong_types_are_refused(self, kv: Any, call: str) -> None:
        """What is neither text nor bytes is no key and no value, and one key is no list of keys."""
        calls = {
            "get": lambda: kv.get(1),
            "set_key": lambda: kv.set(1, "1"),
            "set_value": lambda: kv.set("a", 1),
            "check": lambda: kv.check("a"),
            "wait": lambda: kv.wait("a"),
        }
        with pytest.raises(TypeError):
            calls[call]()

    def test_nothing_is_added_to_a_word(self, kv: Any) -> None:
        """What is no number cannot be added to, and stays."""
        self.must_refuse_words(kv)

    def must_refuse_words(self, kv: Any) -> None:
        """Add to a word."""
        kv.set("a", "word")
        with pytest.raises(ValueError):  # noqa: PT011 - torch says "stoll"
            kv.add("a", 1)
        assert b"word" == kv.get("a")


def _keys_of(kv: Any) -> list[str]:
    return sorted(kv.list_keys())
