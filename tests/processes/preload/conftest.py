"""The place of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.preload.warm import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty directory in which workers are started."""
    return Place(tmp_path, [])
