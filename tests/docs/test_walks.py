"""The count of a walk, and the page that has the counts."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.walks import WALKS, Count, Counter, Walk

FILES = {
    "hall/__init__.py": "",
    "hall/door.py": """
from {package}.kitchen.stove import cook
class Guest:
    def enter(self): return [self.sit() for _ in range(2)]
    def sit(self): return cook()
def leave(): return None
def stay(): Guest().enter(); Guest().enter(); leave()
""",
    "kitchen/__init__.py": "",
    "kitchen/stove.py": "def cook(): return taste()\ndef taste(): return len('soup')\n",
}


def package_in(directory: Path, name: str) -> Path:
    """Write a package of two rooms; return its folder."""
    for file, text in {"__init__.py": "", **FILES}.items():
        path = directory / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{package}", name), encoding="utf-8")
    return directory / name


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("", "", Count(16, 6, 2, 8, 8)),
        ("hall/door.py:enter", "hall/door.py:leave", Count(15, 5, 2, 8, 8)),
        ("kitchen/stove.py:cook", "kitchen/stove.py:taste", Count(2, 2, 1, 0, 0)),
        ("hall/door.py:leave", "", Count(1, 1, 1, 0, 0)),
        ("hall/door.py:nothing", "", Count(0, 0, 0, 0, 0)),
    ],
    ids=["all", "a part", "one room", "the end", "none"],
)
def test_a_walk_is_counted_from_its_begin_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str, end: str, expected: Count
) -> None:
    """Each call of a named function counts; loops within one function and built-in functions do not."""
    name = f"walked_{abs(hash((begin, end)))}"
    folder = package_in(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    stay = import_module(f"{name}.hall.door").stay
    counter = Counter(Walk("", "", begin, end), str(folder))
    before = sys.getprofile()
    sys.setprofile(counter.see)
    try:
        stay()
    finally:
        sys.setprofile(before)
    assert expected == counter.count()


def test_each_change_of_room_is_named_with_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names tell the function before, the function after and the caller of the latter."""
    folder = package_in(tmp_path, "walked_edges")
    monkeypatch.syspath_prepend(str(tmp_path))
    stay = import_module("walked_edges.hall.door").stay
    counter = Counter(Walk("", "", "hall/door.py:enter", "hall/door.py:leave"), str(folder))
    before = sys.getprofile()
    sys.setprofile(counter.see)
    try:
        stay()
    finally:
        sys.setprofile(before)
    assert {
        "hall/door.py:sit -> kitchen/stove.py:cook (hall/door.py:sit)": 4,
        "kitchen/stove.py:taste -> hall/door.py:sit (hall/door.py:enter)": 2,
        "kitchen/stove.py:taste -> hall/door.py:enter (hall/door.py:stay)": 1,
        "kitchen/stove.py:taste -> hall/door.py:leave (hall/door.py:stay)": 1,
    } == counter.edges()


def test_the_page_has_the_counts_of_each_walk() -> None:
    """A walk that is counted has a row; its figures come from the command."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert [] == [walk.name for walk in WALKS if f"| {walk.name} | " not in page]
