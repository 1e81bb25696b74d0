"""docs/states.md says what the rules do."""

from __future__ import annotations

from hpc_elastic.record.journal import Decision
from tests.docs import states_page


def test_the_page_is_that_of_the_rules() -> None:
    """`python -m tests.docs.states_page` writes it anew."""
    page = states_page.PAGE.read_text(encoding="utf-8")
    assert states_page.made(page) == page


def test_each_end_of_a_run_is_reached() -> None:
    """The records lead from the submission to every decision, and back from each by a new submission."""
    rows = states_page.changes(states_page.run_state)
    ends = {decision.value for decision in Decision}
    assert {row.after for row in rows} >= ends
    again = {row.before for row in rows if row.event == "`EpochStarted` (submitted again)"}
    assert again >= ends
