"""Runs the zoo: ``python -m tests.harmless [--jobs 2] [--row ROW]... [--record] [PROGRAM ...]``.

Without programs all of them run; without rows each runs without a fault, and with all faults one after the
other. Wrong outcomes are printed, with the place of their logs. ``--record`` writes the outcomes into
``outcomes.json``, and makes the page anew.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harmless import page, warm
from tests.harmless.outcomes import Recorded, record, recorded
from tests.harmless.preloading import run_preloaded
from tests.harmless.table import HARMLESS, ROWS, row_of
from tests.harmless.verdict import RIGHT, SILENT, TrialResult, began_at, outcome, phases, told


def main(words: Sequence[str] | None = None) -> int:
    """Run them; return 1 if an outcome is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.harmless", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--row", action="append", choices=[*ROWS, "all", "twice"], help="run this one alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--mutant", default="", help="take this guard away")
    parser.add_argument("--record", action="store_true", help="write outcomes.json and the page")
    options = parser.parse_args(words)
    warm.prepare()
    from tests.harmless.programs import PROGRAMS  # noqa: PLC0415 - loads PyTorch

    names = options.programs or list(PROGRAMS)
    rows = options.row or [*HARMLESS, "all"]
    place = Path(tempfile.mkdtemp(prefix="zoo-"))
    found = _run(names, rows, place, options.jobs, options.mutant)
    if options.record:
        found.update(_preloaded(names, place))
    wrong = {key: one for key, one in found.items() if one not in RIGHT}
    if options.record:
        _record(found)
    if not wrong:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{len(found)} runs, {len(wrong)} wrong")
    return 1 if wrong else 0


def _run(
    names: Sequence[str], rows: Sequence[str], place: Path, jobs: int, mutant: str
) -> dict[tuple[str, str], str]:
    from tests.harmless.programs import PROGRAMS  # noqa: PLC0415 - it is loaded

    asked = [
        warm.Asked(name, row, str(place / name / row.replace(" ", "-")), mutant if row != "bare" else "")
        for name in names
        for row in ("bare", *rows)
    ]
    bare: dict[str, TrialResult] = {}
    late: list[warm.Asked] = []
    found: dict[tuple[str, str], str] = {}

    def judge(one: warm.Asked) -> None:
        kind = PROGRAMS[one.program]
        seen = told(Path(one.place), kind.ranks, is_copied=kind.is_copied)
        result = outcome(row_of(one.row), bare[one.program], seen)
        found[one.program, one.row] = result
        if one.row == "all" and result in {*RIGHT, SILENT}:
            found.update({(one.program, phase): each for phase, each in phases(seen).items()})
        if result in RIGHT:
            shutil.rmtree(one.place)
        else:
            silent = [phase for phase, each in phases(seen).items() if each == SILENT]
            why = f"{result} ({', '.join(silent)})" if result == SILENT else result
            print(f"{one.program}: {one.row}: {why} {began_at(seen)}; {one.place}", flush=True)

    def ended(one: warm.Asked) -> None:
        if one.row == "bare":
            bare[one.program] = told(Path(one.place), PROGRAMS[one.program].ranks)
        late.append(one)
        for other in [other for other in late if other.program in bare]:
            late.remove(other)
            if other.row != "bare":
                judge(other)

    warm.run_all(asked, jobs, ended)
    return found


def _preloaded(names: Sequence[str], place: Path) -> dict[tuple[str, str], str]:
    """Run programs of one rank with preloaded modules."""
    from tests.harmless.programs import PROGRAMS  # noqa: PLC0415 - it is loaded

    single = [name for name in names if PROGRAMS[name].ranks == 1 and (place / name / "bare").exists()]
    run_preloaded(single, place / "preloaded")
    found = {}
    for name in single:
        bare, seen = told(place / name / "bare", 1), told(place / "preloaded" / name, 1)
        found[name, "preload"] = outcome(ROWS["preload"], bare, seen)
    return found


def _record(found: dict[tuple[str, str], str]) -> None:
    from tests.harmless.programs import PROGRAMS  # noqa: PLC0415 - it is loaded

    known = recorded()
    every = {}
    for name, one in PROGRAMS.items():
        before = known[name].rows if name in known else {}
        now = {row: result for (program, row), result in found.items() if program == name}
        every[name] = Recorded(one.kind, one.title, one.ranks, one.is_copied, {**before, **now})
    record(every)
    page.PAGE.write_text(page.page())


if __name__ == "__main__":
    sys.exit(main())
