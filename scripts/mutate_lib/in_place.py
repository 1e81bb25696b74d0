"""Judges many faults of one module in one start of pytest, where that gives the same verdict as a copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mutate_lib.coverage_map import Found, Test
from mutate_lib.exchange import KILLED
from mutate_lib.judge import Fate, Verdict, tests_for
from mutate_lib.mutants import Mutant
from mutate_lib.pytest_run import run_tests
from mutate_lib.tree import make_copy, remove

_MOMENT_S = 1.0  # a test that takes longer is left to the copies
_TOGETHER_S = 8.0  # the most that the tests on a fault may take together
_FAULT_S = 60.0  # the most that a fault may take, on average
_STARTS_S = 120.0  # the most that pytest takes to find the tests


def choose_in_place(mutant: Mutant, file: str, found: Iterable[Found]) -> list[Test]:
    """Return the tests of which a failure in one process is the same as in a copy, the quickest first.

    Of a fault that runs at the import there are none, nor of one that programs which a test starts may run.
    """
    if not mutant.lines:
        return []
    fit = [
        Found([test for test in one.tests if test.took_s <= _MOMENT_S and file not in test.elsewhere], [])
        for one in found
    ]
    return tests_for(mutant, file, fit, _TOGETHER_S)


def killed_in_place(
    base: Path, name: str, file: str, chosen: Sequence[tuple[Mutant, Sequence[Test]]]
) -> list[Verdict]:
    """Return which mutants of a module are noticed for certain; of the others nothing is known.

    Args:
        base: the tree without a fault.
        name: of the copy in which pytest runs.
        file: of the module.
        chosen: the mutants, each with its tests in order.
    """
    tree = base.with_name(name)
    faults, fates = tree.with_name(f"{name}.faults"), tree.with_name(f"{name}.fates")
    took_s = {test.name: test.took_s for _, tests in chosen for test in tests}
    listed = [{"source": mutant.source, "tests": [test.name for test in tests]} for mutant, tests in chosen]
    faults.write_text(json.dumps({"file": file, "took_s": took_s, "faults": listed}), encoding="utf-8")
    options = ["-p", "mutate_exchange", "--mutate-faults", str(faults), "--mutate-fates", str(fates)]
    make_copy(base, tree)
    try:
        run_tests(tree, list(took_s), _STARTS_S + _FAULT_S * len(chosen), more=options)
    finally:
        remove(tree)
    lines = fates.read_text(encoding="utf-8").splitlines() if fates.exists() else []
    ends = [json.loads(line) for line in lines if line.endswith("]")]
    return [
        Verdict(mutant, Fate.KILLED, why)
        for (mutant, _), (how, why) in zip(chosen, ends, strict=False)  # pytest may have been ended
        if how == KILLED
    ]
