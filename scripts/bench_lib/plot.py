"""Pictures of series: time and operations against the number of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench_lib.series import LOCAL, Series

_MARKS = "osD^vP*X"
_SIZE_INCHES = (12.0, 5.0)
_IDEAL = "-"
_SLOWED = "--"


class PlotError(Exception):
    """Nothing can be drawn; the text says why."""


def read_series(paths: Iterable[Path]) -> list[Series]:
    """Return the series in files that `--json` has written.

    Raises:
        PlotError: a file has none.
    """
    found = []
    for path in paths:
        try:
            found += [Series.from_json(data) for data in json.loads(path.read_text())["series"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PlotError(
                f"{path} is not a file written by --json with measures of scale: {error}"
            ) from error
    return found


def draw(series: Sequence[Series], path: Path) -> None:
    """Write an SVG: on the left the time of a rendezvous, on the right what a node asks of the file system.

    Raises:
        PlotError: there is nothing to draw, or nothing to draw with.
    """
    left = [line for line in series if line.measure == "rendezvous-scale" and line.what.endswith("[s]")]
    right = [
        line
        for line in series
        if (line.measure == "rendezvous-ops" and line.what.startswith("file"))
        or (line.measure == "steady-ops" and line.what == "file-system calls per node and second")
    ]
    if not (left or right):
        raise PlotError("nothing of rendezvous-scale, rendezvous-ops or steady-ops was measured")
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only for pictures
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'hpc-elastic[bench]'") from error
    with mpl.rc_context({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        time_axes, calls_axes = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
        _panel(time_axes, left, "rendezvous of N nodes [s]")
        _panel(calls_axes, right, "file-system calls per node (steady: per second)")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Any, lines: Sequence[Series], title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("nodes N")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, line in enumerate(lines):
        medians = line.medians()
        if medians:
            axes.plot(
                list(medians),
                list(medians.values()),
                _IDEAL if line.store == LOCAL else _SLOWED,
                marker=_MARKS[number % len(_MARKS)],
                markersize=4,
                linewidth=1.2,
                label=_label(line),
            )
    sizes = sorted({nodes for line in lines for nodes in line.samples})
    axes.set_xticks(sizes, [str(nodes) for nodes in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, color="0.9")
    if lines:
        axes.legend(fontsize=7, frameon=False)


def _label(line: Series) -> str:
    steady = "steady, " if line.measure == "steady-ops" else ""
    return f"{steady}{line.system}, {line.store}"
