"""The picture of the measure `ettr`: the useful share of each way, and the parts of its restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench_lib.ettr.table import PARTS, Outcome
from bench_lib.plot import PlotError

_SIZE_INCHES = (11.0, 3.0)
_WORDS = {
    "began": "noticed, stopped, started",
    "imported": "imports",
    "met": "ranks meet",
    "loaded": "state loaded",
    "step": "first step",
}


def read_outcomes(paths: Iterable[Path]) -> dict[str, Outcome]:
    """Return the outcomes in files that `--json` has written; empty if they have none.

    Raises:
        PlotError: a file cannot be read.
    """
    found: dict[str, Outcome] = {}
    for path in paths:
        try:
            told = json.loads(path.read_text()).get("ettr", {})
            found.update({name: Outcome(**fields) for name, fields in told.items()})
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise PlotError(f"{path} is not a file written by --json: {error}") from error
    return found


def draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Write an SVG.

    Raises:
        PlotError: there is nothing to draw with.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only for pictures
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'hpc-elastic[bench]'") from error
    with mpl.rc_context({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        shares = figure.add_subplot(1, 2, 1)
        parts = figure.add_subplot(1, 2, 2, sharey=shares)
        parts.tick_params(labelleft=False)
        _shares(shares, outcomes)
        _parts(parts, outcomes)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _shares(axes: Any, outcomes: Mapping[str, Outcome]) -> None:
    axes.set_title("useful steps, relative to a run without faults")
    bars = axes.barh(list(outcomes), [one.ratio for one in outcomes.values()], color="0.6")
    axes.bar_label(bars, [f"{one.ratio:.2f}" for one in outcomes.values()], padding=3)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()


def _parts(axes: Any, outcomes: Mapping[str, Outcome]) -> None:
    axes.set_title("median time from a fault to the next step [s]")
    left = [0.0] * len(outcomes)
    for part in PARTS:
        widths = [one.parts_s.get(part, 0.0) for one in outcomes.values()]
        axes.barh(list(outcomes), widths, left=left, label=_WORDS[part])
        left = [begun + width for begun, width in zip(left, widths, strict=True)]
    axes.legend(fontsize=7, frameon=False)
