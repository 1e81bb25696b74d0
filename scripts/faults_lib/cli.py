"""The command line of scripts/faults."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

from chaos_lib.own_cluster import (
    SLURM_HELP,
    TRACKERS,
    cluster_in,
    directory,
    load_text,
    may_run,
    runnable,
)
from chaos_lib.page import between, put_into, shown

from faults_lib.job import Launcher
from faults_lib.measures import MEASURES, WITH_TORCHRUN, Place, Sample, measure
from faults_lib.table import column, missed, render, with_column
from tests.real_slurm.cluster import REPOSITORY, Cluster

PAGE = REPOSITORY / "docs" / "faults.md"
DESCRIPTION = """\
Measure on a real Slurm of 5 nodes (scripts/devcluster) how long a run takes to get over faults, as an
unprivileged user, by time stamps that the workers leave; beside torchrun where it can get over them.
Printed are medians. The exit code is 1 if a target is missed and --strict is given.
"""


def main(argv: list[str]) -> int:
    """Measure, print the table, and return the exit code."""
    options = _parser().parse_args(argv)
    if not may_run("faults"):
        return 2
    launchers = [launcher for launcher in Launcher if launcher.value in options.only]
    if Launcher.TORCHRUN in launchers and importlib.util.find_spec("torch") is None:
        print("torch is not installed here: torchrun is not measured", file=sys.stderr)
        launchers.remove(Launcher.TORCHRUN)
    results: dict[str, dict[str, list[Sample]]] = {launcher.value: {} for launcher in launchers}
    failures: list[str] = []
    try:
        with directory("faults") as root, cluster_in(root, options.tracker) as cluster:
            for name in options.measure or MEASURES:
                for launcher in launchers:
                    _take(name, launcher, cluster, options, results, failures)
    except KeyboardInterrupt as stop:
        print(f"faults: ended by {stop}", file=sys.stderr)
        return 130
    return _report(results, failures, options, argv)


def _take(
    name: str,
    launcher: Launcher,
    cluster: Cluster,
    options: argparse.Namespace,
    results: dict[str, dict[str, list[Sample]]],
    failures: list[str],
) -> None:
    """Take one measure of one launcher; what goes wrong is added to `failures`."""
    if launcher is Launcher.TORCHRUN and name not in WITH_TORCHRUN:
        return
    began = time.monotonic()
    repetitions = 1 if options.quick else options.repetitions
    samples, wrong = measure(name, Place(cluster, launcher, repetitions))
    failures += wrong
    for failure in wrong:
        print(f"no result: {failure}", file=sys.stderr, flush=True)
    results[launcher.value][name] = samples
    print(
        f"{launcher.value} {name} ({time.monotonic() - began:.0f} s): {samples}", file=sys.stderr, flush=True
    )


def _report(
    results: dict[str, dict[str, list[Sample]]],
    failures: list[str],
    options: argparse.Namespace,
    argv: list[str],
) -> int:
    judged = Launcher.OURS.value if Launcher.OURS.value in results else next(iter(results))
    text = render(results, judged)
    print(text)
    bad = missed(results, judged)
    if options.json:
        plain = {
            name: {key: [sample._asdict() for sample in samples] for key, samples in found.items()}
            for name, found in results.items()
        }
        record = {"format": 1, "where": _where(argv), "samples": plain, "failures": failures}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        if options.slurm:
            cells = {
                **column(results[judged]),
                "measured on": time.strftime("%Y-%m-%d"),
                "runnable processes meanwhile": f"{runnable():.1f}",
            }
            name = f"{_slurm().split()[-1]}, {options.tracker}"
            page = put_into(page, "releases", with_column(between(page, "releases"), name, cells))
        else:
            page = put_into(page, "faults", f"{_where(argv)}\n\n{text}")
        PAGE.write_text(page, encoding="utf-8")
    return 1 if options.strict and bad else 0


def _where(argv: list[str]) -> str:
    """Return machine, versions, date and command in one line."""
    torch = ""
    if importlib.util.find_spec("torch") is not None:
        from importlib.metadata import version as version_of  # noqa: PLC0415 - beside its use

        torch = f", torch {version_of('torch').partition('+')[0]}"
    return (
        f"Measured on {time.strftime('%Y-%m-%d')} with `scripts/faults{shown(argv)}`: "
        f"{_slurm()}, Python {platform.python_version()}{torch}, "
        f"Linux {platform.release().partition('-')[0]}, {load_text()}."
    )


def _slurm() -> str:
    """Return name and version of the Slurm here, such as `slurm-wlm 22.05.8`."""
    return subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faults", description=DESCRIPTION)
    parser.add_argument(
        "--repetitions", type=int, default=5, metavar="N", help="of each measure (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="one repetition of each")
    parser.add_argument("--measure", nargs="+", choices=list(MEASURES), help="only these")
    names = [launcher.value for launcher in Launcher]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="only these launchers")
    parser.add_argument("--tracker", choices=TRACKERS, default="cgroup")
    parser.add_argument("--slurm", metavar="VERSION", help=SLURM_HELP)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"put the table into {PAGE.name}; with --slurm a column of its own",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
