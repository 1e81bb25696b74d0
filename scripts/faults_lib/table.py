"""The table of the measures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from faults_lib.measures import Sample


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        text: the fault and what is waited for.
        target: the most that `judged` may take [s]; None if nothing is promised.
        judged: which time of a sample the target is for.
    """

    text: str
    target: float | None = None
    judged: str = "running"


ROWS: Mapping[str, Row] = {
    "worker-killed": Row("a worker of 3 nodes is killed (SIGKILL) → all run again", 0.2),
    "worker-exits": Row("a worker of 3 nodes exits with 1 → all run again", 0.2),
    "agent-killed": Row("an agent of 4 is killed → the others run again", 6),
    "node-crashed": Row("a node of 4 loses its power → the others run again", 6),
    "batch-host-crashed": Row("the node with the batch script loses its power → all run again elsewhere"),
    "srun-killed": Row("srun is killed → all run again in the same job"),
    "preemption-told": Row("SIGTERM to the agents → all workers told → back after the requeue", 0.2, "acted"),
    "warning-told": Row("the warning signal → all workers told → back after the requeue", 0.2, "acted"),
    "preempted": Row("another user's job takes all nodes for 1 s → back after the requeue"),
    "hung": Row("a worker hangs, with `hang_timeout` 5 s → all run again"),
    "failed-for-good": Row("a worker is killed, no restart is left → all agents have ended", 1),
}

Results = Mapping[str, Mapping[str, Sequence[Sample]]]  # launcher -> measure -> samples


def render(results: Results, judged: str) -> str:
    """Return the table in Markdown: medians, one line per measure.

    Args:
        results: per launcher and measure.
        judged: the launcher that the targets are for; the other one's last time stands beside.
    """
    others = [name for name in results if name != judged]
    head = ["fault", "noticed", "others stopped or told", "running again", "of this in Slurm's queue"]
    lines = [[*head, "target", *(f"{name}: stopped, running" for name in others)]]
    lines.append(["---"] * len(lines[0]))
    for measure, row in ROWS.items():
        samples = results.get(judged, {}).get(measure, ())
        if measure not in results.get(judged, {}) and not any(results[name].get(measure) for name in others):
            continue
        cells = [_seconds(samples, part) for part in ("noticed", "acted", "running", "slurm")]
        cells[2] = cells[2] or "no result"
        lines.append([row.text, *cells, _target(row, samples), *(_pair(results[n], measure) for n in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column(found: Mapping[str, Sequence[Sample]]) -> dict[str, str]:
    """Return the median time until all run again, per fault as it is called in the table."""
    return {ROWS[name].text: _seconds(samples, "running") or "no result" for name, samples in found.items()}


def with_column(table: str, name: str, cells: Mapping[str, str]) -> str:
    """Return a table of Markdown with one column new or replaced.

    Args:
        table: has the name of each row in its first column; empty if there is none yet.
        name: of the column.
        cells: what stands in it, per row; a row that is not there yet is added.
    """
    lines = [[cell.strip() for cell in line.strip(" |").split(" | ")] for line in table.strip().splitlines()]
    head, *rows = lines or [["fault"]]
    kept = {row[0]: dict(zip(head, row, strict=False)) for row in rows[1:]}
    for row, cell in cells.items():
        kept.setdefault(row, {head[0]: row})[name] = cell
    names = [head[0], *sorted({*head[1:], name})]
    body = [[row.get(key, "") for key in names] for row in kept.values()]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *body))


def missed(results: Results, judged: str) -> list[str]:
    """Return the measures whose target is missed."""
    found = results.get(judged, {})
    return [name for name, row in ROWS.items() if name in found and _is_missed(row, found[name])]


def _is_missed(row: Row, samples: Sequence[Sample]) -> bool:
    value = median(samples, row.judged)
    return not samples or (row.target is not None and (value is None or value > row.target))


def median(samples: Sequence[Sample], part: str) -> float | None:
    """Return the median of one time; None if no repetition has it."""
    values = [value for sample in samples if (value := getattr(sample, part)) is not None]
    return statistics.median(values) if values else None


def _seconds(samples: Sequence[Sample], part: str) -> str:
    value = median(samples, part)
    return "" if value is None else f"{value:.2f} s"


def _target(row: Row, samples: Sequence[Sample]) -> str:
    if row.target is None:
        return ""
    where = "" if row.judged == "running" else "told "
    return f"{where}≤ {row.target:g} s" + (" **missed**" if samples and _is_missed(row, samples) else "")


def _pair(found: Mapping[str, Sequence[Sample]], measure: str) -> str:
    samples = found.get(measure)
    if samples is None:
        return ""
    if not samples:
        return "not within a minute"
    return f"{_seconds(samples, 'acted') or 'never'}, {_seconds(samples, 'running') or 'never'}"
