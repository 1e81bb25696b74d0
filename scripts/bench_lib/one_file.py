"""The start of an agent from one file, beside the start of a bare Python that starts the same worker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench_lib.launchers import REPOSITORY, Launcher, Place, Shape

_FLOOR = (
    "import posix, sys; env = {**posix.environ, b'RANK': b'0', b'WORLD_SIZE': b'1'}; pid = posix.fork()\n"
    "posix.waitpid(pid, 0) if pid else posix.execve(sys.executable, [sys.executable, sys.argv[1]], env)"
)


def floor(launcher: Launcher) -> Launcher:
    """Return a bare Python that starts the worker."""

    def argv(shape: Shape, place: Place, index: int) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", _FLOOR, launcher.argv(shape, place, index)[-1]]

    return replace(launcher, argv=argv)


@contextmanager
def from_one_file(launcher: Launcher) -> Iterator[Launcher]:
    """Give the launcher that starts as the agents of a submitted job."""
    with tempfile.TemporaryDirectory(prefix="bench-") as root:
        file = os.path.join(root, "start.bin")
        make = [sys.executable, "-m", "hpc_elastic.isolated.one_file"]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            subprocess.run(make, stdout=out, env=environ, check=True)
        words = [sys.executable, "-I", "-S", f"{REPOSITORY}/hpc_elastic/isolated/start.py", file]

        def argv(shape: Shape, place: Place, index: int) -> list[str]:
            usual = launcher.argv(shape, place, index)
            return [*words, *usual[usual.index("run") :]]

        yield replace(launcher, argv=argv)
