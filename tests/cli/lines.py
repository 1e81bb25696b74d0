"""Real command lines of `hpc-elastic run` and torchrun, and what their workers have seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 120.0

REPORT = """
import json, os, sys, threading
facts = {"env": dict(os.environ), "args": sys.argv[1:], "cpus": sorted(os.sched_getaffinity(0)),
         "pid": os.getpid(), "parent": os.getppid(), "name": __name__}
place = os.environ.get("FACTS") or "."
file = os.path.join(place, "facts." + os.environ["RANK"])
draft = f"{file}.{os.getpid()}.tmp"  # another run may have this rank, too
open(draft, "w").write(json.dumps(facts))
os.rename(draft, file)
"""
"""Start of the workers here: it leaves what it sees in a file of its rank."""


class Ended(NamedTuple):
    """A line that has ended."""

    code: int
    out: str
    err: str
    workers: list[dict[str, Any]]  # by rank

    def env(self, name: str) -> list[str | None]:
        """Return a variable of all workers, by rank."""
        return [worker["env"].get(name) for worker in self.workers]


class Line:
    """A command line in a directory of its own.

    Args:
        home: the directory; the script `w.py` is put there.
        script: source of the workers, after `REPORT`.
    """

    launcher: Sequence[str] = ("hpc_elastic", "run")

    def __init__(self, home: Path, script: str = "") -> None:
        self.home = home
        (home / "w.py").write_text(REPORT + script)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start it; standard output and standard error are pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", *self.launcher, *words],
            cwd=self.home,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run it to its end."""
        return self.end(self.start(*words, env=env))

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for its end."""
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Ended(process.returncode, out, err, self.workers())

    def workers(self) -> list[dict[str, Any]]:
        """Return what the workers have left, by rank."""
        files = [file for file in self.home.glob("facts.*") if file.suffix != ".tmp"]
        return [json.loads(file.read_text()) for file in sorted(files, key=lambda file: int(file.suffix[1:]))]

    def run_dirs(self) -> list[str]:
        """Return the names of the run directories below the current directory."""
        return sorted(path.name for path in (self.home / "hpc_elastic_runs").glob("*"))


class Torchrun(Line):
    """The same for torchrun."""

    launcher = ("torch.distributed.run",)
