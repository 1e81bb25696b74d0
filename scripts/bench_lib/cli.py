"""The command line of scripts/bench."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from pathlib import Path

from bench_lib import overhead, plot, save, scale, series
from bench_lib.ettr import measure as ettr
from bench_lib.ettr import picture
from bench_lib.ettr.table import Outcome
from bench_lib.ettr.table import render as render_ettr
from bench_lib.group import GroupError
from bench_lib.launchers import HPC_ELASTIC, TORCHRUN, Launcher, Samples
from bench_lib.measures import FULL, MEASURES, QUICK, SLOW, warm_up
from bench_lib.table import medians, missed, render

DESCRIPTION = """\
Measure the agent of hpc_elastic beside torchrun: same machine, same interpreter, same torch-free
worker, taking turns. Run it with the Python that has torch installed; without torch only
hpc_elastic is measured. The exit code is 1 if a target is missed and --strict is given.
"""


def main(argv: list[str]) -> int:
    """Measure, print the tables, and return the exit code."""
    options = _parser().parse_args(argv)
    if options.drawn:
        return _show(options)
    measures = options.measure or [name for name in MEASURES if not (options.quick and name in SLOW)]
    failures: list[str] = []
    results = _measure_launchers([name for name in measures if name in MEASURES], options, failures)
    lines = scale.run([name for name in measures if name in scale.SCALE], options, failures)
    saves = save.measure(options, failures) if save.SAVE in measures else {}
    taken = overhead.measure(options, failures) if overhead.OVERHEAD in measures else {}
    useful = ettr.measure(options, failures) if ettr.ETTR in measures else {}
    first = HPC_ELASTIC.name if HPC_ELASTIC.name in results else next(iter(results), "")
    tables = (
        save.render(saves, options.size) if saves else "",
        overhead.render(taken, options) if taken else "",
        ettr.text(useful, options) if useful else "",
        render(results, first) if results else "",
        series.render(lines, markdown=options.markdown) if lines else "",
    )
    for table in filter(None, tables):
        print(table)
    for failure in failures:
        print(f"no result: {failure.splitlines()[0]}", file=sys.stderr)
    print(f"{_load()[0]:.1f} runnable processes on {_load()[1]} CPUs meanwhile; above 1 per CPU, repeat it")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    **_record(results, lines, failures),
                    "saves": saves,
                    "overhead": taken,
                    "ettr": ettr.record(useful),
                },
                indent=1,
            )
            + "\n"
        )
    if options.plot and (code := _draw(options.plot, lines, useful)):
        return code
    bad = missed(results, HPC_ELASTIC.name) or any(text.startswith(HPC_ELASTIC.name) for text in failures)
    return 1 if options.strict and bad else 0


def _measure_launchers(
    measures: list[str], options: argparse.Namespace, failures: list[str]
) -> dict[str, Samples]:
    """Take the measures of agents with workers; what goes wrong is added to `failures`."""
    launchers = [launcher for launcher in (TORCHRUN, HPC_ELASTIC) if launcher.name in options.only]
    if TORCHRUN in launchers and importlib.util.find_spec("torch") is None:
        print("torch is not installed here: torchrun is not measured", file=sys.stderr)
        launchers.remove(TORCHRUN)
    if "metadata" in measures and shutil.which("strace") is None:
        print("strace is not installed here: metadata calls are not counted", file=sys.stderr)
        measures.remove("metadata")
    if not measures:
        return {}
    results: dict[str, Samples] = {launcher.name: {} for launcher in launchers}
    for launcher in launchers:
        warm_up(launcher)
    failures += [
        f"{launcher.name}, {measure}: {error}"
        for measure in measures
        for launcher in launchers
        if (error := _measure(measure, launcher, options, results[launcher.name]))
    ]
    return results


def _show(options: argparse.Namespace) -> int:
    """Print and draw what earlier runs have measured; return the exit code."""
    try:
        useful = picture.read_outcomes(options.drawn)
        lines = plot.read_series(options.drawn)
    except plot.PlotError as error:
        print(f"bench: --from: {error}", file=sys.stderr)
        return 1
    if lines:
        print(series.render(lines, markdown=options.markdown))
    if useful:
        print(render_ettr(useful, ettr.ETTR))
    return _draw(options.plot, lines, useful) if options.plot else 0


def _draw(path: Path, lines: list[series.Series], useful: dict[str, Outcome]) -> int:
    """Draw the measures of scale, or the useful time; return the exit code."""
    try:
        if useful and not lines:
            picture.draw(useful, path)
        else:
            plot.draw(lines, path)
    except plot.PlotError as error:
        print(f"bench: --plot {path}: {error}", file=sys.stderr)
        return 1
    return 0


def _load() -> tuple[float, int]:
    """Return the load average of the last five minutes and the number of CPUs."""
    return os.getloadavg()[1], len(os.sched_getaffinity(0))


def _measure(measure: str, launcher: Launcher, options: argparse.Namespace, into: Samples) -> str:
    """Take one measure of one launcher; return what went wrong, if anything did."""
    print(f"{launcher.name}: {measure} ...", file=sys.stderr, flush=True)
    try:
        into.update(MEASURES[measure](launcher, QUICK if options.quick else FULL))
    except GroupError as error:
        return str(error)
    return ""


def _record(
    results: dict[str, Samples], lines: list[series.Series], failures: list[str]
) -> dict[str, object]:
    return {
        "format": 1,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": _load()[1],
        "load": _load()[0],
        "medians": medians(results),
        "samples": results,
        "series": [line.to_json() for line in lines],
        "failures": failures,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=DESCRIPTION)
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, no slow measures (about two minutes)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument(
        "--measure",
        nargs="+",
        choices=[*MEASURES, *scale.SCALE, save.SAVE, overhead.OVERHEAD, ettr.ETTR],
        help="only these",
    )
    names = [TORCHRUN.name, HPC_ELASTIC.name]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="only these launchers")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help=f"draw scale, or {ettr.ETTR}")
    parser.add_argument(
        "--from",
        dest="drawn",
        nargs="+",
        type=Path,
        metavar="RUN.json",
        help="measure nothing: show what earlier runs wrote with --json",
    )
    parser.add_argument("--markdown", action="store_true", help="tables of scale as they stand in the docs")
    scale.add_options(parser)
    save.add_options(parser)
    overhead.add_options(parser)
    ettr.add_options(parser)
    return parser
