"""What scripts that run a cluster of their own begin and end with."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real_slurm.cluster import Cluster

NODES = 5
TRACKERS = ("linuxproc", "cgroup", "cgroup2")
SLURM_HELP = "the Slurm of another Debian, in a box of its own: see scripts/devcluster --help"
"""The shell script around this program has opened the box by then."""


def may_run(script: str) -> bool:
    """Tell whether this process can run a cluster, and make ready for it; if not, say so.

    Signals that end the script raise KeyboardInterrupt with their name, also in the background of a shell,
    where they are ignored otherwise.
    """
    if os.geteuid() != 0:
        print(f"{script}: only root can run a cluster, since it makes namespaces; use sudo", file=sys.stderr)
        return False
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    return True


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def directory(script: str) -> Iterator[Path]:
    """Make a directory that every user can enter, and delete it."""
    root = Path(tempfile.mkdtemp(prefix=f"{script}-", dir="/tmp"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def cluster_in(root: Path, tracker: str, parameters: str = "") -> Iterator[Cluster]:
    """Start a cluster below a directory, and end it; `parameters` are its SlurmctldParameters."""
    options = ("--extra", f"SlurmctldParameters={parameters}") if parameters else ()
    cluster = Cluster.start(root / "cluster", nodes=NODES, tracker=tracker, options=options)
    try:
        yield cluster
    finally:
        cluster.purge()


def load_text() -> str:
    """Return how busy this machine was meanwhile."""
    return f"{len(os.sched_getaffinity(0))} CPUs, {runnable():.1f} runnable processes meanwhile"


def runnable() -> float:
    """Return how many processes were runnable in the last minutes."""
    return os.getloadavg()[1]
