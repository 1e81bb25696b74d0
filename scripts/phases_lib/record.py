"""The files that a run of `scripts/test` leaves of its phases, and their content.

A run has one directory. Of each phase it holds, by the phase's key:
`KEY.took` (wall seconds, then what the shell's `times` prints), `KEY.xml` (pytest's JUnit file) and
`KEY.cache` (pytest's cache, which names the tests that failed). `phases` has a line for each phase in order.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TIME = re.compile(r"(\d+)m([\d.,]+)s")


@dataclass(frozen=True)
class Outcome:
    """One test of a phase.

    Attributes:
        name: its file and name, as pytest takes it.
        seconds: how long it took with its fixtures.
        log: what it printed and how it failed; empty if it passed.
    """

    name: str
    seconds: float
    log: str = ""


@dataclass(frozen=True)
class Phase:
    """One phase of a run.

    Attributes:
        name: for people.
        wall_s: from its begin to its end, also where other phases ran beside it.
        cpu_s: computed by its processes that were waited for.
        tests: empty where it runs none.
    """

    name: str
    wall_s: float
    cpu_s: float
    tests: tuple[Outcome, ...]


def phases(run: Path) -> list[Phase]:
    """Return the phases of a run in order; empty if there was none."""
    listed = run / "phases"
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    return [_phase(run, *line.split("\t", maxsplit=1)) for line in lines]


def _phase(run: Path, key: str, name: str) -> Phase:
    wall, cpu = took((run / f"{key}.took").read_text(encoding="utf-8"))
    return Phase(name, wall, cpu, tuple(tests(run, key)))


def took(text: str) -> tuple[float, float]:
    """Return wall and CPU seconds from a file `.took`; of the shell's own two lines all four times count."""
    wall, _, times = text.partition("\n")
    parts = _TIME.findall(times)
    return float(wall), sum(60 * int(minutes) + float(rest.replace(",", ".")) for minutes, rest in parts)


def tests(run: Path, key: str) -> Iterator[Outcome]:
    """Yield the tests of a phase, second tries after the first."""
    for path in (run / f"{key}.xml", *sorted(run.glob(f"{key}.second-*.xml"))):
        if not path.exists():
            continue
        for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest has just written it
            place, name = case.get("classname", ""), case.get("name", "")
            failed = [node for node in case if node.tag in {"failure", "error"}]
            log = "\n".join((node.text or "") for node in case) if failed else ""
            yield Outcome(f"{place}::{name}", float(case.get("time", 0)), log)


def failed(cache: Path) -> list[str]:
    """Return the names of the tests that failed last, as pytest takes them."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def junit_name(node_id: str) -> str:
    """Return the name that `Outcome` has for a test of pytest.

    Args:
        node_id: for example `tests/store/test_lock.py::test_one[a/b]`.
    """
    path, _, name = node_id.partition("::")
    *classes, name = _split_name(name)
    return f"{'.'.join([path.removesuffix('.py').replace('/', '.'), *classes])}::{name}"


def _split_name(name: str) -> list[str]:
    """Split at `::`, but not in a parameter."""
    before, bracket, parameter = name.partition("[")
    parts = before.split("::")
    return [*parts[:-1], f"{parts[-1]}{bracket}{parameter}"]
