"""Where tests on a real Slurm are looked for, which go together, and which go first."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.real_slurm.order import SECONDS, SHARE_JOBS, rank, trackers, unit

HERE = Path(__file__).parent
PLACE = HERE / "real_slurm"
MARKED = re.compile(r"^(@|pytestmark\b).*mark\.slurm\b", re.MULTILINE)
HEAVY = "tests/real_slurm/test_hangs.py::test_a_hang_is_found_told_and_mended"


def test_what_needs_slurm_lies_where_it_is_looked_for() -> None:
    """`scripts/test` looks for it in two directories only; those of a third would never run."""
    marked = {
        path.relative_to(HERE).parts[0]
        for path in HERE.rglob("test_*.py")
        if MARKED.search(path.read_text(encoding="utf-8"))
    }
    assert "chaos" in marked <= {"chaos", "real_slurm"}


def test_what_takes_long_exists() -> None:
    """Who renames a test, or has tests of a file share their jobs, says so in `order`."""
    files = list(PLACE.glob("test_*.py"))
    named = {
        f"{path.name}::{node.name}"
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    sharing = {path.name for path in files if SHARE_JOBS.fullmatch(path.name)}
    assert set() == set(SECONDS) - named - sharing
    assert 5 == len(sharing)


def test_tests_that_share_jobs_stay_together() -> None:
    """Under each tracker by themselves; any other test goes alone."""
    shapes = "tests/real_slurm/test_slurm_shapes.py::test_"
    assert unit(f"{shapes}a[linuxproc]") == unit(f"{shapes}b[linuxproc-x]") != unit(f"{shapes}b[cgroup]")
    assert unit(f"{HEAVY}[linuxproc]") != unit("tests/real_slurm/test_hangs.py::test_b[linuxproc]")


def test_long_ones_go_first() -> None:
    """Within a tracker, since another one needs another cluster."""
    short = "tests/real_slurm/test_drain.py::test_a[cgroup]"
    own = "tests/real_slurm/test_devcluster.py::test_a"
    assert rank(f"{HEAVY}[cgroup]") < rank(short) < rank(own) < rank(f"{HEAVY}[linuxproc]")


@pytest.mark.parametrize(
    ("test", "both", "asked", "core_under", "under"),
    [
        ("main_job.stop_saves_and_ends_the_run", False, "", "", ["linuxproc"]),
        ("main_job.a_cancelled_run_is_never_requeued", True, "", "", ["linuxproc", "cgroup"]),
        ("main_job.stop_saves_and_ends_the_run", False, "", "cgroup", ["cgroup"]),
        ("main_job.a_cancelled_run_is_never_requeued", True, "", "cgroup", ["cgroup"]),
        ("hangs.a_hang_is_found_told_and_mended", True, "", "cgroup", ["linuxproc", "cgroup"]),
        ("main_job.stop_saves_and_ends_the_run", False, "cgroup2,cgroup", "cgroup", ["cgroup2", "cgroup"]),
    ],
)
def test_under_which_trackers_a_test_runs(
    test: str, asked: str, core_under: str, under: list[str], *, both: bool
) -> None:
    """A test of the core may have one of its own; what is asked for all tests goes before that."""
    assert under == trackers(test, both=both, asked=asked, core_under=core_under)
