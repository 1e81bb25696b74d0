"""Faults that are exchanged in one process: what is noticed there is noticed in a copy, too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mutate_lib import coverage_map, judge
from mutate_lib.codes import AtImportError, changed
from mutate_lib.coverage_map import Found, Recorder
from mutate_lib.in_place import choose_in_place, killed_in_place
from mutate_lib.judge import Fate
from mutate_lib.mutants import Mutant, Source
from mutate_lib.project import Project
from mutate_lib.tree import make_base

FILE = "planted/rule.py"
RULE = '''"""Functions of all sorts."""

import functools


def one_more(function):
    @functools.wraps(function)
    def more(number):
        return function(number) + 1

    return more


def least(number):
    return min(number, 3)


LEAST = least(5)


@one_more
def twice(number):
    return number + number


def adder(step):
    def add(number):
        return number - step

    return add


def below(limit):
    number = 0
    while number < limit:
        yield number
        number = number + 1


class Box:
    def __init__(self, size):
        self._size = size

    @property
    def is_empty(self):
        return self._size == 0

    @classmethod
    def larger(cls, size):
        return cls(size + 1)

    @staticmethod
    def fits(one, other):
        return one < other

    @functools.lru_cache
    def half(self, by=2):
        return self._size // by
'''
TESTS = """import subprocess
import sys

import pytest
from planted import rule


def test_functions():
    assert (3, 1, 1) == (rule.least(rule.LEAST), rule.adder(2)(3), sum(rule.below(2)))


def test_a_decorated_function():
    assert 7 == rule.twice(3)


@pytest.mark.parametrize("size", [0, 1])
def test_a_box(size):
    assert (size == 0) is rule.Box(size).is_empty
    assert not rule.Box.larger(size).is_empty
    assert rule.Box.fits(size, 2)  # and what about 2?
    assert 2 == rule.Box(4).half()
"""
IN_A_PROGRAM = """import subprocess
import sys
from planted import rule


def test_both_sides_agree():
    code = "from planted import rule; print(rule.least(9))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert rule.least(9) == int(said)
"""
PYTEST = """[tool.pytest.ini_options]
addopts = ["-p", "no:hpc_elastic"]  # the plugin of the package that is not there
pythonpath = ["."]
"""
LEFT_TO_COPIES = {
    ("least", "return max(number, 3)"),  # the module calls it
    ("least", "return (None)"),
    ("least", "return min(number, (4))"),
    ("least", "return min(number, (2))"),
    ("one_more", "return (None)"),
    ("one_more.more", "return (None)"),  # it does not use the function around it any more
}


def plant(root: Path, tests: dict[str, str]) -> Project:
    """Return a repository with all sorts of functions, of which a copy has been made beside it."""
    files = {"planted/__init__.py": "", FILE: RULE, "pyproject.toml": PYTEST, **tests}
    for name, text in files.items():
        (root / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "repository" / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(root / "repository")], check=True)
    project = Project.find(root / "repository", "planted")
    make_base(project, root / "base")
    return Project(root / "base", "planted", project.files)


def found(project: Project) -> list[Found]:
    """Return what the tests of the repository run."""
    return list(Recorder(project, 1, print).find(project.test_files).values())


def in_place(project: Project, mutants: list[Mutant]) -> dict[Mutant, str]:
    """Return which mutants are noticed in one process, and by what."""
    known = found(project)
    chosen = [(one, tests) for one in mutants if (tests := choose_in_place(one, FILE, known))]
    return {one.mutant: one.why for one in killed_in_place(project.root, "place", FILE, chosen)}


def killed_in_copies(project: Project, mutants: list[Mutant]) -> set[Mutant]:
    """Return which mutants are noticed where each runs in a copy of its own."""
    known = found(project)
    fates = (judge.judge(project.root, one, FILE, judge.tests_for(one, FILE, known, None)) for one in mutants)
    return {one.mutant for one in fates if one.fate is Fate.KILLED}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for all that is made, also for what is remembered of tests."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_ways_give_the_same_verdict(temporary: Path) -> None:
    """What a test notices in a copy it notices in place, but for faults that run at the import."""
    project = plant(temporary, {"tests/test_rule.py": TESTS})
    mutants = Source("rule", RULE).mutants()
    noticed = in_place(project, mutants)
    endless = {one for one, why in noticed.items() if why.endswith("does not end")}
    assert {"number = (number - 1)", "number = number + (0)"} == {one.after for one in endless}
    left = {one for one in mutants if not one.lines or (one.scope, one.after) in LEFT_TO_COPIES}
    others = [
        one for one in mutants if one not in left | endless
    ]  # a copy takes an endless one half a minute
    tried = left | set(others[::2])  # a copy takes each of them a second
    killed = killed_in_copies(project, [one for one in mutants if one in tried])
    assert {one.text() for one in killed - left} == {one.text() for one in noticed if one in tried}
    assert set(LEFT_TO_COPIES) <= {(one.scope, one.after) for one in killed}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fault_that_a_program_has_too_is_left_to_the_copies(temporary: Path) -> None:
    """A test that starts a program with the module says nothing in place, where the program has no fault."""
    project = plant(temporary, {"tests/test_program.py": IN_A_PROGRAM})
    (known,) = found(project)
    assert [{FILE, "planted/__init__.py"}] == [
        test.elsewhere | {"planted/__init__.py"} for test in known.tests
    ]
    assert {} == in_place(project, Source("rule", RULE).mutants())


def compiled(text: str) -> list[tuple[str, bool, bool]]:
    """Return each function that the first fault of a module changes: whether inner, whether itself."""
    source = Source("m", text).mutants()[0].source
    both = [compile(one, "m", "exec") for one in (text, source)]
    return [(one.before.co_name, one.is_inner, one.is_itself) for one in changed(*both)]


def test_the_functions_around_a_fault_change_with_it() -> None:
    """Who makes a function has its code; what stands beside it stays."""
    text = "def f(a):\n  def g(b):\n    return b < 2\n  return g\n\n\ndef h():\n  pass\n"
    assert [("f", False, False), ("g", True, True)] == compiled(text)


def test_a_method_changes_alone() -> None:
    """The body of the class is the same."""
    assert [("f", False, True)] == compiled("class A:\n  def f(self, a):\n    return a < 2\n")


@pytest.mark.parametrize("text", ["def f(a=1):\n  pass\n", "class A:\n  b = 1 < 2 + a\n", "a = b < 2\n"])
def test_what_runs_at_the_import_cannot_be_exchanged(text: str) -> None:
    """A default value, the body of a class and a line of the module have no code to be exchanged."""
    with pytest.raises(AtImportError):
        compiled(text)


def test_slow_tests_are_left_to_the_copies() -> None:
    """In place run the tests that run the line, take a moment and start no program that runs the module."""
    (mutant, *_) = Source("rule", "def f(a):\n    return a < 2\n").mutants()
    lines = {FILE: frozenset({2})}
    tests = [
        coverage_map.Test("slow", 2.0, lines, frozenset()),
        coverage_map.Test("starts a program", 0.1, lines, frozenset({FILE})),
        coverage_map.Test("next", 0.3, lines, frozenset({"planted/other.py"})),
        coverage_map.Test("first", 0.1, lines, frozenset()),
        coverage_map.Test("runs another line", 0.1, {FILE: frozenset({1})}, frozenset()),
    ]
    assert ["first", "next"] == [one.name for one in choose_in_place(mutant, FILE, [Found(tests, [])])]
    assert [] == choose_in_place(mutant._replace(lines=()), FILE, [Found(tests, [])])
