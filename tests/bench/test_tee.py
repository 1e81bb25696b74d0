"""The measure of output checks what it measures; how fast it is, it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_printed_line_is_in_its_file_and_on_the_console(tmp_path: Path) -> None:
    """Nothing is lost or broken at full speed; else the measure has no result."""
    found = tmp_path / "bench.json"
    argv = [sys.executable, str(BENCH), "--quick", "--only", "hpc_elastic", "--measure", "tee", "--strict"]
    ended = subprocess.run(
        [*argv, "--json", str(found)], capture_output=True, text=True, timeout=250, check=False
    )
    assert 0 == ended.returncode, ended.stderr
    record = json.loads(found.read_text())
    assert [] == record["failures"]
    samples = record["samples"]["hpc_elastic"]
    assert {0.0} == set(samples["tee_broken_lines"])
    assert {"tee_s", "redirect_s", "tee_alone_s", "redirect_alone_s", "tee_broken_lines"} == set(samples)
