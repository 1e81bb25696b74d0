"""Which nodes are suspect, and how many of them a job can do without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.slurm.client.answers import ListedNode, features_of, gpus_in, in_partitions, parse_nodes
from hpc_elastic.slurm.nodes.ledger_rules import RULES, Exclusion, WantedNodes, exclude, standings
from hpc_elastic.store.node_events import Fault, NodeEvent

NOW = 1_800_000_000.0
DAY = RULES.half_life
LISTED = [
    ("node1", "low*", "idle", "(null)", "gpu:2"),
    ("node2", "low*", "down*", "big,fast", "gpu:a100:4(S:0-1),nvme:1"),
    ("node2", "high", "down*", "big,fast", "gpu:a100:4(S:0-1),nvme:1"),
    ("node3", "high", "mixed-", "(null)", "(null)"),
]


def event(fault: Fault, days_ago: float = 0.0, host: str = "n1") -> NodeEvent:
    """Return an event."""
    return NodeEvent(host, fault, NOW - days_ago * DAY, "run-1", "run", "why")


def nodes(count: int, state: str = "idle") -> list[ListedNode]:
    """Return nodes n1, n2, ..."""
    return [ListedNode(f"n{number}", state) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("events", "score", "is_suspect"),
    [
        ([event(Fault.NODE_LOSS)], 1.0, True),
        ([event(Fault.NODE_LOSS, 0.9)], 0.536, True),
        ([event(Fault.NODE_LOSS, 1.1)], 0.467, False),
        ([event(Fault.HANG)], 0.4, False),
        ([event(Fault.HANG), event(Fault.HANG, 1)], 0.6, True),
        ([event(Fault.WEDGE, 1.9)], 0.536, True),
        ([event(Fault.SUSPECTED, 2.5)], 0.707, True),
        ([event(Fault.NODE_LOSS, 2), event(Fault.FORGIVEN, 1)], 0.0, False),
        ([event(Fault.FORGIVEN, 1), event(Fault.NODE_LOSS)], 1.0, True),
        ([event(Fault.NODE_LOSS, -1)], 1.0, True),  # a clock that goes ahead
    ],
)
def test_a_nodes_score(events: list[NodeEvent], score: float, is_suspect: bool) -> None:
    """Severities halve every day; what was before a pardon does not count."""
    (one,) = standings(events, NOW)
    assert is_suspect == one.is_suspect
    assert pytest.approx(score, abs=1e-3) == one.score


@pytest.mark.parametrize("days_ago", [0.0, -1.0])
def test_a_node_that_was_lost_just_now_is_suspect_for_a_half_life(days_ago: float) -> None:
    """An event that is still to come, by a clock that goes ahead, counts as of now."""
    (one,) = standings([event(Fault.NODE_LOSS, days_ago)], NOW)
    assert (1.0, NOW + DAY) == (one.score, one.until)


def test_the_worst_comes_first_with_its_newest_event() -> None:
    """Nodes of the same score are in their natural order."""
    found = standings(
        [
            event(Fault.HANG, 0, "n10"),
            event(Fault.HANG, 0, "n9"),
            event(Fault.UNFIT, 1, "n1"),
            event(Fault.HANG),
        ],
        NOW,
    )
    assert ["n1", "n9", "n10"] == [one.host for one in found]
    assert (Fault.HANG, 2) == (found[0].last.fault, found[0].events)


@given(st.lists(st.tuples(st.sampled_from(list(Fault)), st.floats(0, 12)), min_size=1))
def test_a_suspect_node_is_one_until_the_time_that_is_told(told: list[tuple[Fault, float]]) -> None:
    """Just before it is suspect, just after it is not."""
    events = [event(fault, days) for fault, days in told]
    (one,) = standings(events, NOW)
    assert (one.until is not None) == one.is_suspect
    if one.until is not None and one.until > NOW + 10:
        assert standings(events, one.until - 5)[0].is_suspect
        assert not standings(events, one.until + 5)[0].is_suspect


@pytest.mark.parametrize(
    ("bad", "count", "least", "left_out", "kept"),
    [
        (["n2"], 4, 3, ["n2"], []),
        (["n2", "n4"], 4, 3, ["n2"], ["n4"]),  # the worse one goes
        (["n2"], 4, 4, [], ["n2"]),
        (["n2", "n9"], 4, 1, ["n2"], []),  # of another partition: Slurm would refuse the name
        ([f"n{n}" for n in (9, 8, 7)], 24, 20, ["n8", "n9"], ["n7"]),  # a tenth more than wanted stays
    ],
)
def test_a_job_keeps_enough_nodes(
    bad: list[str], count: int, least: int, left_out: list[str], kept: list[str]
) -> None:
    """The worst are left out as long as the wanted nodes and a margin are left."""
    chosen = exclude(bad, nodes(count), WantedNodes(least))
    assert (left_out, kept) == (list(chosen.nodes), list(chosen.kept))
    assert count - len(left_out) == chosen.left


def test_a_node_that_is_down_is_left_out_for_nothing() -> None:
    """Nobody could use it anyway, so that it does not count."""
    four = [*nodes(3), ListedNode("n4", "down*")]
    assert ("n4",) == exclude(["n4"], four, WantedNodes(3)).nodes
    assert Exclusion((), ("n1",), 3) == exclude(["n1"], four, WantedNodes(3))


def test_a_node_that_is_down_is_kept_by_a_job_that_needs_all_nodes() -> None:
    """It may come back; without it Slurm would refuse the job, or let it wait for ever."""
    four = [*nodes(3), ListedNode("n4", "down*")]
    assert Exclusion((), ("n4",), 3) == exclude(["n4"], four, WantedNodes(4))
    two_down = [*nodes(2), ListedNode("n3", "down*"), ListedNode("n4", "drained")]
    assert Exclusion(("n4",), ("n3",), 2) == exclude(["n4", "n3"], two_down, WantedNodes(3))


@pytest.mark.parametrize(
    "state", ["down", "down*", "drained", "draining", "fail", "idle*", "unknown", "maint"]
)
def test_nodes_that_cannot_be_used(state: str) -> None:
    """They do not count among those that are left."""
    assert Exclusion((), ("n1",), 1) == exclude(
        ["n1"], [ListedNode("n1", "idle"), ListedNode("n2", state)], WantedNodes(1)
    )


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "idle~", "mixed-", "completing", "planned"])
def test_nodes_that_can_be_used(state: str) -> None:
    """A busy or sleeping node is one that the job may get."""
    assert ("n1",) == exclude(
        ["n1"], [ListedNode("n1", "idle"), ListedNode("n2", state)], WantedNodes(1)
    ).nodes


def test_only_nodes_that_suit_the_job_count() -> None:
    """Others cannot take the place of a suspect one."""
    mixed = [
        ListedNode("n1", "idle", frozenset({"big"}), 4),
        ListedNode("n2", "idle", frozenset(), 4),
        ListedNode("n3", "idle"),
    ]
    assert ("n1",) == exclude(["n1"], mixed, WantedNodes(1)).nodes
    assert ("n1",) == exclude(["n1"], mixed, WantedNodes(1, gpus=2)).nodes
    assert () == exclude(["n1"], mixed, WantedNodes(2, gpus=2)).nodes
    assert () == exclude(["n1"], mixed, WantedNodes(1, features=frozenset({"big"}))).nodes
    assert () == exclude(["n1"], mixed, WantedNodes(1, features=None)).nodes
    assert () == exclude(["n1"], mixed, WantedNodes(1, never=("n1",))).nodes
    assert () == exclude(["n1"], mixed, WantedNodes(1, never=("n2", "n3"))).nodes


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (None, frozenset()),
        ("(null)", frozenset()),
        ("a&b", frozenset("ab")),
        ("a,b", frozenset("ab")),
        ("a|b", None),
        ("[a*2&b]", None),
        ("!a", None),
    ],
)
def test_constraints(text: str | None, features: frozenset[str] | None) -> None:
    """Those that name features are understood, the others are not guessed at."""
    assert features == features_of(text)


def test_what_sinfo_lists() -> None:
    """Nodes with their state, features and GPUs, by partition; the default one has a star."""
    listed = parse_nodes(LISTED)
    big = ListedNode("node2", "down*", frozenset({"big", "fast"}), 4)
    assert [ListedNode("node1", "idle", frozenset(), 2), big] == in_partitions(listed, None)
    assert [big, ListedNode("node3", "mixed-")] == in_partitions(listed, "high")
    assert 3 == len(in_partitions(listed, "low,high"))
    assert [] == in_partitions(listed, "none")


@pytest.mark.parametrize(
    ("gres", "count"),
    [("(null)", 0), ("gpu", 1), ("gpu:2", 2), ("gpu:a100:4(S:0,1),gpu:h100:2", 6), ("nvme:3", 0)],
)
def test_gpus_of_a_node(gres: str, count: int) -> None:
    """Types and sockets do not matter."""
    assert count == gpus_in(gres)


def test_the_wanted_nodes_and_a_tenth_more_stay() -> None:
    """One beyond them may go, none of them; without GPUs or features asked for all nodes suit."""
    assert ("n1",) == exclude(["n1"], nodes(12), WantedNodes(10)).nodes
    assert () == exclude(["n1"], nodes(11), WantedNodes(10)).nodes
    assert ("n1",) == exclude(["n1"], nodes(10), WantedNodes(9)).nodes
    assert (9, 0, frozenset(), ()) == tuple(WantedNodes(9))


def test_as_many_gpus_as_wanted_are_enough() -> None:
    """A node with one less does not suit, nor one that lacks a feature."""
    some = [ListedNode("n1", "idle", frozenset("ab"), 2), ListedNode("n2", "idle", frozenset("ab"), 2)]
    assert ("n1",) == exclude(["n1"], some, WantedNodes(1, gpus=2, features=frozenset("ab"))).nodes
    for other in (some[1]._replace(gpus=1), some[1]._replace(features=frozenset("a"))):
        wanted = WantedNodes(1, gpus=2, features=frozenset("ab"))
        assert Exclusion((), ("n1",), 1) == exclude(["n1"], [some[0], other], wanted)


def test_a_node_is_suspect_from_the_threshold_on() -> None:
    """Until now, if its score is just the threshold; then it is none any more."""
    rules = RULES._replace(threshold=1.0)
    (one,) = standings([event(Fault.NODE_LOSS)], NOW, rules)
    assert (True, NOW) == (one.is_suspect, one.until)
    (other,) = standings([event(Fault.NODE_LOSS)], NOW, rules._replace(threshold=1.01))
    assert (False, None) == (other.is_suspect, other.until)


def test_how_rules_are_where_nobody_has_set_them() -> None:
    """A day, half a point, a tenth of the nodes; events count for ten half-lives."""
    assert (86400.0, 0.5, 0.1) == tuple(RULES)
    assert NOW - 10 * DAY == RULES.oldest(NOW)


def test_what_was_after_the_newest_pardon_counts() -> None:
    """Of several pardons the last one; the newest event is told, though it be a pardon."""
    told = [event(Fault.HANG, 5), event(Fault.FORGIVEN, 4), event(Fault.HANG, 3), event(Fault.FORGIVEN, 2)]
    (one,) = standings([*told, event(Fault.WEDGE, 1)], NOW)
    assert (1, 1.0, Fault.WEDGE) == (one.events, one.score, one.last.fault)
    (two,) = standings(told, NOW)
    assert (0, 0.0, Fault.FORGIVEN) == (two.events, two.score, two.last.fault)


@pytest.mark.parametrize(
    ("fault", "severity"),
    [
        (Fault.UNFIT, 1.0),
        (Fault.NODE_LOSS, 1.0),
        (Fault.ABSENT, 0.6),
        (Fault.WEDGE, 2.0),
        (Fault.HANG, 0.4),
        (Fault.CRASH_LOOP, 0.4),
        (Fault.SUSPECTED, 4.0),
        (Fault.FORGIVEN, 0.0),
    ],
)
def test_how_much_each_event_weighs(fault: Fault, severity: float) -> None:
    """On the day it happens, and a quarter of it two days later."""
    assert severity == standings([event(fault)], NOW)[0].score
    assert severity / 4 == standings([event(fault, 2)], NOW)[0].score


def test_features_are_names_without_spaces_around_them() -> None:
    """One that is no name makes the constraint more than can be judged."""
    assert frozenset({"a", "b-1.x"}) == features_of("a & b-1.x")
    assert None is features_of("a&b c")
    assert frozenset() == features_of("")


def test_commas_in_brackets_part_nothing() -> None:
    """Also after a bracket has closed."""
    assert 7 == gpus_in("gpu:a:1(S:0,1),gpu:b:2(IDX:0,2),gpu:c:4")
    assert 1 == gpus_in("nvme:3(S:0,gpu),gpu:x")


def test_as_many_nodes_that_are_down_are_left_out_as_may_come_back() -> None:
    """So many as are more than the job needs, and none beyond."""
    down = [ListedNode(f"n{number}", "down*") for number in (1, 2, 3)]
    chosen = exclude(["n1", "n2", "n3"], [*down, ListedNode("n4", "idle")], WantedNodes(least=2), RULES)
    assert (("n1", "n2"), ("n3",), 1) == chosen


def test_a_bad_node_that_does_not_suit_the_job_is_left_out_for_nothing() -> None:
    """Nobody misses it, however few there are."""
    some = [ListedNode("n1", "idle", gpus=0), ListedNode("n2", "idle", gpus=1)]
    assert Exclusion(("n1",), (), 1) == exclude(["n1"], some, WantedNodes(1, gpus=1))


def test_that_a_node_was_slow_is_its_last_event_only_without_another() -> None:
    """It leaves no node out, so it hides none that does."""
    slow, later = event(Fault.SLOW, 2), event(Fault.SLOW)
    assert Fault.UNFIT is standings([slow, event(Fault.UNFIT, 1), later], NOW)[0].last.fault
    assert later == standings([slow, later], NOW)[0].last
