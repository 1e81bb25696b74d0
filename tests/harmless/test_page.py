"""The page of the zoo is made from the recorded outcomes."""

from __future__ import annotations

import importlib.util

import pytest

from tests.harmless.outcomes import known_failures, recorded
from tests.harmless.page import PAGE, page
from tests.harmless.verdict import RIGHT


def test_the_page_is_that_of_the_outcomes() -> None:
    """`python -m tests.harmless.page` makes it."""
    assert page() == PAGE.read_text()


def test_every_recorded_outcome_is_right() -> None:
    """Others are in known_failures.json, with a reason."""
    wrong = {
        f"{name}/{row}"
        for name, one in recorded().items()
        for row, result in one.rows.items()
        if result not in RIGHT
    }
    assert set() == wrong - known_failures().keys()
    assert all(known.reason for known in known_failures().values())


@pytest.mark.parametrize("module", ["table", "verdict", "outcomes", "page"])
def test_what_judges_needs_no_torch(module: str) -> None:
    """The page is made, and outcomes are judged, where PyTorch is not installed."""
    spec = importlib.util.find_spec(f"tests.harmless.{module}")
    assert spec is not None
    assert spec.loader is not None
    source = spec.loader.get_data(spec.origin).decode()  # type: ignore[attr-defined]
    assert "import torch" not in source
