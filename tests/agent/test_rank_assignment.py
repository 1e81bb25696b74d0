"""Ranks of agents that tell each other what they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.agent.rank_assignment import (
    Ranks,
    RoleInstanceInfo,
    assign_ranks,
    exchange_ranks,
    identical_ranks,
)
from hpc_elastic.node.workers.worker_env import place_of
from hpc_elastic.record.journal import Member
from tests.agent.elastic_fakes import new_store

SIZES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), min_size=1, max_size=6)


@given(SIZES)
def test_as_with_a_journal(sizes: list[tuple[str, int]]) -> None:
    """Agents that agree through a store get what agents get that read it in the record of the round."""
    members = tuple(Member(f"n{i}.1", f"n{i}", count, role) for i, (role, count) in enumerate(sizes))
    infos = [RoleInstanceInfo(role, i, count) for i, (role, count) in enumerate(sizes)]
    places = [place_of(members, member.node_id) for member in members]
    expected = [Ranks(p.base_rank, p.world_size, p.role_base, p.role_world_size) for p in places]
    assert expected == assign_ranks(infos)


@given(st.integers(1, 6), st.integers(1, 4))
def test_alike_agents_need_no_store(agents: int, count: int) -> None:
    """What is computed from the group rank alone is what would have been exchanged."""
    exchanged = assign_ranks([RoleInstanceInfo("r", i, count) for i in range(agents)])
    assert exchanged == [identical_ranks(i, agents, count) for i in range(agents)]


def test_what_is_told_comes_back() -> None:
    """The JSON has torch's keys and can be read again."""
    data = RoleInstanceInfo("röle", 2, 8).serialize()
    assert b'{"role": "r\\u00f6le", "rank": 2, "local_world_size": 8}' == data
    found = RoleInstanceInfo.deserialize(data)
    assert ("röle", 2, 8) == (found.role, found.rank, found.local_world_size)


def test_order_is_by_role_then_rank() -> None:
    """Roles compare as texts, agents of a role by their ranks."""
    a1, a3, b0 = RoleInstanceInfo("a", 1, 1), RoleInstanceInfo("a", 3, 1), RoleInstanceInfo("b", 0, 1)
    assert (-2, 2, 0) == tuple(RoleInstanceInfo.compare(*pair) for pair in ((a1, a3), (a3, a1), (a1, a1)))
    assert (-1, 1) == (RoleInstanceInfo.compare(a3, b0), RoleInstanceInfo.compare(b0, a1))


def test_where_a_role_begins_and_ends() -> None:
    """The first and the last index of a role in a sorted list; -1 twice for a role nobody has."""
    infos = [RoleInstanceInfo(role, i, 1) for i, role in enumerate("aabbb")]
    bounds = [RoleInstanceInfo.find_role_boundaries(infos, role) for role in "abc"]
    assert [(0, 1), (2, 4), (-1, -1)] == bounds


def test_each_agent_gets_its_own_ranks_from_the_first() -> None:
    """The first one reads what all are and sets the ranks of all; the others only read theirs."""
    store = new_store()
    infos = [RoleInstanceInfo("a", 0, 1), RoleInstanceInfo("b", 1, 2), RoleInstanceInfo("a", 2, 4)]
    with ThreadPoolExecutor(len(infos)) as pool:
        found = list(pool.map(lambda info: exchange_ranks(store.clone(), info, len(infos)), infos))
    assert [Ranks(0, 7, 0, 5), Ranks(1, 7, 0, 2), Ranks(3, 7, 1, 5)] == found
