"""What the fake does otherwise than the real one is written down."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS
from tests.testing.contract.conftest import DIFFERENCES


@pytest.mark.parametrize("reason", sorted(set(DIFFERENCES.values())))
def test_every_known_difference_is_told_to_users(reason: str) -> None:
    """The page on testing names it."""
    assert reason in (DOCS / "how-to" / "testing.md").read_text()
