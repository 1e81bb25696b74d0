"""Keys become file names and come back; records are told from what is damaged or too new."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import InputError, StoreError
from hpc_elastic.store.kv import versions
from hpc_elastic.store.kv.versions import (
    MAX_VALUE,
    decode_key,
    decode_record,
    deleted_name,
    encode_key,
    encode_record,
    nothing_yet,
    parse_names,
    version_name,
)

KEYS = st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode))


@given(KEYS)
def test_a_key_comes_back(key: bytes) -> None:
    """Every key is one visible name without a slash that a file system takes; short ones come back."""
    name = version_name(encode_key(key), 10**12)
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name) <= 255
    assert decode_key(encode_key(key)) in {key, None}
    if len(key) <= 60:
        assert key == decode_key(encode_key(key))


@given(st.sets(KEYS, min_size=2))
def test_keys_do_not_meet(keys: set[bytes]) -> None:
    """Two keys never have the same name."""
    assert len(keys) == len({encode_key(key) for key in keys})


@given(KEYS, st.binary(max_size=100), st.booleans())
def test_a_record_comes_back(key: bytes, value: bytes, deleted: bool) -> None:
    """What is written is read."""
    record = nothing_yet(key).successor(value, deleted=deleted, writer="a")
    assert record == decode_record(encode_record(record), "path", key)


def test_writers_are_remembered() -> None:
    """A record has the latest version of each writer before it."""
    record = nothing_yet(b"a")
    for writer in ("a", "b", "a", "c"):
        record = record.successor(b"", deleted=False, writer=writer)
    assert {"a": 3, "b": 2, "c": 4} == record.writers
    assert (4, 0) == (record.version, record.forgotten)


def test_names_tell_the_newest_version() -> None:
    """Of a key's versions the highest number counts, not the last in the order of names."""
    names = [version_name("a", number) for number in (1, 99_999_999, 100_000_000)] + [deleted_name("b")]
    listing = parse_names([*names, "a+x", "b", "+", "c+0", "c+²"])
    assert {"a": 100_000_000} == listing.latest
    assert {"b"} == listing.deleted
    assert names[:2] == listing.older("a", 99_999_999)


def test_a_newer_record_names_both_versions() -> None:
    """A record of a newer format says who wrote it and what to do."""
    data = b'{"format":2,"by":"9.9.9"}\nwhatever'
    with pytest.raises(StoreError, match=r"path was written by hpc_elastic 9\.9\.9 \(format 2\).*newer one"):
        decode_record(data, "path")


@pytest.mark.parametrize("cut", [0, 1, 20, 120, 150])
def test_a_cut_record_is_damaged(cut: int) -> None:
    """A record that ends early is damaged, wherever it was cut."""
    data = encode_record(nothing_yet(b"a").successor(b"x" * 60, deleted=False, writer="w"))
    with pytest.raises(StoreError, match="path is damaged"):
        decode_record(data[:cut], "path")
    with pytest.raises(StoreError, match="path is damaged"):
        decode_record(data + b"x", "path")


def test_a_record_of_another_key_is_damaged() -> None:
    """A record under another key's name is not taken for that key's."""
    data = encode_record(nothing_yet(b"a").successor(b"", deleted=False, writer="w"))
    with pytest.raises(StoreError, match="holds key 'a', not 'b'"):
        decode_record(data, "path", b"b")


def test_a_value_has_a_limit() -> None:
    """A value at the limit is taken; a larger one is refused with key, sizes and what to do."""
    record = nothing_yet(b"model")
    largest = bytes(MAX_VALUE)
    fits = record.successor(largest, deleted=False, writer="w")
    assert largest == decode_record(encode_record(fits), "path").value
    with pytest.raises(InputError, match=r"'model' has 16777217 bytes.*at most 16777216\n  fix: .*path"):
        encode_record(fits._replace(value=largest + b"x"))


def test_long_keys_are_cut_in_messages() -> None:
    """A message shows a key whole only if it is short."""
    assert "'a'" == versions.shown(b"a")
    assert len(versions.shown(b"k" * 10_000)) < 120
    assert "10000 bytes" in versions.shown(b"k" * 10_000)


def test_a_key_is_its_name_as_long_as_that_is_short_enough() -> None:
    """Each special byte takes three characters; what is longer has the name of its hash."""
    most = versions._MAX_NAME
    for fits in (b"k" * most, b"/" * (most // 3), b"k" + b"/" * ((most - 1) // 3)):
        assert fits == decode_key(encode_key(fits))
    for long in (b"k" * (most + 1), b"/" * (most // 3 + 1)):
        assert None is decode_key(encode_key(long))


def test_a_sum_has_64_bits() -> None:
    """Both ends included."""
    for total in (-(2**63), 2**63 - 1):
        assert str(total).encode() == versions.added(b"n", b"0", total)
    for total in (-(2**63) - 1, 2**63):
        with pytest.raises(ValueError, match="more than 64 bits"):
            versions.added(b"n", b"0", total)


def test_names_of_other_makers_tell_nothing() -> None:
    """Nor does a name without a key, nor a version that is none."""
    found = parse_names(["deleted", "a+00000000", "a+x", "+00000007", "b+00000002", "b+00000010", "note"])
    assert ({"": 7, "b": 10}, frozenset()) == (found.latest, found.deleted)
    assert ["b+00000002"] == found.older("b", 9)


def test_text_is_utf_8_and_bytes_are_themselves() -> None:
    """Also bytes that are no UTF-8; whatever is neither is refused by its name and type."""
    assert b"\xc3\xa4" == versions.key_bytes("ä") == versions.key_bytes(b"\xc3\xa4")
    assert b"\xff" == versions.key_bytes(b"\xff") == versions.key_bytes(versions.key_text(b"\xff"))
    assert b"\x00\xff" == versions.value_bytes(b"k", b"\x00\xff")
    odd: Any = 7
    with pytest.raises(TypeError, match="a key must be str or bytes, not int: 7"):
        versions.key_bytes(odd)
    with pytest.raises(TypeError, match="the value of key 'k' must be str or bytes, not int: 7"):
        versions.value_bytes(b"k", odd)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"format":1', b'"format":0'), (b'"format":1,', b""), (b'"format":1', b'"format":"1"'), (b"\n", b"")],
    ids=["an older format", "no format", "no number", "no end of the first line"],
)
def test_what_is_no_record_of_ours_is_damaged(before: bytes, after: bytes) -> None:
    """However well the rest fits."""
    data = encode_record(nothing_yet(b"a").successor(b"", deleted=False, writer="w"))
    assert data.count(before) == 1
    with pytest.raises(StoreError, match="path is damaged"):
        decode_record(data.replace(before, after), "path")
