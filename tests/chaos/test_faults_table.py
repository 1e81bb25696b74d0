"""The table of scripts/faults."""

from __future__ import annotations

from chaos_lib.page import between, put_into, shown
from faults_lib.measures import Sample
from faults_lib.table import column, missed, render, with_column

QUICK = [Sample(0.01, 0.02, 0.1), Sample(0.01, 0.04, 0.3), Sample(0.02, 0.03, 0.15)]
SLOW = [Sample(None, 1.0, 2.5)]


def test_medians_stand_beside_those_of_the_other_launcher() -> None:
    """Each cell is a median; who has done nothing is said to have done nothing."""
    found = {
        "ours": {"worker-killed": QUICK, "agent-killed": QUICK},
        "other": {"worker-killed": SLOW, "agent-killed": []},
    }
    head, _, killed, lost = render(found, "ours").splitlines()
    assert head.endswith("| other: stopped, running |")
    assert "| 0.01 s | 0.03 s | 0.15 s |  | ≤ 0.2 s | 1.00 s, 2.50 s |" in killed
    assert lost.endswith("| not within a minute |")


def test_a_missed_target_is_said() -> None:
    """Too slow, and nothing at all, are both missed."""
    found = {"ours": {"worker-killed": SLOW, "worker-exits": [], "agent-killed": SLOW}}
    assert ["worker-killed", "worker-exits"] == missed(found, "ours")
    assert "**missed**" in render(found, "ours")
    assert "no result" in render(found, "ours")


def test_a_page_names_no_place_of_this_machine() -> None:
    """What stands in the docs is the command as anybody would give it."""
    words = ("--minutes", "3", "--json", "/home/me/x.json", "--write", "--evidence=/tmp/y", "--quick")
    assert " --minutes 3 --quick" == shown(words)


def test_a_page_keeps_what_stands_around_the_marks() -> None:
    """Only what is between the two marks is replaced, as often as one likes."""
    page = "before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n"
    once = put_into(page, "x", "new")
    assert once == put_into(once, "x", "new")
    assert ("before", "after") == (once.splitlines()[0], once.splitlines()[-1])
    assert "old" not in once


def test_a_release_has_a_column_of_its_own() -> None:
    """A column is replaced, or put in order beside the others, which stay; so do their rows."""
    page = put_into(
        "<!-- x: begin --><!-- x: end -->", "x", with_column("", "26.05", {"a": "1.00 s", "b": ""})
    )
    later = column({"worker-killed": QUICK, "hung": []})
    table = with_column(with_column(between(page, "x"), "24.11", {"b": "2.00 s"}), "26.05", {"a": "3.00 s"})
    assert ["| fault | 24.11 | 26.05 |", "| --- | --- | --- |", "| a |  | 3.00 s |", "| b | 2.00 s |  |"] == (
        table.splitlines()
    )
    assert ["0.15 s", "no result"] == list(later.values())
