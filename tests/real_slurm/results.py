"""Writes down how the tests on a real Slurm have ended, for docs/slurm-versions.md."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock, date_text
from tests.real_slurm.order import tracker


class ResultsFile:
    """Counts tests by the tracker that they ran under; who starts clusters of its own is not counted.

    Args:
        path: what it writes at the end.
        core: whether only the core is run.
    """

    def __init__(self, path: Path, *, core: bool) -> None:
        self._path = path
        self._core = core
        self._ended: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take notice of a phase of a test: its call, or what failed before or after it."""
        if report.when == "call" or report.failed:
            failed = report.failed or self._ended.get(report.nodeid) == "failed"
            self._ended[report.nodeid] = "failed" if failed else report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        counts = Counter((tracker(nodeid), outcome) for nodeid, outcome in self._ended.items())
        said = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=False).stdout
        found = [
            {
                "slurm": said.split()[-1] if said else "",
                "python": platform.python_version(),
                "tracker": name,
                "passed": counts[name, "passed"],
                "failed": counts[name, "failed"],
                "core": self._core,
                "date": date_text(SystemClock().wall())[:10],
            }
            for name in sorted({name for name, _ in counts if name})
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(found, indent=1) + "\n")
