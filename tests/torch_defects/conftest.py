"""Launchers for the tests of this package; what a test leaves running is ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch_defects.launches import Launches, MakeLaunches


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeLaunches]:
    """Return a function that makes launches for a worker's source; all are ended afterwards."""
    made: list[Launches] = []

    def new(worker: str) -> Launches:
        made.append(Launches(tmp_path / f"run{len(made)}", worker))
        return made[-1]

    yield new
    for launches in made:
        launches.end()
