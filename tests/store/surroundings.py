"""Programs in bad surroundings: without root's powers, or with a small file system of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_POWERLESS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all", "--")
_OWN_MOUNTS = ("unshare", "-m", "--propagation", "private")
_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'


def powerless(argv: Sequence[str]) -> list[str]:
    """Return a command that lets a program run without what root may do: permissions hold for it."""
    return [*(_POWERLESS if os.geteuid() == 0 else ()), *argv]


def on_small_disk(place: Path, options: str, argv: Sequence[str]) -> list[str]:
    """Return a command that lets a program see a file system of its own at a place.

    Args:
        place: a directory that exists.
        options: of tmpfs, for example ``size=64k``.
        argv: the program. With it the file system goes.
    """
    return [*_OWN_MOUNTS, "sh", "-c", _MOUNT, "sh", f"mode=700,{options}", str(place), *argv]


def why_no_mounts() -> str:
    """Return why this machine gives no program mounts of its own, empty if it does."""
    if os.geteuid() != 0:
        return "only root can mount"
    if shutil.which("unshare") is None:
        return "there is no unshare (util-linux)"
    tried = subprocess.run(
        [*_OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, check=False
    )
    return f"no mounts here: {tried.stderr.strip()}" if tried.returncode else ""


def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=150)


def hpc_elastic(*words: str) -> list[str]:
    """Return a command line of hpc-elastic."""
    return [sys.executable, "-m", "hpc_elastic", *words]


def agent(run_dir: Path, *command: str) -> list[str]:
    """Return the command line of an agent that looks often."""
    quick = ("--heartbeat-interval", "0.2", "--lease", "1.2")
    return hpc_elastic("run", "--run-dir", str(run_dir), "--nproc-per-node", "1", *quick, *command)
