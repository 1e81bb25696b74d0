"""submitit's own tests of its local executor, which it installs, pass with ours in its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.submitit.exchanged import NOT_FOR_US

REPOSITORY = Path(__file__).parents[2]
TESTS = ("submitit.local.test_local", "submitit.test_pickle", "submitit.test_helpers")
LEAST_PASSED = 15


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_submitits_own_tests_pass(tmp_path: Path) -> None:
    """Those of values, errors, arrays, output, pickles, helpers, and names that a shell would take apart."""
    configuration = tmp_path / "pytest.ini"
    configuration.write_text("[pytest]\n")
    argv = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.submitit.exchanged", "-p", "no:cacheprovider"),
        *("-c", str(configuration), "--rootdir", str(tmp_path), "--tb=short", "--pyargs", *TESTS),
    ]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (passed|deselected)", done.stdout)}
    assert len(NOT_FOR_US) == counted["deselected"]
    assert counted["passed"] >= LEAST_PASSED
