"""The measure `ettr` of scripts/bench: its faults, what it counts, and a whole run of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_lib.ettr.course import KINDS, Course, Note, Strike, plan
from bench_lib.ettr.picture import read_outcomes
from bench_lib.ettr.table import outcome, rate
from bench_lib.plot import PlotError

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_the_faults_follow_from_the_seed() -> None:
    """The same seed gives the same faults; each kind comes once before one comes twice."""
    faults = plan(seed=7, every_s=60.0, length_s=900.0)
    assert faults == plan(seed=7, every_s=60.0, length_s=900.0)
    assert faults != plan(seed=8, every_s=60.0, length_s=900.0)
    assert 14 == len(faults)
    assert set(KINDS) == {kind for _, kind in faults[: len(KINDS)]}
    assert all(abs(at - 60.0 * (place + 1)) <= 6.0 for place, (at, _) in enumerate(faults))


def notes_of(pid: int, began: float, loaded: int, steps: int) -> list[Note]:
    """Return the notes of the only worker of one start, with a step each second."""
    times = {"began": began, "imported": began + 1, "met": began + 1.5, "loaded": began + 2}
    started = [Note(at, what, 0, loaded, "node1", pid) for what, at in times.items()]
    made = [Note(began + 3 + step, "step", 0, loaded + 1 + step, "node1", pid) for step in range(steps)]
    return started + made


def test_only_steps_that_are_not_lost_count() -> None:
    """A start that loads an older step takes back what was computed since, and its parts are told."""
    notes = notes_of(1, 97.0, 0, 10) + notes_of(2, 115.0, 6, 8)
    course = Course(100.0, 126.0, [Strike(110.0, "worker-kill")], sorted(notes), "RUNNING")
    found = outcome(course, undisturbed=1.0)
    assert (14, 1, 4, 1) == (found.steps, found.faults, found.lost_steps, found.restarts)
    assert found.ratio == pytest.approx(14 / 26)
    assert {"began": 5, "imported": 1, "met": 0.5, "loaded": 0.5, "step": 1} == found.parts_s
    assert [("worker-kill", 10.0, 8.0)] == found.strikes


def test_a_run_that_did_not_come_back_has_no_parts() -> None:
    """Its fault is listed without a time, and the steps before it count."""
    course = Course(100.0, 130.0, [Strike(110.0, "hang")], notes_of(1, 97.0, 0, 10), "FAILED")
    found = outcome(course, undisturbed=1.0)
    assert ({}, [("hang", 10.0, None)], "FAILED") == (found.parts_s, found.strikes, found.job_state)
    assert 10 == found.steps


def test_outcomes_are_read_from_the_file_of_a_run(tmp_path: Path) -> None:
    """For a picture; a file of another kind is refused."""
    course = Course(100.0, 126.0, [], notes_of(1, 97.0, 0, 10), "RUNNING")
    found = {"torchrun": outcome(course, undisturbed=1.0)}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"ettr": {name: one._asdict() for name, one in found.items()}}))
    assert found == read_outcomes([path])
    path.write_text('{"ettr": {"torchrun": {"other": 1}}}')
    with pytest.raises(PlotError, match="not a file written by --json"):
        read_outcomes([path])


def test_the_rate_without_faults_is_that_of_the_steps_alone() -> None:
    """Ten steps with a second between them are one per second, whatever comes after the last."""
    assert rate(Course(100.0, 300.0, [], notes_of(1, 97.0, 0, 10), "RUNNING")) == pytest.approx(1.0)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_run_with_a_fault_is_measured(tmp_path: Path) -> None:
    """Steps count after the fault, too, and the table has the row."""
    into = tmp_path / "ettr.json"
    length = ("--minutes", "0.4", "--fault-every", "9", "--seed", "5", "--ways", "hpc_elastic --preload")
    argv = [sys.executable, str(BENCH), "--measure", "ettr", *length, "--json", str(into)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=350, check=False)
    assert 0 == ended.returncode, ended.stderr
    found = json.loads(into.read_text())
    assert [] == found["failures"]
    one = found["ettr"]["hpc_elastic --preload"]
    assert 1 == one["faults"]
    assert one["steps"] > 0
    assert "| hpc_elastic --preload | " in ended.stdout
