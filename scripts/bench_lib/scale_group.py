"""Processes full of nodes, started together, and what came of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench_lib.launchers import REPOSITORY
from bench_lib.scale_order import GO, Order

READY_LIMIT_S = 120.0
_POLL_S = 0.005
_SCRIPTS = REPOSITORY / "scripts"


class ScaleError(Exception):
    """A group of nodes did not come to its end; the text says why."""


class TooSlowError(ScaleError):
    """It took longer than the measure waits."""


class Place(NamedTuple):
    """Where the shared files of a measure are.

    Attributes:
        name: for people.
        directory: a directory in which new ones are made; the default for temporary files if empty.
        delay_s: how much longer each file-system call is made to take [s].
        clients: words in front of a command that run it on each client; none: it runs right here.
        control: a directory that this machine and all clients see, where `directory` is not such a one.
    """

    name: str
    directory: str = ""
    delay_s: float = 0.0
    clients: tuple[tuple[str, ...], ...] = ()
    control: str = ""

    def command(self, process: int, argv: list[str]) -> list[str]:
        """Return the command line that runs a program on the client that a process belongs to."""
        prefix = self.clients[process % len(self.clients)] if self.clients else ()
        return [*prefix, *argv]

    @property
    def processes(self) -> int:
        """How many processes the nodes are spread over."""
        return len(self.clients) + 1 if self.clients else max(2, min(4, len(os.sched_getaffinity(0))))


class Scratch(NamedTuple):
    """The directories of one run: the shared one, and the one by which the processes start together."""

    shared: str
    control: str


class Job(NamedTuple):
    """What a group of nodes is to do; see `Order`."""

    system: str
    nodes: int
    counted: bool = False


def rendezvous(place: Place, job: Job, limit_s: float, endpoint: str = "") -> list[dict[str, Any]]:
    """Take all nodes through one rendezvous and return what each did.

    Args:
        place: where the shared files are.
        job: system and number of nodes.
        limit_s: the longest it may take [s].
        endpoint: where torch's nodes meet if not in a file.

    Raises:
        TooSlowError: it took longer.
        ScaleError: a node failed.
    """
    with scratch(place) as directories:
        processes = min(place.processes, job.nodes)
        run = os.path.join(directories.shared, "file_store" if job.system == "file" else "run")
        orders = [
            Order(
                job.system,
                endpoint or run,
                directories.control,
                number,
                processes,
                job.nodes,
                place.delay_s,
                job.counted,
            )
            for number in range(processes)
        ]
        argvs = [module_argv("scale_child", json.dumps(order)) for order in orders]
        with started(place, argvs) as children:
            _wait_for_names(directories.control, "ready", children, READY_LIMIT_S)
            with open(os.path.join(directories.control, GO), "x"):
                pass
            _wait_for_names(directories.control, "done", children, limit_s)
            printed = [child.communicate()[0] for child in children]
    nodes = [node for text in printed for node in json.loads(text.splitlines()[-1])]
    errors = sorted({node["error"] for node in nodes if node["error"]})
    if errors:
        raise ScaleError(f"{sum(bool(node['error']) for node in nodes)} nodes failed: {errors[0]}")
    if sorted(node["rank"] for node in nodes) != list(range(job.nodes)):
        raise ScaleError("the ranks are not 0 to N - 1")
    return nodes


def module_argv(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this program."""
    path = f"PYTHONPATH={_SCRIPTS}:{REPOSITORY}"
    return ["env", path, "OMP_NUM_THREADS=1", sys.executable, "-m", f"bench_lib.{module}", *arguments]


@contextlib.contextmanager
def scratch(place: Place) -> Iterator[Scratch]:
    """Make the directories for one run and remove them afterwards."""
    control = tempfile.mkdtemp(prefix="bench-", dir=place.control or place.directory or None)
    shared = os.path.join(place.directory, os.path.basename(control)) if place.control else control
    try:
        if place.control:
            subprocess.run(place.command(0, ["mkdir", "-m", "700", shared]), check=True)
        yield Scratch(shared, control)
    finally:
        if place.control:
            subprocess.run(place.command(0, ["rm", "-rf", shared]), check=False)
        shutil.rmtree(control, ignore_errors=True)


@contextlib.contextmanager
def started(place: Place, argvs: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start one process per command line, on the clients in turn; none outlives the block."""
    children: list[subprocess.Popen[str]] = []
    try:
        for number, argv in enumerate(argvs):
            children.append(
                subprocess.Popen(
                    place.command(number, argv),
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.communicate()


def _wait_for_names(control: str, start: str, children: list[subprocess.Popen[str]], limit_s: float) -> None:
    """Wait until every process has left a name.

    Raises:
        TooSlowError: that took too long.
        ScaleError: a process has ended without it.
    """
    deadline_s = time.monotonic() + limit_s
    while sum(name.startswith(start) for name in os.listdir(control)) < len(children):
        for child in children:
            if child.poll() not in (None, 0):
                raise ScaleError(f"a process ended with {child.returncode}: {child.communicate()[1][-1000:]}")
        if time.monotonic() > deadline_s:
            raise TooSlowError(f"> {limit_s:g} s")
        time.sleep(_POLL_S)
