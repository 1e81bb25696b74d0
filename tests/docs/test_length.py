"""The documentation stays short: a reader finds the line, not only the page."""

from __future__ import annotations

import pytest

from tests.docs.length import DEVELOPERS, GENERATED, LOOKED_UP, OF_DEVELOPERS, READ, lengths, totals

MOST = {READ: 45_000, LOOKED_UP: 20_000, DEVELOPERS: 9_000}
"""Words of all pages of a kind; lower them when pages have become shorter, never raise them."""


@pytest.mark.parametrize("kind", MOST)
def test_the_pages_of_a_kind_have_no_more_words_than_agreed(kind: str) -> None:
    """``python -m tests.docs.length`` prints them by page."""
    assert totals()[kind] <= MOST[kind]


def test_pages_of_developers_and_of_commands_are_pages() -> None:
    """So none is counted as another kind because its name has changed."""
    assert {*GENERATED, *OF_DEVELOPERS} <= lengths().keys()
