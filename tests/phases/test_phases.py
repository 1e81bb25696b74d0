"""What `scripts/test` writes down of its phases, and the second try of tests on real things."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from phases_lib import record, summary
from phases_lib.cli import main
from phases_lib.record import Outcome, Phase

SCRIPTS = Path(__file__).parents[2] / "scripts"
FLAKY = """
import pathlib


def test_right():
    print("said by one that passes")


def test_flaky():
    print("said by one that fails")
    told = pathlib.Path("told")
    first = not told.exists()
    told.touch()
    assert not first


def test_also_right():
    pass
"""
WRONG = "def test_wrong():\n    assert False\n"
MANY = "import pytest\n\n\n@pytest.mark.parametrize('n', range(4))\ndef test_wrong(n):\n    assert False\n"


def run_phase(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run one phase of pytest with second tries in a folder, and print the record of it."""
    (folder / "scripts").symlink_to(SCRIPTS)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    script = """
        set -euo pipefail
        source scripts/venv.sh; source scripts/phases.sh
        cd "$1"
        marked() { local recording; recorded; "$python" -m pytest -q "${recording[@]}" "$@"; }
        python=$2
        begin_record
        phase one "the only phase" twice marked -p no:randomly -- tests
        tell_phases
        printf '%s\\n' "${summary[@]}"
        exit ${#failed[@]}
    """
    return subprocess.run(
        ["bash", "-c", script, "bash", folder, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
    )


@pytest.mark.slow
def test_a_test_that_passes_at_the_second_try_is_told_with_both_logs(tmp_path: Path) -> None:
    """The phase is a success; only the test that failed was run again."""
    done = run_phase(tmp_path, FLAKY)
    assert 0 == done.returncode, done.stderr
    assert "ok      the only phase" == done.stdout.splitlines()[-1]
    told = "tests/test_it.py::test_flaky (build/second-try/tests-test_it.py--test_flaky.first.log, "
    assert f"passed at the second try: {told}" in done.stderr
    first, second = (
        (tmp_path / "build" / "second-try" / f"tests-test_it.py--test_flaky.{which}.log").read_text()
        for which in ("first", "second")
    )
    assert ("assert not first" in first, "said by one that fails" in first) == (True, True)
    assert "1 passed" in second
    (phase,) = record.phases(tmp_path / "build" / "times")
    assert ["test_right", "test_flaky", "test_also_right", "test_flaky"] == [
        test.name.rpartition("::")[2] for test in phase.tests
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("tests", "tries"), [(WRONG, 1), (MANY, 0)], ids=["fails again", "too many"])
def test_what_fails_again_or_too_often_fails_the_phase(tmp_path: Path, tests: str, tries: int) -> None:
    """A test that is wrong stays wrong, and four failures are no chance."""
    done = run_phase(tmp_path, tests)
    assert 1 == done.returncode
    assert "FAILED  the only phase (exit code 1)" in done.stdout
    assert tries == done.stderr.count("== once more, alone")


def test_a_phase_has_its_time_and_its_tests(tmp_path: Path) -> None:
    """All four figures of the shell's `times` are time that was computed; a phase without tests has none."""
    (tmp_path / "phases").write_text("check\tcheck\ntorch\ttests with torch\n")
    (tmp_path / "check.took").write_text("40\n0m0.500s 0m0.250s\n1m2.250s 0m3.000s\n")
    (tmp_path / "torch.took").write_text("10\n0m0,000s 0m0,000s\n0m5,000s 0m0,000s\n")
    (tmp_path / "torch.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="test_b[c::d]" time="1.5"/>'
        '<testcase classname="tests.a" name="test_c" time="0.5"><failure>why</failure></testcase>'
        "</testsuite></testsuites>"
    )
    (tmp_path / "torch.second-1.xml").write_text(
        '<testsuites><testcase classname="tests.a" name="test_c" time="0.25"/></testsuites>'
    )
    (tmp_path / "torch-more.xml").write_text("not of this phase")
    assert record.phases(tmp_path) == [
        Phase("check", 40.0, 66.0, ()),
        Phase(
            "tests with torch",
            10.0,
            5.0,
            (
                Outcome("tests.a::test_b[c::d]", 1.5),
                Outcome("tests.a::test_c", 0.5, "why"),
                Outcome("tests.a::test_c", 0.25),
            ),
        ),
    ]


@pytest.mark.parametrize(
    ("node_id", "name"),
    [
        ("tests/a/test_b.py::test_c", "tests.a.test_b::test_c"),
        ("tests/test_b.py::TestD::test_c", "tests.test_b.TestD::test_c"),
        ("tests/test_b.py::test_c[x::y/z.py]", "tests.test_b::test_c[x::y/z.py]"),
    ],
)
def test_names_of_pytest_are_found_in_its_file(node_id: str, name: str) -> None:
    """The file has dots in place of slashes, and no ending."""
    assert name == record.junit_name(node_id)


def test_the_table_tells_computing_from_waiting() -> None:
    """Of two CPUs for ten seconds, five seconds were computed."""
    lines = list(summary.table([Phase("torch", 10.0, 5.0, (Outcome("a", 1.0),))], cores=2))
    assert ["10", "s", "5", "s", "25%", "75%", "1", "torch"] == lines[1].split()


def test_only_the_slowest_tests_are_named() -> None:
    """Twenty, the slowest first."""
    tests = tuple(Outcome(f"test_{number}", number) for number in range(30))
    lines = list(summary.slowest([Phase("one", 1.0, 1.0, tests)]))
    assert ("29.0 s  test_29", 20) == (lines[0].strip(), len(lines))


def test_two_runs_are_compared_by_phase_and_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is new or gone has a dash; what differs most comes first."""
    now = [Phase("check", 40.0, 30.0, ()), Phase("new", 1.0, 1.0, (Outcome("a", 5.0), Outcome("b", 2.0)))]
    before = [Phase("check", 60.0, 50.0, (Outcome("b", 2.5), Outcome("gone", 3.0)))]
    lines = [line.split() for line in summary.changes(now, before)]
    assert ["60", "s", "40", "s", "50", "s", "30", "s", "check"] == lines[1]
    assert ["-", "1", "s", "-", "1", "s", "new"] == lines[2]
    assert [["-", "5.0", "s", "a"], ["3.0", "s", "-", "gone"], ["2.5", "s", "2.0", "s", "b"]] == lines[4:]
    assert 0 == main(["changes", str(tmp_path), str(tmp_path)])
    assert "there are no two runs of scripts/test in this checkout\n" == capsys.readouterr().out


def test_a_fixed_computation_tells_the_speed_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """In seconds."""
    assert 0 == main(["calibrate"])
    assert float(capsys.readouterr().out) > 0
