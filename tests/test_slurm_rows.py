"""Every row of what Slurm does has a test that exists, and every test of Slurm's facts has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.real_slurm.order import SECONDS, SHARE_JOBS
from tests.real_slurm.rows import ROWS, Row

PLACE = Path(__file__).parent / "real_slurm"


def there() -> set[str]:
    """Return the tests on a real Slurm, as `rows` names them."""
    return {
        f"{path.stem.removeprefix('test_')}.{node.name.removeprefix('test_')}"
        for path in PLACE.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows() -> list[Row]:
    """Return all rows."""
    return [row for group in ROWS.values() for row in group]


def test_every_row_has_a_test() -> None:
    """No row rests on a promise."""
    assert [] == [row.event for row in rows() if not row.slurm and not row.ours]


def test_the_tests_of_the_rows_exist() -> None:
    """Who renames a test renames it here."""
    named = {name for row in rows() for name in (*row.slurm, *row.ours)}
    assert set() == named - there()


def test_every_fact_about_slurm_has_a_row() -> None:
    """A test of Slurm's own behaviour that nobody relies on costs time for nothing."""
    facts = {name for name in there() if name.startswith("slurm_")}
    assert set() == facts - {name for row in rows() for name in row.slurm}


def test_what_needs_slurm_lies_where_it_is_looked_for() -> None:
    """`scripts/test` looks for it in two directories only; those of a third would never run."""
    tests = PLACE.parent
    marked = {
        path.relative_to(tests).parts[0]
        for path in tests.rglob("test_*.py")
        if re.search(r"mark\.slurm\b", path.read_text(encoding="utf-8")) and path.name != Path(__file__).name
    }
    assert marked <= {"chaos", "real_slurm"}


def test_what_takes_long_exists() -> None:
    """Who renames a test, or has tests of a file share their jobs, says so in `order`."""
    named = {f"test_{file}.py::test_{name}" for file, _, name in (each.partition(".") for each in there())}
    sharing = {path.name for path in PLACE.glob("test_*.py") if SHARE_JOBS.fullmatch(path.name)}
    assert set() == set(SECONDS) - named - sharing
    assert 5 == len(sharing)
