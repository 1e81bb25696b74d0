"""What the fake does otherwise than the real one is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, REPOSITORY
from tests.testing.contract.conftest import DIFFERENCES, NOT_PLAYED


@pytest.mark.parametrize("reason", sorted({*DIFFERENCES.values(), *NOT_PLAYED.values()}))
def test_every_known_difference_is_told_to_users(reason: str) -> None:
    """The page on testing names it."""
    assert reason in (DOCS / "how-to" / "testing.md").read_text()


def test_every_file_about_the_real_one_is_run_against_the_fake() -> None:
    """A new file of facts has a counterpart here."""
    real = {path.stem for path in (REPOSITORY / "tests" / "real_slurm").glob("test_slurm_*.py")}
    mine = {path.stem.replace("fake", "slurm") for path in Path(__file__).parent.glob("test_fake_*.py")}
    assert real == mine
