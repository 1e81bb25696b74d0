"""The phases of a run as a table, and two runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .record import Outcome, Phase

SLOWEST = 20


def table(phases: Sequence[Phase], cores: int) -> Iterator[str]:
    """Yield a line for each phase.

    Args:
        phases: of one run.
        cores: how many CPUs could compute; what they did not of a phase's time, it waited.
    """
    yield f"{'wall':>7} {'CPU':>8} {'computing':>9} {'waiting':>7} {'tests':>6}  phase"
    for phase in phases:
        share = min(1.0, phase.cpu_s / (phase.wall_s * cores)) if phase.wall_s else 0.0
        tests = f"{len(phase.tests):,}" if phase.tests else "-"
        yield (
            f"{phase.wall_s:>5,.0f} s {phase.cpu_s:>6,.0f} s {share:>9.0%} {1 - share:>7.0%} {tests:>6}"
            f"  {phase.name}"
        )


def slowest(phases: Sequence[Phase]) -> Iterator[str]:
    """Yield a line for each of the slowest tests."""
    tests = sorted((test for phase in phases for test in phase.tests), key=lambda test: -test.seconds)
    for test in tests[:SLOWEST]:
        yield f"{test.seconds:>7.1f} s  {test.name}"


def changes(now: Sequence[Phase], before: Sequence[Phase]) -> Iterator[str]:
    """Yield what takes longer or shorter than in the run before: all phases, and the tests that differ."""
    earlier = {phase.name: phase for phase in before}
    yield f"{'before':>9} {'now':>9} {'CPU before':>11} {'CPU now':>9}  phase"
    for phase in now:
        old = earlier.get(phase.name)
        was = (f"{old.wall_s:,.0f} s", f"{old.cpu_s:,.0f} s") if old else ("-", "-")
        yield f"{was[0]:>9} {phase.wall_s:>7,.0f} s {was[1]:>11} {phase.cpu_s:>7,.0f} s  {phase.name}"
    yield f"{'before':>9} {'now':>9}  test"
    yield from _tests(_by_name(now), _by_name(before))


def _tests(now: dict[str, Outcome], before: dict[str, Outcome]) -> Iterator[str]:
    def difference(name: str) -> float:
        return abs(_seconds(now, name) - _seconds(before, name))

    for name in sorted({*now, *before}, key=difference, reverse=True)[:SLOWEST]:
        columns = (f"{tests[name].seconds:,.1f} s" if name in tests else "-" for tests in (before, now))
        yield "{:>9} {:>9}  {}".format(*columns, name)


def _by_name(phases: Sequence[Phase]) -> dict[str, Outcome]:
    return {test.name: test for phase in phases for test in phase.tests}


def _seconds(tests: dict[str, Outcome], name: str) -> float:
    return tests[name].seconds if name in tests else 0.0
