"""The shared state of the dynamic rendezvous as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import RendezvousStateError
from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.dynamic_rules import (
    DynamicState,
    NodeDesc,
    NodePlace,
    encode,
    names,
    parse,
    rank_order,
)
from tests.rendezvous.dynamic_build import N1, N2, N3, N4, N10, beside, running

_nodes = st.builds(NodeDesc, st.text(max_size=5), st.integers(0, 9), st.integers(0, 9), st.text(max_size=3))
_groups = st.frozensets(_nodes, max_size=4)


@given(
    st.builds(
        DynamicState,
        round=st.integers(0, 1000),
        complete=st.booleans(),
        closed=st.booleans(),
        closed_by=st.text(),
        participants=st.dictionaries(_nodes, st.builds(NodePlace, st.integers(-1, 9), st.integers(0, 65535))),
        wait_list=_groups,
        redundancy_list=_groups,
        beats=st.dictionaries(_nodes, st.integers(0, 1000)),
        members=_groups.map(tuple),
        left=_groups,
        master_addr=st.text(),
        master_port=st.integers(0, 65535),
    )
)
def test_a_state_is_read_back(state: DynamicState) -> None:
    """Whatever it holds, a state comes back as it was."""
    assert state == parse(encode(state), "b")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        b"[]",
        b"{}",
        b"null",
        encode(running(N1, N2))[:-9],
        json.dumps({**json.loads(encode(running(N1))), "members": [9]}).encode(),
        json.dumps({**json.loads(encode(running(N1))), "nodes": [["n1"]]}).encode(),
    ],
    ids=range(8),
)
def test_a_damaged_state_names_its_backend(data: bytes) -> None:
    """Who reads rubbish is told where it lies; nothing is unpickled."""
    with pytest.raises(RendezvousStateError, match=r"^The rendezvous state in the backend 'mine' is corrupt"):
        parse(data, "mine")


def test_another_version_is_told() -> None:
    """A state of another version is not guessed at."""
    data = json.dumps({**json.loads(encode(running(N1))), "version": 2}).encode()
    with pytest.raises(RendezvousStateError, match=r"is of the format .* 2; this version reads .* 1"):
        parse(data, "mine")


def test_names_are_in_order() -> None:
    """Numbers in names count as numbers; process and handler decide between equal names."""
    twins = [NodeDesc("n2", 2, 0), NodeDesc("n2", 1, 1), NodeDesc("n2", 1, 0)]
    assert [*reversed(twins), N10] == rank_order([N10, *twins])
    assert ("n1, n2, n10", "none") == (names([N10, N2, N1, N2]), names([]))
    assert "n1_1_0" == repr(N1) == str(N1)


def test_a_state_stays_small() -> None:
    """A hundred nodes take less than eight kilobytes."""
    nodes = tuple(NodeDesc(f"node{number:04}", 12_345, 0, "0123abcd") for number in range(100))
    assert len(encode(running(*nodes))) < 8000


def test_equal_states_have_equal_bytes() -> None:
    """The order in which sets were filled does not show."""
    one = beside(running(N1, N2), waiting=(N3, N4))
    other = beside(running(N1, N2), waiting=(N4, N3))
    assert encode(one) == encode(other)
    assert encode(one) != encode(dynamic_rules.without(one, {N4}))


def test_nobody_is_lost_before_a_round_runs() -> None:
    """Its members are those of the round before."""
    state = running(N1, N2)._replace(participants={}, beats={})
    assert (N1, N2) == state.lost
    assert () == state._replace(complete=False).lost


def test_who_left_on_purpose_keeps_a_place_in_a_running_round_only() -> None:
    """The next round begins with as many places as it has nodes."""
    state = running(N1, N2)._replace(left=frozenset({N3}))
    assert (3, 2) == (state.is_full_of, state._replace(complete=False).is_full_of)
