"""What `scripts/test` asks about the phases of a run; see its text."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

from . import record, summary

_ROUNDS = 400_000


def main(argv: list[str]) -> int:
    """Answer one question and return the exit code."""
    options = _parser().parse_args(argv)
    for line in options.answer(options):
        print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="phases", description=__doc__)
    commands = parser.add_subparsers(required=True)
    asked = commands.add_parser("calibrate", help="seconds of a fixed computation on one CPU")
    asked.set_defaults(answer=lambda _: [f"{calibration():.2f}"])
    asked = commands.add_parser("summary", help="a table of the phases, and the slowest tests")
    asked.add_argument("run", type=Path)
    asked.set_defaults(answer=_summary)
    asked = commands.add_parser("changes", help="this run beside the one before")
    asked.add_argument("run", type=Path)
    asked.add_argument("before", type=Path)
    asked.set_defaults(answer=_changes)
    asked = commands.add_parser("failed", help="the tests of a phase that failed")
    asked.add_argument("run", type=Path)
    asked.add_argument("key")
    asked.set_defaults(answer=lambda said: record.failed(said.run / f"{said.key}.cache"))
    asked = commands.add_parser("log", help="how a test of a phase failed at its first try")
    asked.add_argument("run", type=Path)
    asked.add_argument("key")
    asked.add_argument("test", type=record.junit_name)
    asked.set_defaults(answer=_log)
    return parser


def calibration() -> float:
    """Return how long the least of three runs of a fixed computation took, in seconds of wall time."""
    return min(_computed() for _ in range(3))


def _computed() -> float:
    begun = time.perf_counter()
    digest = b""
    for _ in range(_ROUNDS):
        digest = hashlib.sha256(digest).digest()
    return time.perf_counter() - begun


def _summary(options: argparse.Namespace) -> list[str]:
    phases = record.phases(options.run)
    return [
        *summary.table(phases, len(os.sched_getaffinity(0))),
        f"the {summary.SLOWEST} slowest tests:",
        *summary.slowest(phases),
    ]


def _changes(options: argparse.Namespace) -> list[str]:
    now, before = record.phases(options.run), record.phases(options.before)
    if not now or not before:
        return ["there are no two runs of scripts/test in this checkout"]
    return list(summary.changes(now, before))


def _log(options: argparse.Namespace) -> list[str]:
    return [test.log for test in record.tests(options.run, options.key) if test.name == options.test]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
