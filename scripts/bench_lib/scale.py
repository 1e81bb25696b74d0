"""The measures of scale, and how they are chosen."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bench_lib.clients import KINDS, ClientsError, mounted
from bench_lib.scale_group import Place
from bench_lib.scale_measures import (
    DELAY_S,
    FULL,
    QUICK,
    Scale,
    ScaleEffort,
    rendezvous_operations,
    rendezvous_time,
)
from bench_lib.series import LOCAL, Series
from bench_lib.set_wait import set_wait
from bench_lib.steady import steady_operations
from bench_lib.waiting_turn import waiting_turn

SCALE: dict[str, Callable[[Scale], Iterator[Series]]] = {
    "rendezvous-scale": rendezvous_time,
    "rendezvous-ops": rendezvous_operations,
    "steady-ops": steady_operations,
    "set-wait": set_wait,
    "waiting-turn": waiting_turn,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what only the measures of scale use."""
    group = parser.add_argument_group(
        "measures of scale",
        f"{', '.join(SCALE)}: many nodes without workers on this machine; only by --measure",
    )
    group.add_argument(
        "--dir",
        nargs="+",
        default=[],
        metavar="[NAME=]DIR",
        help="measure in these directories; by default on the local disk, with and without "
        f"{DELAY_S * 1e3:g} ms added to each file-system call",
    )
    group.add_argument(
        "--on",
        nargs="+",
        choices=KINDS,
        default=[],
        help="measure on real clients of these, started by scripts/shared-fs (root)",
    )
    group.add_argument("--nodes", nargs="+", type=_positive, metavar="N", help="only these numbers of nodes")
    group.add_argument(
        "--limit", type=float, metavar="S", help="a series ends when a rendezvous takes longer"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 2:  # noqa: PLR2004 - one node meets nobody
        raise argparse.ArgumentTypeError(f"a rendezvous needs at least 2 nodes, not {text}")
    return number


def run(measures: list[str], options: argparse.Namespace, failures: list[str]) -> list[Series]:
    """Take measures of scale; what goes wrong is added to `failures`."""
    with contextlib.ExitStack() as stack:
        scale = Scale(
            places=_places(options, stack, failures),
            effort=_effort(options),
            peers="torchrun" in options.only,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            failures=failures,
        )
        return [series for measure in measures for series in SCALE[measure](scale)]


def _effort(options: argparse.Namespace) -> ScaleEffort:
    effort = QUICK if options.quick else FULL
    if options.nodes:
        sizes = tuple(sorted(options.nodes))
        effort = replace(effort, sizes=sizes, steady_sizes=sizes)
    return replace(effort, limit_s=options.limit) if options.limit else effort


def _places(options: argparse.Namespace, stack: contextlib.ExitStack, failures: list[str]) -> list[Place]:
    places = [_place(text) for text in options.dir]
    for kind in options.on:
        try:
            places.append(stack.enter_context(mounted(kind)))
        except ClientsError as error:
            failures.append(f"{kind}: {error}")
    if not (options.dir or options.on):
        places = [Place(LOCAL), Place(f"{LOCAL}, {DELAY_S * 1e3:g} ms per call more", delay_s=DELAY_S)]
    return places


def _place(text: str) -> Place:
    name, separator, directory = text.rpartition("=")
    path = Path(directory).absolute()
    if not path.is_dir():
        raise SystemExit(f"bench: --dir {text}: there is no directory {path}\n  fix: make or mount it first")
    return Place(name if separator else str(path), str(path))
