"""What all tests of frameworks need."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_place_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process learns its place in a run once: what one test gives it is nothing to the next."""
    monkeypatch.setattr("hpc_elastic.worker._attached", [])
