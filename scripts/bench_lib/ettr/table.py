"""What the runs of the measure `ettr` have cost, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench_lib.ettr.course import Course, Note, Strike
from bench_lib.series import short

PARTS = ("began", "imported", "met", "loaded", "step")  # after a fault, in this order


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        ratio: useful steps per second, relative to an undisturbed run.
        steps: that counted at its end.
        faults: that have struck.
        lost_steps: that were computed again.
        restarts: starts of workers after the first.
        parts_s: median time from a fault to each part of the next start, each from the one before [s].
        job_state: at its end, in Slurm's words.
        strikes: of each fault its kind, its time from the first step on and that until the next step of a
            new start [s]; None: there was none before the next fault.
    """

    ratio: float
    steps: int
    faults: int
    lost_steps: int
    restarts: int
    parts_s: dict[str, float]
    job_state: str
    strikes: list[tuple[str, float, float | None]]


def rate(course: Course) -> float:
    """Return the steps per second of a run without faults, from its first step on."""
    return (_position(course.notes, course.ended) - 1) / (_last(course.notes, course.ended) - course.began)


def outcome(course: Course, undisturbed: float) -> Outcome:
    """Return what became of a run.

    Args:
        course: what has happened.
        undisturbed: steps per second of a run without faults.
    """
    steps = _position(course.notes, course.ended)
    loads = [note for note in course.notes if note.what == "loaded" and note.rank == 0][1:]
    lost = sum(max(0, _position(course.notes, note.at) - note.step) for note in loads)
    ratio = steps / (course.ended - course.began) / undisturbed
    struck = [
        (strike.kind, strike.at - course.began, times["step"] - strike.at if times else None)
        for strike, times in _starts(course)
    ]
    parts = _parts(course)
    return Outcome(ratio, steps, len(course.strikes), lost, len(loads), parts, course.job_state, struck)


def _position(notes: list[Note], at: float) -> int:
    """Return the steps that were done at a moment."""
    return max((note for note in notes if note.what == "step" and note.at <= at), default=notes[0]).step


def _last(notes: list[Note], at: float) -> float:
    return max(note.at for note in notes if note.what == "step" and note.at <= at)


def _starts(course: Course) -> Iterator[tuple[Strike, dict[str, float]]]:
    """Yield each fault, and the times of the start after it."""
    for number, strike in enumerate(course.strikes):
        until = course.strikes[number + 1].at if number + 1 < len(course.strikes) else course.ended
        yield strike, _start(course.notes, strike.at, until)


def _parts(course: Course) -> dict[str, float]:
    """Return the median time of each part of the starts after faults."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for strike, times in _starts(course):
        before = strike.at
        for part, at in times.items():
            found[part].append(at - before)
            before = at
    return {part: statistics.median(values) for part, values in found.items() if values}


def _start(notes: list[Note], after: float, until: float) -> dict[str, float]:
    """Return when the last worker of the first whole start after a fault had done each part; empty: none."""
    made = [note for note in notes if after < note.at < until]
    began = {note.pid for note in made if note.what == "began"}
    steps = [note for note in made if note.what == "step" and note.pid in began]
    if not steps:
        return {}
    first = min(note.step for note in steps[:1])
    done = [note for note in steps if note.step == first]
    pids = {note.pid for note in done}
    last = {
        part: max((note.at for note in made if note.what == part and note.pid in pids), default=after)
        for part in PARTS[:-1]
    }
    return {**last, "step": max(note.at for note in done[: len(pids)])}


def render(outcomes: Mapping[str, Outcome], what: str) -> str:
    """Return the table."""
    heads = ("way", "useful share", "steps", "faults", "lost steps", "starts", *PARTS, "job at the end")
    lines = [what, "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, one in outcomes.items():
        parts = [short(one.parts_s[part]) if part in one.parts_s else "" for part in PARTS]
        numbers = [
            f"{one.ratio:.3f}",
            str(one.steps),
            str(one.faults),
            str(one.lost_steps),
            str(one.restarts),
        ]
        lines.append(f"| {' | '.join([name, *numbers, *parts, one.job_state])} |")
    return "\n".join(lines)
