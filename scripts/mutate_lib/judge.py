"""Finds out whether the fast tests notice a mutant."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from mutate_lib.coverage_map import Found, Test
from mutate_lib.mutants import Mutant
from mutate_lib.pytest_run import NOTHING_RAN, PytestRun, run_tests
from mutate_lib.tree import make_copy, put_fault, remove

_STARTS_S = 40.0  # the most that pytest takes to begin
_SLOWER = 5.0  # by how much a test may take longer than when its lines were noted
_QUICK_S = 0.3  # a test that takes no longer does not fail for the load of the machine
_DOUBTS = 3  # failures that did not come twice, before a mutant counts as noticed


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"


class Verdict(NamedTuple):
    """What became of a mutant, and why.

    Attributes:
        mutant: the mutant.
        fate: what became of it.
        why: the test that failed, how many have passed, or the reason why it is equivalent.
    """

    mutant: Mutant
    fate: Fate
    why: str


def tests_for(mutant: Mutant, file: str, found: Iterable[Found], limit_s: float | None) -> list[Test]:
    """Return the tests that run the changed line of a mutant, the quickest first.

    Args:
        mutant: the mutant.
        file: of its module.
        found: what is known of the files with tests to choose from.
        limit_s: how long they may take together.
    """
    tests = [test for known in found for test in known.tests if _runs(test, file, mutant)]
    tests.sort(key=lambda test: test.took_s)
    sums = itertools.accumulate(test.took_s for test in tests)
    return [test for test, until_s in zip(tests, sums, strict=True) if limit_s is None or until_s <= limit_s]


def _runs(test: Test, file: str, mutant: Mutant) -> bool:
    lines = test.lines.get(file, frozenset())
    return bool(lines.intersection(mutant.lines)) if mutant.lines else bool(lines)


def judge(base: Path, mutant: Mutant, file: str, tests: Sequence[Test]) -> Verdict:
    """Run tests on a mutant, in a tree of its own, and return what becomes of it.

    Args:
        base: the tree without a fault.
        mutant: the mutant.
        file: of its module.
        tests: in this order, up to the first that notices.
    """
    tree = base.with_name(f"m{abs(hash(mutant)):x}")
    make_copy(base, tree)
    try:
        put_fault(tree, file, mutant.source)
        why = _noticed(tree, tests)
    finally:
        remove(tree)
    if why is not None:
        return Verdict(mutant, Fate.KILLED, why)
    return Verdict(mutant, Fate.SURVIVED, f"{len(tests)} tests that run it pass")


def _noticed(tree: Path, tests: Sequence[Test]) -> str | None:
    """Return what notices a fault; None if all tests pass.

    A failure counts at once if the test is a quick one, else when it fails twice: it may be the load of the
    machine.
    """
    left = list(tests)
    for _ in range(_DOUBTS):
        if not left:
            return None
        run = _run(tree, left)
        if run.exit_code == 0:
            return None
        failed = run.failed()
        if run.exit_code is None or failed is None:
            return _without_test(run)
        at = next(index for index, test in enumerate(left) if test.name == failed)
        if left[at].took_s <= _QUICK_S or _run(tree, left[at : at + 1]).exit_code != 0:
            return failed
        left = left[at + 1 :]
    return None


def _run(tree: Path, tests: Sequence[Test]) -> PytestRun:
    timeout_s = _STARTS_S + _SLOWER * sum(test.took_s for test in tests)
    run = run_tests(tree, [test.name for test in tests], timeout_s)
    if run.exit_code == NOTHING_RAN:
        raise RuntimeError(f"pytest found none of {[test.name for test in tests]}:\n{run.printed[-2000:]}")
    return run


def _without_test(run: PytestRun) -> str:
    if run.exit_code is None:
        return "the tests do not end"
    last = [line for line in run.printed.splitlines() if line.strip()]
    return f"pytest cannot run: {last[-1] if last else ''}"
