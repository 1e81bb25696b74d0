"""scripts/mutate on a small project: what its tests notice, and what they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutate_lib.project import Project, UnknownModuleError

SCRIPTS = Path(__file__).parents[2] / "scripts"
RULE = '''"""A rule."""


def may_start(starts: int, limit: int) -> bool:
    """Tell whether one more start is allowed."""
    return starts < limit
'''
PROGRAM = '''"""Asks the rule in a process of its own."""

import subprocess
import sys


def ask(starts: int, limit: int) -> str:
    """Return what another process says."""
    code = f"from planted.rule import may_start; print(may_start({starts}, {limit}))"
    argv = [sys.executable, "-I", "-c", code]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
'''
PYTEST = """[tool.pytest.ini_options]
addopts = ["-p", "no:hpc_elastic"]  # the plugin of the package that is not there
pythonpath = ["."]
"""
WEAK = "from planted.rule import may_start\n\n\ndef test_some_starts():\n    assert may_start(1, 3)\n"
STRONG = f"{WEAK}\n\ndef test_the_last_start():\n    assert not may_start(3, 3)\n"
FROM_OUTSIDE = """from planted.program import ask


def test_another_process_follows_the_rule():
    assert "False" == ask(3, 3).strip()
"""
TOO_DEEP = """import pytest
from planted.rule import may_start


def deeper():
    return deeper()


def test_a_recursion_without_end():
    with pytest.raises(RecursionError):
        deeper()


def test_the_last_start():
    assert not may_start(3, 3)
"""
UNRELATED = "def test_nothing_of_the_package():\n    raise AssertionError\n"
FLIPPED = "rule:may_start [flip] 'return starts < limit' -> 'return (starts <= limit)'"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Return a repository with a rule that has no tests."""
    root = tmp_path / "repository"
    for name, text in {
        "planted/__init__.py": "",
        "planted/rule.py": RULE,
        "planted/program.py": PROGRAM,
        "tests/test_unrelated.py": UNRELATED,
        "pyproject.toml": PYTEST,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def mutate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Judge all mutants of the rule."""
    argv = [sys.executable, "-m", "mutate_lib.cli", "rule", "--root", str(root), "--package", "planted"]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SCRIPTS), "TMPDIR": str(root.parent)}
    return subprocess.run(
        [*argv, "--jobs", "2", *options], env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_weak_test_leaves_a_survivor(planted: Path) -> None:
    """What only looks right is told from what is tested, and the exit code says so."""
    (planted / "tests/test_rule.py").write_text(WEAK)
    ended = mutate(planted, "--match", "[")
    assert 1 == ended.returncode, ended.stderr
    assert f"survived: {FLIPPED}" in ended.stdout
    assert "killed: rule:may_start [return]" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_strong_test_kills_all(planted: Path) -> None:
    """A test of the bound notices; the working tree stays as it is."""
    (planted / "tests/test_rule.py").write_text(STRONG)
    ended = mutate(planted, "--seed", "1")
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "| `rule` | 2 | 2 | 0 | 0 |" in ended.stdout
    assert RULE == (planted / "planted/rule.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_runs_in_another_process_is_seen(planted: Path) -> None:
    """A test counts whose child process runs the line, and the child has the fault, whatever its path is."""
    (planted / "tests/test_program.py").write_text(FROM_OUTSIDE)
    ended = mutate(planted, "--match", "flip")
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert (
        f"killed: {FLIPPED}\n    tests/test_program.py::test_another_process_follows_the_rule" in ended.stdout
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_runs_after_a_recursion_without_end_is_seen(planted: Path) -> None:
    """A test counts for the lines that it runs, also after one at which Python has stopped to trace lines."""
    (planted / "tests/test_rule.py").write_text(TOO_DEEP)
    ended = mutate(planted, "--match", "flip")
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert f"killed: {FLIPPED}\n    tests/test_rule.py::test_the_last_start" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_explained_survivor_is_counted_apart(planted: Path) -> None:
    """A mutant with a reason is not run, and is no failure."""
    (planted / "tests/test_rule.py").write_text(WEAK)
    (planted / "tests/mutation").mkdir()
    (planted / "tests/mutation/equivalent.toml").write_text(
        '[[equivalent]]\nmodule = "rule"\nscope = "may_start"\nbefore = "return starts < limit"\n'
        'after = "return (starts <= limit)"\nreason = "for this test"\n'
    )
    ended = mutate(planted)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "| `rule` | 2 | 1 | 0 | 1 |" in ended.stdout


def test_a_list_runs_nothing(planted: Path) -> None:
    """The mutants of a seed can be looked at first."""
    ended = mutate(planted, "--list")
    assert (0, 2) == (ended.returncode, len(ended.stdout.splitlines()))
    assert FLIPPED in ended.stdout


def test_an_unknown_module_is_refused(planted: Path) -> None:
    """A misspelt module is an error that names it."""
    with pytest.raises(UnknownModuleError, match="'rules'"):
        Project.find(planted, "planted").file_of("rules")


def test_tests_are_found_by_name_and_by_import(planted: Path) -> None:
    """Direct tests are named after the module or import it; wider ones are about what imports it."""
    for name, text in {
        "tests/test_rule_at_night.py": "",
        "tests/test_other.py": "from planted import rule\n",
        "planted/user.py": "from planted.rule import may_start\n",
        "tests/deep/test_user.py": "import planted.user\n",
        "tests/deep/test_not.py": "import planted.program\n",
    }.items():
        (planted / name).parent.mkdir(exist_ok=True)
        (planted / name).write_text(text)
    project = Project.find(planted, "planted")
    assert ["tests/test_other.py", "tests/test_rule_at_night.py"] == project.direct_tests("planted/rule.py")
    assert "tests/deep/test_user.py" in project.wider_tests("planted/rule.py")
    assert "tests/deep/test_not.py" not in project.wider_tests("planted/rule.py")
