"""The option of the zoo."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add it; pytest knows it where this directory is among its arguments."""
    parser.addoption(
        "--zoo",
        choices=("fast", "all"),
        default="fast",
        help="fast: each program with all faults in one run; all: also with each fault in a run of its own",
    )
