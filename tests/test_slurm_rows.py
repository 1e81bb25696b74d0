"""Every row of what Slurm does has a test, in both modes, and so has every part of what we promise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Decision
from tests.real_slurm import facts
from tests.real_slurm.core import CORE
from tests.real_slurm.explained import Seen, fits
from tests.real_slurm.facts import FACTS, VERSIONS
from tests.real_slurm.modes import IN_ARRAY_MODE, IN_STEP_MODE, PARTS, Held
from tests.real_slurm.rows import NODE_LOSS, ROWS, SIGNALS, Row
from tests.real_slurm.table_of_causes import EXPLAINED, QUIET, Told, ToldRun

HERE = Path(__file__).parent
PLACE = HERE / "real_slurm"
WORDS = 4
"""A reason in fewer words is none."""


def there() -> set[str]:
    """Return the tests on a real Slurm, as `rows` names them; of others the folder comes first."""
    return {
        f"{_folder(path)}{path.stem.removeprefix('test_')}.{node.name.removeprefix('test_')}"
        for path in HERE.rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def _folder(path: Path) -> str:
    return "" if path.parent == PLACE else f"{path.parent.relative_to(HERE)}/"


def rows() -> list[Row]:
    """Return all rows."""
    return [row for group in ROWS.values() for row in group]


def held() -> Iterator[tuple[str, Held]]:
    """Yield what holds each event and each part in each mode, with a name for it."""
    for row in (*SIGNALS, *NODE_LOSS):
        yield f"{row.event}, step mode", row.ours or IN_STEP_MODE.get(row.event, ())
        yield f"{row.event}, array mode", IN_ARRAY_MODE.get(row.event, ())
    for name, parts in PARTS.items():
        for part in parts:
            yield f"{name}: {part.what}, step mode", part.step
            yield f"{name}: {part.what}, array mode", part.array


def test_every_row_has_a_test() -> None:
    """No row rests on a promise."""
    assert [] == [row.event for row in rows() if not row.slurm and not row.ours]


def test_everything_has_a_test_in_both_modes() -> None:
    """Or words that say why not."""

    def is_reason(found: Held) -> bool:
        return isinstance(found, str) and len(found.split()) >= WORDS

    assert [] == [
        what for what, found in held() if not found or not (isinstance(found, tuple) or is_reason(found))
    ]


def test_the_tests_of_the_rows_exist() -> None:
    """Who renames a test renames it here."""
    named = {name for row in rows() for name in (*row.slurm, *row.ours)}
    named.update(name for _, found in held() if isinstance(found, tuple) for name in found)
    assert set() == named - there()


def test_the_core_and_the_facts_name_what_exists() -> None:
    """Each fact has a word for each version, and a test that asks for it."""
    assert set() == CORE - there()
    assert [] == [name for name, fact in FACTS.items() if len(fact.holds) != len(VERSIONS)]
    asked = "\n".join(path.read_text(encoding="utf-8") for path in PLACE.glob("test_*.py"))
    assert [] == [name for name in FACTS if f'.fact("{name}")' not in asked]


@pytest.mark.parametrize(
    ("version", "column"),
    [
        ("19.05.5", 0),
        ("20.11.4", 0),
        ("22.05.8", 1),
        ("23.11.10", 1),
        ("24.11.5", 2),
        ("26.05.5", 3),
        ("27.11.0", 3),
    ],
)
def test_a_version_between_two_has_the_facts_of_the_older(version: str, column: int) -> None:
    """So a newer one is held to what holds for the newest that is known."""
    assert column == facts.column(version)


def test_modes_are_told_of_events_that_exist() -> None:
    """Who renames a row renames it there; in step mode a row that names tests of ours says enough."""
    events = {row.event: row for row in (*SIGNALS, *NODE_LOSS)}
    assert set() == IN_ARRAY_MODE.keys() - events.keys()
    assert set() == IN_STEP_MODE.keys() - {event for event, row in events.items() if not row.ours}


def test_every_fact_about_slurm_has_a_row() -> None:
    """A test of Slurm's own behaviour that nobody relies on costs time for nothing."""
    facts = {name for name in there() if name.startswith("slurm_")}
    assert set() == facts - {name for row in rows() for name in row.slurm}


def test_ci_leaves_none_of_them_out() -> None:
    """All tests of this directory carry a marker, and what carries it is run, or CI fails.

    Of the other versions it runs the core, under cgroup version 2 on one of them.
    Drills repeat at other moments what the tests show, and take long: no row rests on one.
    """
    script = (HERE.parent / "scripts" / "test").read_text(encoding="utf-8")
    assert 'marked "slurm and not (shared_fs or drills)"' in script
    core_of = re.findall(r"([\d.]+):(\w+)", re.findall(r"CORE_ON=\((.*?)\)", script)[0])
    assert {"24.11", "26.05"} == {version for version, _ in core_of}
    assert {"linuxproc", "cgroup2"} == {tracker for _, tracker in core_of}
    named = {name for row in rows() for name in (*row.slurm, *row.ours)}
    named.update(name for _, found in held() if isinstance(found, tuple) for name in found)
    assert [] == [name for name in named if name.startswith("real_slurm/drills/")]
    assert "export HPC_ELASTIC_NO_SKIP=1" in script
    assert "add_marker(pytest.mark.slurm)" in (PLACE / "conftest.py").read_text(encoding="utf-8")


def test_a_wrong_cause_node_number_or_ending_is_found() -> None:
    """What `explain` tells is compared with the row in each of these."""
    crash = {"cause": "crash", "times": 2, "round": 1, "nodes": ["n2"], "drill": ""}
    pause = {"cause": "membership", "times": 1, "round": 2, "nodes": []}
    document = {"phase": "done", "text": "", "earlier_stops": 0, "stops": [crash, pause]}
    one, done = Seen(HERE, document, {1: ("n1", "n2")}), (Decision.DONE,)
    right = Told((Cause.CRASH, Cause.HANG), (1,), least=2, most=2)
    wrong = [
        right._replace(causes=(Cause.HANG,)),
        right._replace(at=(0,)),
        right._replace(at="n1"),
        right._replace(by="drill"),
        right._replace(least=1, most=1),
    ]
    assert fits(one, ToldRun((right,), done))
    assert [] == [told for told in wrong if fits(one, ToldRun((told,), done))]
    assert not fits(one, ToldRun((right,), (None, Decision.FAILED)))
    assert not fits(one, ToldRun((), done))


def test_every_test_says_what_explain_has_to_tell_of_its_runs() -> None:
    """It has a row in the table of causes, or nothing happens to its runs but what it wishes."""
    here = {name for name in there() if "/" not in name}
    rows_of = {name.partition("[")[0] for name in EXPLAINED}
    files = {name.partition(".")[0] for name in here}
    assert set() == rows_of - here
    assert set() == {name for name in QUIET if name not in here | files}
    assert set() == {
        name for name in here - rows_of if name not in QUIET and name.partition(".")[0] not in QUIET
    }
    assert set() == rows_of & QUIET.keys()
