"""What was measured against the number of nodes: series of samples, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

LOCAL = "local disk"


@dataclass(slots=True)
class Series:
    """One line of a table: one thing measured for several numbers of nodes.

    Attributes:
        measure: which measure it belongs to, as on the command line.
        what: what is measured, with its unit.
        system: what is measured of it: hpc_elastic in one of its settings, or a peer.
        store: where the shared files were.
        samples: number of nodes -> one value per repetition.
        stopped: number of nodes -> why there is no value for so many.
    """

    measure: str
    what: str
    system: str
    store: str = LOCAL
    samples: dict[int, list[float]] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)

    def add(self, nodes: int, value: float) -> None:
        """Add one repetition."""
        self.samples.setdefault(nodes, []).append(value)

    def medians(self) -> dict[int, float]:
        """Return the median for each number of nodes."""
        return {nodes: statistics.median(values) for nodes, values in sorted(self.samples.items())}

    def to_json(self) -> dict[str, Any]:
        """Return the series as it is written to a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Series:
        """Return the series as it was written to a file."""
        samples = {int(nodes): values for nodes, values in data["samples"].items()}
        stopped = {int(nodes): why for nodes, why in data["stopped"].items()}
        return cls(**{**data, "samples": samples, "stopped": stopped})


def render(series: Iterable[Series], *, markdown: bool = False) -> str:
    """Return one table per thing measured: a line per system and store, a column per number of nodes."""
    tables: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        tables.setdefault((one.measure, one.what), []).append(one)
    form = _markdown if markdown else _plain
    return "\n\n".join(
        "\n".join([f"{measure}: {what}", *form(_rows(lines))]) for (measure, what), lines in tables.items()
    )


def _rows(lines: list[Series]) -> list[list[str]]:
    columns = sorted({nodes for line in lines for nodes in (*line.samples, *line.stopped)})
    rows = [[line.system, line.store, *(_cell(line, nodes) for nodes in columns)] for line in lines]
    return [["median; number of nodes:", "", *(str(nodes) for nodes in columns)], *rows]


def _plain(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(_aligned(cell, at, widths[at]) for at, cell in enumerate(row)).rstrip()


def _markdown(rows: list[list[str]]) -> Iterator[str]:
    yield ""
    for at, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if at == 0:
            yield "|---|---|" + "---:|" * (len(row) - 2)


def _aligned(cell: str, column: int, width: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)  # noqa: PLR2004 - the first two are names


def _cell(line: Series, nodes: int) -> str:
    if nodes in line.samples:
        return short(statistics.median(line.samples[nodes]))
    return line.stopped.get(nodes, "")


def short(value: float) -> str:
    """Return a number with three digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")  # noqa: PLR2004
