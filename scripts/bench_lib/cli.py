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

from bench_lib.group import GroupError
from bench_lib.launchers import HPC_ELASTIC, TORCHRUN, Launcher
from bench_lib.measures import FULL, MEASURES, QUICK, SLOW, Samples, warm_up
from bench_lib.table import medians, missed, render

DESCRIPTION = """\
Measure the agent of hpc_elastic beside torchrun: same machine, same interpreter, same torch-free
worker, taking turns. Run it with the Python that has torch installed; without torch only
hpc_elastic is measured. The exit code is 1 if a target is missed and --strict is given.
"""


def main(argv: list[str]) -> int:
    """Measure, print the table, and return the exit code."""
    options = _parser().parse_args(argv)
    measures = options.measure or [name for name in MEASURES if not (options.quick and name in SLOW)]
    launchers = [launcher for launcher in (TORCHRUN, HPC_ELASTIC) if launcher.name in options.only]
    if TORCHRUN in launchers and importlib.util.find_spec("torch") is None:
        print("torch is not installed here: torchrun is not measured", file=sys.stderr)
        launchers.remove(TORCHRUN)
    if "metadata" in measures and shutil.which("strace") is None:
        print("strace is not installed here: metadata calls are not counted", file=sys.stderr)
        measures.remove("metadata")
    results: dict[str, Samples] = {launcher.name: {} for launcher in launchers}
    for launcher in launchers:
        warm_up(launcher)
    failures = [
        f"{launcher.name}, {measure}: {error}"
        for measure in measures
        for launcher in launchers
        if (error := _measure(measure, launcher, options, results[launcher.name]))
    ]
    print(render(results, HPC_ELASTIC.name if HPC_ELASTIC in launchers else launchers[0].name))
    for failure in failures:
        print(f"no result: {failure.splitlines()[0]}", file=sys.stderr)
    print(f"{_load()[0]:.1f} runnable processes on {_load()[1]} CPUs meanwhile; above 1 per CPU, repeat it")
    if options.json:
        options.json.write_text(json.dumps(_record(results, failures), indent=1) + "\n")
    bad = missed(results, HPC_ELASTIC.name) or any(text.startswith(HPC_ELASTIC.name) for text in failures)
    return 1 if options.strict and bad else 0


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


def _record(results: dict[str, Samples], failures: list[str]) -> dict[str, object]:
    return {
        "format": 1,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": _load()[1],
        "load": _load()[0],
        "medians": medians(results),
        "samples": results,
        "failures": failures,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=DESCRIPTION)
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, no slow measures (about two minutes)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--measure", nargs="+", choices=MEASURES, help="only these")
    names = [TORCHRUN.name, HPC_ELASTIC.name]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="only these launchers")
    return parser
