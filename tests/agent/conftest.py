"""Agents for the tests of this package; what a test leaves running is ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.agents import Agents, MakeAgents


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeAgents]:
    """Return a function that makes agents for a worker's source; all are ended afterwards."""
    made: list[Agents] = []

    def new(worker: str) -> Agents:
        made.append(Agents(tmp_path / f"run{len(made)}", worker))
        return made[-1]

    yield new
    for agents in made:
        agents.end()
