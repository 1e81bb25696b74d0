"""Nothing of the product changes what a training computes, and no wrong state is gone on from."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.harmless.mutants import MUTANTS
from tests.harmless.outcomes import known_failures, recorded
from tests.harmless.preloading import run_preloaded
from tests.harmless.recipes import Recipe
from tests.harmless.table import HARMLESS, ROWS, row_of
from tests.harmless.verdict import RIGHT, TrialResult, began_at, outcome, reasons, told
from tests.harmless.warm import REPOSITORY, Asked, Warm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]
PRELOADED = ("adam", "dropout", "ema_data", "gan", "grad_scaler", "loader_workers", "compiled")
FEW = (
    Recipe(("Adam", "RMSprop"), every=5, average="AveragedModel", evaluation="data", width=4000),
    Recipe(("SGD",), schedule="StepLR", body="queue", evaluation="no_grad", accumulates=2, width=200),
    Recipe(
        ("ScheduleFree", "AdamW"), body="batch norm", average="module", evaluation="exchange", frozen_until=4
    ),
)


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """A process that has loaded PyTorch."""
    server = Warm()
    yield server
    server.close()


class Runs:
    """The runs of one program.

    Args:
        warm: a process that has loaded PyTorch.
        program: the name.
        place: a directory.
    """

    def __init__(self, warm: Warm, program: str, place: Path) -> None:
        self._warm, self._program, self._place = warm, program, place
        one = recorded().get(program)
        self._ranks, self._is_copied = (1, False) if one is None else (one.ranks, one.is_copied)

    def outcomes(self, rows: Sequence[str], mutant: str = "") -> dict[str, str]:
        """Run the program in some ways, and return the outcome of each, with the log of a wrong one."""
        bare = self.told("bare")
        found = {}
        for row in rows:
            seen = self.told(row, mutant)
            result = outcome(row_of(row), bare, seen)
            is_right = result in RIGHT
            found[row] = result if is_right else f"{result}: {began_at(seen)}\n{seen.log[-4000:]}"
        return found

    def told(self, row: str, mutant: str = "") -> TrialResult:
        """Run the program in one way."""
        place = self._place / row.replace(" ", "-")
        self._warm.run([Asked(self._program, row, str(place), mutant)])
        return told(place, self._ranks, is_copied=self._is_copied)


@pytest.mark.parametrize("program", recorded())
def test_a_program_ends_as_without_the_product(
    warm: Warm, program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Below an agent, with checkpoints in files and in memory, and with a fault in each phase."""
    is_all = request.config.getoption("--zoo", default="fast") == "all"
    rows = [
        *HARMLESS,
        *([row for row in ROWS if row not in {"bare", "preload", *HARMLESS}] if is_all else []),
        "all",
    ]
    found = Runs(warm, program, tmp_path).outcomes(rows)
    known = {row for row in rows if f"{program}/{row}" in known_failures()}
    wrong = {row: result for row, result in found.items() if result not in RIGHT}
    assert {} == {row: result for row, result in wrong.items() if row not in known}
    sure = {row for row in known if known_failures()[f"{program}/{row}"].is_sure}
    assert set() == sure - wrong.keys(), "rows that are right now: take them out of known_failures.json"


@pytest.mark.parametrize("program", ["adam", "ddp", "fsdp2"])
def test_a_rank_is_killed_in_each_phase_twice_in_a_row(warm: Warm, program: str, tmp_path: Path) -> None:
    """The second time in the same step, in the round that has begun after the first."""
    runs = Runs(warm, program, tmp_path)
    found = runs.told("twice")
    assert runs.told("bare").ends == found.ends, found.log[-4000:]
    struck = [one["fault"] for one in found.events if "fault" in one]
    assert 9 <= len(struck), struck
    if program == "adam":  # a rank that is killed after the last collective of a step is beyond that step
        assert struck[::2] == struck[1::2]


def test_programs_end_as_in_a_worker_that_loads_its_modules_itself(
    warm: Warm, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One agent with preloaded modules runs them."""
    is_all = request.config.getoption("--zoo", default="fast") == "all"
    names = [name for name, one in recorded().items() if one.ranks == 1] if is_all else PRELOADED
    printed = run_preloaded(names, tmp_path / "preloaded")
    for name in names:
        warm.run([Asked(name, "bare", str(tmp_path / name), "")])
        bare, seen = told(tmp_path / name, 1), told(tmp_path / "preloaded" / name, 1)
        assert (name, bare.ends, bare.random) == (name, seen.ends, seen.random), printed[-4000:]
        assert None not in seen.ends


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_guard_is_needed(warm: Warm, name: str, tmp_path: Path) -> None:
    """Without it a program ends otherwise; without the hook the proof sees the step, and gives its reason."""
    program = MUTANTS[name].killed_by
    runs = Runs(warm, program, tmp_path / "without"), Runs(warm, program, tmp_path / "with")
    found = [each.told("all", mutant) for each, mutant in zip(runs, (name, ""), strict=True)]
    if name == "hook":
        assert reasons(found[0]) != reasons(found[1])
    else:
        assert found[0].ends != found[1].ends


def test_programs_that_are_put_together_at_random(warm: Warm, tmp_path: Path) -> None:
    """A few of them; `python -m tests.harmless.generate` tries as many as one likes."""
    for number, recipe in enumerate(FEW):
        name = f"recipe:{json.dumps(recipe._asdict())}"
        found = Runs(warm, name, tmp_path / str(number)).outcomes(["memory", "all"])
        assert {} == {row: result for row, result in found.items() if result not in RIGHT}, name


def test_the_programs_are_those_of_the_table(warm: Warm) -> None:
    """The table has each of them with its title; failures that are known are of programs and rows."""
    programs = {name: (one.kind, one.title, one.ranks, one.is_copied) for name, one in recorded().items()}
    assert {name: tuple(one) for name, one in warm.programs().items()} == programs
    assert 60 <= len(programs)
    names = {f"{name}/{row}" for name in programs for row in (*ROWS, "all")}
    assert set() == known_failures().keys() - names


def test_workers_and_nodes_that_are_killed_at_random_change_no_bit() -> None:
    """One run; `python -m tests.harmless.chaos --minutes 60` makes as many as one likes."""
    argv = [sys.executable, "-m", "tests.harmless.chaos", "--minutes", "0", "--seed", "5", "sync_batch_stats"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (0, True) == (done.returncode, "rounds began from {" in done.stdout), done.stdout + done.stderr
