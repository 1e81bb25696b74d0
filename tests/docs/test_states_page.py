"""docs/states.md says what the rules do."""

from __future__ import annotations

from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import Cause, Decision
from tests.docs import states_page
from tests.docs.pages import DOCS


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


def test_the_table_of_ends_has_the_budgets_of_the_table_of_causes() -> None:
    """Each cause that hands a job back is in it, but those that agents alone record."""
    page = (DOCS / "how-to" / "endings.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line]
    told = [(row[3].partition(",")[0], row[4]) for row in rows if len(row) == 5]
    by_noun = {row.noun: states_page.budgets_text(row) for row in CAUSES.values()}
    assert [(noun, by_noun[noun]) for noun, _ in told if noun in by_noun] == [
        (noun, budgets) for noun, budgets in told if noun in by_noun
    ]
    of_agents = {CAUSES[cause].noun for cause in (Cause.JOIN_TIMEOUT, Cause.AGENT_ERROR)}
    assert {row.noun for row in CAUSES.values() if row.requeues} - of_agents <= {noun for noun, _ in told}


def test_each_cause_has_its_row() -> None:
    """A new cause is given its words, its budget and its writer in one place."""
    assert set(Cause) == set(CAUSES)
