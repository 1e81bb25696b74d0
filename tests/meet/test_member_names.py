"""Who is there, by the names in a directory and this node's own clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.meet.liveness import is_alive
from hpc_elastic.meet.member_names import (
    MemberName,
    Phase,
    Seen,
    Suspicion,
    are_beats,
    forgive,
    is_news,
    natural,
    newest_record,
    observe,
    outdated,
    parse_name,
    parse_suspicion,
    steps_text,
    suspicions_in,
)
from hpc_elastic.record.journal import Epoch, news_name
from tests.meet.build import E0, REQUEUED, roster, seen

LEASE = 4.0


def name(counter: int, phase: Phase = Phase.RUNNING, node: str = "n1", epoch: Epoch = E0) -> str:
    """Return a member's file name."""
    return MemberName(f"{node}.1", epoch, phase, 1, counter).text()


counts = st.integers(0, 10**9)
names = st.builds(
    MemberName,
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}\.[0-9]{1,7}", fullmatch=True),
    st.builds(Epoch, counts, counts, counts, counts),
    st.sampled_from(Phase),
    counts,
    counts,
    counts,
    st.lists(st.none() | st.integers(0, 10**18), max_size=40).map(steps_text),
)
suspicions = st.builds(
    Suspicion,
    names.map(lambda name: name.node_id),
    st.builds(Epoch, counts, counts, counts, counts),
    counts,
    names.map(lambda name: name.node_id),
)


@given(member=names)
def test_a_name_says_what_it_was_given(member: MemberName) -> None:
    """The facts in a name come back."""
    assert member == parse_name(member.text())


def test_a_name_shows_the_steps_of_its_ranks() -> None:
    """Each rank's step is known up to nine steps ahead of the slowest one; a rank may have none yet."""
    name = MemberName("n1.1", Epoch(0, 0, 0, 0), Phase.RUNNING, 1, 1, 1, steps_text((120, 121, None, 400)))
    assert (120, 121, None, 129) == name.rank_steps
    assert ("", ()) == (steps_text((None, None)), name._replace(steps="").rank_steps)
    assert "" == steps_text((10**18,))
    assert 32 == len(name._replace(steps=steps_text([7] * 40)).rank_steps)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".nfs0001",
        "n1.1",
        "n1.1+0-0-0-0+running+1+1",
        "n1.1+0-0-0-0+dancing+1+1+1",
        "n1.1+0-0-0-0+running+1+1+1+1",
        "n1.1+0-0-0-0+running+1+1+1+1-x",
        "n1.1+0-0-0-0+suspected+1+by+n2.1",
        "news+7",
    ],
)
def test_a_foreign_name_is_none(text: str) -> None:
    """Names that nobody of us made are passed over."""
    assert parse_name(text) is None


@given(suspicion=suspicions)
def test_a_suspicion_says_what_it_was_given(suspicion: Suspicion) -> None:
    """The facts in a suspicion's name come back, and it is not taken for a member."""
    assert suspicion == parse_suspicion(suspicion.text())
    assert parse_name(suspicion.text()) is None
    listing = [suspicion.text(), "n1.1+0-0-0-0+suspected+x+by+n2.1", "other"]
    assert {suspicion} == suspicions_in(listing, suspicion.epoch)
    assert set() == suspicions_in(listing, suspicion.epoch._replace(submission=10**10))


def test_names_tell_of_the_newest_record() -> None:
    """Members tell what they have read, others what they have added."""
    members = observe({}, [MemberName("n1.1", E0, Phase.RUNNING, 1, 0, 7).text()], E0, now=0.0)
    assert 7 == newest_record([], members)
    assert 9 == newest_record([news_name(9), "news+x"], members)
    assert 0 == newest_record([], {})
    assert is_news(news_name(9))
    assert not is_news("news+x")


def test_the_node_of_a_dotted_name() -> None:
    """A full host name keeps its dots."""
    assert "n1.cluster.org" == MemberName("n1.cluster.org.42", E0, Phase.LEFT, 1, 0).node


def test_a_change_is_noticed() -> None:
    """A member whose counter has grown was alive just now."""
    first = observe({}, [name(0)], E0, now=10.0)
    assert 10.0 == first["n1.1"].changed_at
    assert 12.0 == observe(first, [name(1)], E0, now=12.0)["n1.1"].changed_at


def test_no_change_is_no_sign_of_life() -> None:
    """A member whose name stays as it is ages."""
    first = observe({}, [name(0)], E0, now=10.0)
    later = observe(first, [name(0)], E0, now=13.0)
    assert 10.0 == later["n1.1"].changed_at
    assert is_alive(later["n1.1"], 13.9, LEASE)
    assert not is_alive(later["n1.1"], 14.0, LEASE)


def test_a_listing_during_a_rename_does_no_harm() -> None:
    """Both names of a member: the newer counts. Neither: what was known stays known."""
    known = observe({}, [name(1), name(2), name(0)], E0, now=10.0)
    assert 2 == known["n1.1"].name.counter
    assert known == observe(known, [], E0, now=11.0)


def test_a_stale_listing_takes_nothing_back() -> None:
    """An older counter than the known one is an old listing, not a sign of life."""
    known = observe({}, [name(5)], E0, now=10.0)
    assert known == observe(known, [name(4)], E0, now=11.0)


def test_other_epochs_do_not_count() -> None:
    """Members of an older start are not here; nor is anybody known of it later."""
    known = observe({}, [name(0), name(0, node="n2", epoch=REQUEUED)], E0, now=10.0)
    assert ["n1.1"] == list(known)
    assert {} == observe(known, [], REQUEUED, now=11.0)


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.LEFT])
def test_who_has_ended_does_not_beat(phase: Phase) -> None:
    """A member that has finished is not waited for."""
    assert not is_alive(seen("n1", phase, at=10.0), 10.0, LEASE)


def test_the_blind_forgive() -> None:
    """An observer that could not look starts all leases anew."""
    members = forgive(roster(seen("n1", at=0.0), seen("n2", at=5.0)), now=100.0)
    assert all(is_alive(entry, 103.0, LEASE) for entry in members.values())


def test_numbers_in_names_are_numbers() -> None:
    """node2 comes before node10, and names without numbers have their place."""
    shuffled = ["node10", "node2", "gpu-a100-3", "node2-1", "node", "node0", "gpu-a100-20"]
    expected = ["gpu-a100-3", "gpu-a100-20", "node", "node0", "node2", "node2-1", "node10"]
    assert expected == sorted(shuffled, key=natural)


@given(texts=st.lists(st.text(max_size=12), max_size=6))
def test_every_name_has_a_place(texts: list[str]) -> None:
    """Any names can be ordered, and the order does not depend on how they came."""
    in_order = sorted(set(texts), key=natural)
    backwards = list(reversed(in_order))
    assert in_order == sorted(backwards, key=natural)


def test_suspicions_of_an_older_start_do_not_count() -> None:
    """Nor do names that only look like one."""
    old, new = (Suspicion("n1.1", epoch, 3, "n2.1") for epoch in (E0, REQUEUED))
    listing = [old.text(), new.text(), name(1), "n1.1+0-0-0+suspected+x+by+n2.1"]
    assert (frozenset({old}), frozenset({new})) == (
        suspicions_in(listing, E0),
        suspicions_in(listing, REQUEUED),
    )


def test_all_but_the_newest_start_of_a_task_are_outdated() -> None:
    """Agents without a task never are."""
    ids = ["n1.1@12_0-0-0", "n2.1@12_0-1-0", "n3.1@12_0-1-1", "n4.1@12_1-0-0", "n5.1", "n5.2"]
    assert {"n1.1@12_0-0-0", "n2.1@12_0-1-0"} == outdated(ids)


def test_the_only_start_of_a_task_is_its_newest() -> None:
    """However often srun was started again in it."""
    assert frozenset() == outdated(["n1.1@12_0-0-3", "n2.1@12_1-2-0"])


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((0,), "0-0"),
        ((0, 3), "0-03"),
        ((1, None, 12), "1-0_9"),
        ((5, 10**18), "5-09"),
        ((-1, 4), ""),
        ((), ""),
        ((None,), ""),
        ((10**18,), ""),
    ],
)
def test_steps_are_one_word(steps: tuple[int | None, ...], text: str) -> None:
    """It stands at the end of the name, if there is one."""
    assert text == steps_text(steps)
    mine = MemberName("n1.1", Epoch(0, 0, 0, 0), Phase.RUNNING, 1, 2, 3, text)
    assert "n1.1+0-0-0-0+running+1+2+3" + (f"+{text}" if text else "") == mine.text()
    assert mine == parse_name(mine.text())
    assert (0, "") == MemberName("n1.1", Epoch(0, 0, 0, 0), Phase.RUNNING, 1, 2)[5:]


@pytest.mark.parametrize(
    ("changes", "at", "beats"),
    [
        ({}, 9.9, True),
        ({}, 10.0, False),
        ({"phase": Phase.STOPPED}, 1.0, False),
        ({"round": 2}, 1.0, False),
        ({"node_id": "n2.1"}, 1.0, False),
    ],
)
def test_members_that_have_only_beaten_change_nothing(
    changes: dict[str, Any], at: float, *, beats: bool
) -> None:
    """Within the lease, in the same round and phase."""
    mine = MemberName("n1.1", Epoch(0, 0, 0, 0), Phase.RUNNING, 1, 2)
    new = mine._replace(counter=3, **changes)
    assert beats is are_beats({"n1.1": Seen(mine, 0.0)}, {new.node_id: Seen(new, at)}, 10.0)
