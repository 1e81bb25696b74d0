"""What all tests of frameworks need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frameworks.ranks import RankServer


@pytest.fixture(autouse=True)
def no_place_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process learns its place in a run once: what one test gives it is nothing to the next."""
    monkeypatch.setattr("hpc_elastic.worker._attached", [])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """Groups of ranks."""
    server = RankServer(tmp_path_factory.mktemp("ranks"))
    yield server
    server.close()
