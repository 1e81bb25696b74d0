"""The JSON form of the journal's records."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import RendezvousStateError
from hpc_elastic.record import journal
from hpc_elastic.record.journal import Cause, DrainExplained, Entry, Record, RoundEnded, RoundFormed
from tests.meet.build import E0, crash, formed, member, start
from tests.record import records


@given(entry=records.entries, at=st.floats(0, 4e9), by=records.text)
def test_what_is_written_is_read(entry: Entry, at: float, by: str) -> None:
    """Every record comes back as it was, its time to the millisecond."""
    data = journal.encode(entry, at=at, by=by)
    assert Record(7, round(at, 3), by, entry) == journal.parse(7, data)


@given(entry=records.entries)
def test_types_are_kept(entry: Entry) -> None:
    """What is read has the types of what was written, down to the tuples and enums in it."""
    parsed = journal.parse(1, journal.encode(entry, at=0.0, by="")).entry
    assert type(entry) is type(parsed)
    assert repr(entry) == repr(parsed)


def test_no_field_is_named_as_what_stands_in_every_record() -> None:
    """An entry's field of such a name would take its place."""
    head = {"format", "version", "kind", "at", "by", "role"}
    assert not [kind for kind in get_args(Entry) if head & set(kind._fields)]


def test_every_kind_is_tested() -> None:
    """A new kind of record needs a strategy."""
    branches = records.entries.branches
    assert len(get_args(Entry)) == len(branches)


def test_a_message_with_broken_text_is_kept() -> None:
    """What a worker printed may hold bytes that are no text; its failure is recorded all the same."""
    entry = RoundEnded(1, Cause.CRASH, ("n1",), {"message": b"\xff".decode(errors="surrogateescape")})
    assert entry == journal.parse(1, journal.encode(entry, at=0.0, by="")).entry


def test_unknown_fields_are_ignored() -> None:
    """A later version may add fields."""
    data = json.loads(journal.encode(start(), at=0.0, by=""))
    assert start() == journal.parse(1, json.dumps({**data, "colour": "red"}).encode()).entry


def test_fields_that_an_earlier_version_did_not_write_have_their_defaults() -> None:
    """What is optional may be absent; what is not is damage."""
    entry = DrainExplained(E0, Cause.PREEMPTION, "why", 30.0)
    data = json.loads(journal.encode(entry, at=0.0, by=""))
    del data["left_s"]
    assert entry._replace(left_s=None) == journal.parse(1, json.dumps(data).encode()).entry
    del data["detail"]
    with pytest.raises(RendezvousStateError, match="record 1 is damaged"):
        journal.parse(1, json.dumps(data).encode())


@pytest.mark.parametrize("cause", list(Cause))
def test_a_script_that_was_killed_is_told_from_other_ends(cause: Cause) -> None:
    """Slurm then ends the job in no time."""
    assert (cause is Cause.LAUNCH_FAILURE) is DrainExplained(E0, cause, "").is_end_of_script


def test_an_unknown_format_is_refused() -> None:
    """Another format is not guessed at; the error names it and the record."""
    data = json.loads(journal.encode(start(), at=0.0, by=""))
    with pytest.raises(RendezvousStateError, match=r"record 3 has format 3; hpc_elastic 9\.1 wrote it"):
        journal.parse(3, json.dumps({**data, "format": 3, "version": "9.1"}).encode())


def test_an_unknown_kind_is_refused() -> None:
    """A later version may know it: the error names the version that wrote it."""
    data = {"format": 2, "version": "9.1", "kind": "party"}
    with pytest.raises(
        RendezvousStateError, match=r"record 3 is of the unknown kind 'party'; hpc_elastic 9\.1"
    ):
        journal.parse(3, json.dumps(data).encode())


@pytest.mark.parametrize("change", [{"cause": "boredom"}, {"nodes": 3}, {"at": "noon"}])
def test_unknown_values_are_refused(change: dict[str, object]) -> None:
    """A kind or value nobody knows is damage, and the error names the record."""
    data = json.loads(journal.encode(crash(1), at=0.0, by=""))
    with pytest.raises(RendezvousStateError, match="record 3 is damaged"):
        journal.parse(3, json.dumps({**data, **change}).encode())


@pytest.mark.parametrize(("port", "fits"), [(0, True), (65535, True), (65536, False), (-1, False)])
def test_numbers_that_cannot_be_are_refused(port: int, fits: bool) -> None:
    """A port has 16 bits."""
    data = json.loads(journal.encode(formed(1), at=0.0, by=""))
    data = json.dumps({**data, "master_port": port}).encode()
    if fits:
        assert 1 == journal.parse(1, data).number
        return
    with pytest.raises(RendezvousStateError, match="record 1 is damaged"):
        journal.parse(1, data)


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_torn_record_is_refused(kept: int) -> None:
    """A record that was cut off is damage."""
    with pytest.raises(RendezvousStateError, match="record 3 is damaged"):
        journal.parse(3, journal.encode(start(), at=0.0, by="")[:kept])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(entry=records.entries, field=st.integers(0, 9), value=json_values)
def test_damage_is_never_another_error(entry: Entry, field: int, value: object) -> None:
    """Whatever stands in a field: it is a record, or the error says that it is damaged."""
    data = json.loads(journal.encode(entry, at=0.0, by=""))
    name = sorted(data)[field % len(data)]
    try:
        assert 1 == journal.parse(1, json.dumps({**data, name: value}).encode()).number
    except RendezvousStateError:
        pass


@given(data=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused(data: bytes) -> None:
    """Bytes that are no record are damage."""
    with pytest.raises(RendezvousStateError):
        journal.parse(1, data)


def test_the_size_of_a_round_is_linear() -> None:
    """A round of 1,000 nodes stays a small file."""

    def size(count: int) -> int:
        members = tuple(member(f"cluster-node-{i:04d}", 8) for i in range(count))
        return len(journal.encode(RoundFormed(9, E0, members, "addr", 1, None), at=1e9, by="n1"))

    per_node = (size(1000) - size(10)) / 990
    assert per_node < 80
    assert size(1000) < 80_000
    assert len(journal.encode(formed(1), at=1e9, by="n1")) < 400


@pytest.mark.parametrize(("version", "said"), [("0.0.9", "0.0.9"), (None, "of no version")])
def test_an_older_format_is_told_as_one(version: str | None, said: str) -> None:
    """The installation that wrote it can read it."""
    data = {"format": 1, "kind": "note", **({"version": version} if version else {})}
    with pytest.raises(RendezvousStateError) as error:
        journal.parse(3, json.dumps(data).encode())
    assert f"record 3 has format 1, which an earlier hpc_elastic ({said}) wrote; this one" in str(error.value)
