"""A plugin of pytest: runs given tests in a given order, and notes which lines of the package each one runs.

A copy of this file stands in the environment of the tree under test, as ``mutate_plugin``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if __name__ == "mutate_plugin":
    import mutate_record as record  # type: ignore[import-not-found,unused-ignore]
else:
    from mutate_lib import record


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options with which mutate starts pytest."""
    parser.addoption("--mutate-tests", help="a file with the tests to run, in this order, as JSON")
    parser.addoption("--mutate-ended", help="a file for how each test has ended, a line of JSON each")
    parser.addoption("--mutate-lines", help="a file for the lines that each test has run, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to note what is asked for."""
    if config.getoption("mutate_ended"):
        config.pluginmanager.register(_Endings(Path(config.getoption("mutate_ended"))))
    if config.getoption("mutate_lines"):
        settings = json.loads((config.rootpath / record.SETTINGS).read_text())
        config.pluginmanager.register(_Lines(Path(config.getoption("mutate_lines")), settings))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that are asked for, in the order asked for."""
    if not config.getoption("mutate_tests"):
        return
    wanted = json.loads(Path(config.getoption("mutate_tests")).read_text(encoding="utf-8"))
    place = {name: at for at, name in enumerate(wanted)}
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


class _Endings:
    """Writes how each test has ended, at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the end of a test; what fails or is skipped before its end, then already."""
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration
        if report.when == "teardown" or report.outcome != "passed":
            ended = {"test": report.nodeid, "how": report.outcome, "took_s": self._took[report.nodeid]}
            self._file.write(json.dumps(ended) + "\n")

    def pytest_unconfigure(self) -> None:
        """Write no more."""
        self._file.close()


class _Lines:
    """Tells which lines ran for which test; for a whole file of tests what its import or its fixtures ran."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._seen = record.open_map(settings["map"])
        record.is_process_of_tests()
        self._firsts = sorted((first, name) for name, first in settings["firsts"].items())
        self._found: dict[str, set[int]] = {}
        self._now = ""

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Count what the import of a file of tests runs as run by all of them."""
        self._turn_to(collector.nodeid.partition("::")[0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what a test runs."""
        self._turn_to(item.nodeid)
        result = yield
        self._turn_to(item.nodeid.partition("::")[0])
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Count what a fixture of several tests runs as run by all tests of the file."""
        before = self._now
        if fixturedef.scope != "function":
            self._turn_to(before.partition("::")[0])
        try:
            return (yield)
        finally:
            self._turn_to(before)

    def pytest_sessionfinish(self) -> None:
        """Write what was found."""
        self._turn_to("")
        found = {name: self._in_halves(lines) for name, lines in self._found.items() if name}
        self._path.write_text(json.dumps(found), encoding="utf-8")

    def _turn_to(self, name: str) -> None:
        """Give all lines that have run since the last call to whom they belong."""
        lines = [match.start() for match in re.finditer(b"\x01", self._seen)]
        self._found.setdefault(self._now, set()).update(lines)
        for line in lines:
            self._seen[line] = 0
        self._now = name
        record.resume()

    def _in_halves(self, lines: set[int]) -> dict[str, Any]:
        half = len(self._seen) // 2
        elsewhere = self._by_file({line - half for line in lines if line >= half})
        return {"lines": self._by_file({line % half for line in lines}), "elsewhere": sorted(elsewhere)}

    def _by_file(self, lines: set[int]) -> dict[str, list[int]]:
        by_file: dict[str, list[int]] = {}
        at = 0
        for line in sorted(lines):
            while at + 1 < len(self._firsts) and self._firsts[at + 1][0] <= line:
                at += 1
            first, name = self._firsts[at]
            by_file.setdefault(name, []).append(line - first)
        return by_file
