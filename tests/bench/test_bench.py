"""scripts/bench measures real agents; here only that it works, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/bench on hpc_elastic alone."""
    argv = [sys.executable, str(BENCH), "--quick", "--only", "hpc_elastic", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.slow
def test_measures_and_writes_what_it_measured(tmp_path: Path) -> None:
    """The table names the target, and the JSON file has every sample and the medians."""
    ended = bench("--measure", "start", "--json", str(tmp_path / "bench.json"))
    assert 0 == ended.returncode, ended.stderr
    assert "agent started -> worker's first line [s]" in ended.stdout
    assert "<= 24" in ended.stdout
    record = json.loads((tmp_path / "bench.json").read_text())
    assert (1, []) == (record["format"], record["failures"])
    samples = record["samples"]["hpc_elastic"]
    assert {"first_line_s", "rss_mb", "pss_mb"} == set(samples)
    assert all(len(values) == 3 and min(values) > 0 for values in samples.values())
    assert sorted(samples["rss_mb"])[1] == record["medians"]["hpc_elastic"]["rss_mb"]


@pytest.mark.slow
def test_nothing_outlives_a_killed_agent() -> None:
    """The promise that needs no stopwatch holds."""
    ended = bench("--measure", "orphans", "--strict")
    assert 0 == ended.returncode, ended.stdout + ended.stderr


def test_unknown_measure_is_refused() -> None:
    """A misspelt measure is an error that lists the measures."""
    ended = bench("--measure", "speed")
    assert 2 == ended.returncode
    assert "four-agents" in ended.stderr
