"""A preloader in a test, and workers that are started with it and without."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.clock import SystemClock
from hpc_elastic.processes.linux import adopt_orphans, adopts_orphans
from hpc_elastic.processes.preload.preloader import Preloaded, Preloader, PreloadPhase
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, spawn
from hpc_elastic.testing.waiting import wait_until


class Ended(NamedTuple):
    """What is left of a worker."""

    code: int | None
    out: str
    err: str


class Place:
    """A directory with scripts and modules, and what is started there.

    Args:
        path: the directory.
        said: what a preloader tells.
    """

    def __init__(self, path: Path, said: list[str]) -> None:
        self.path = path
        self.said = said
        (path / "scratch").mkdir()

    def write(self, name: str, text: str) -> None:
        """Write a module or a script."""
        file = self.path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def spec(self, *words: str, **more: str) -> ProcessSpec:
        """Return a worker of this interpreter, with more variables."""
        env = {**plain_env(), "PARENT": str(os.getpid()), **more}
        out, err = (str(self.path / name) for name in ("out", "err"))
        return ProcessSpec((sys.executable, *words), env, out, err, str(self.path))

    def preloader(self, modules: tuple[str, ...], spec: ProcessSpec) -> Preloader:
        """Return a preloader for workers as this one; close it."""
        wanted = Preloaded(modules, spec.argv, plain_env(), str(self.path), str(self.path / "scratch"))
        return Preloader(wanted, SystemClock(), self.said.append)

    @contextmanager
    def preloaded(
        self, modules: tuple[str, ...], spec: ProcessSpec, meanwhile: Callable[[int], object] = int
    ) -> Iterator[Preloader]:
        """Give a preloader that has done with its imports.

        Args:
            modules: to be imported.
            spec: its workers.
            meanwhile: is called with the pid of the process that has begun to import.
        """
        had = adopts_orphans()
        adopt_orphans()
        made = self.preloader(modules, spec)
        try:
            made.start()
            meanwhile(*made.pids)
            wait_until(lambda: not made.is_importing(), "the imports are done", timeout_s=60.0)
            yield made
        finally:
            made.close()
            adopt_orphans(wanted=had)

    def end_of(self, process: ChildProcess) -> Ended:
        """Wait for the end of a worker and return what is left of it."""
        process.confirm_started(20.0)
        wait_until(lambda: process.poll() is not None, "the worker has ended", timeout_s=60.0)
        process.reap()
        texts = [(self.path / name).read_text(encoding="utf-8") for name in ("out", "err")]
        for name in ("out", "err"):
            (self.path / name).unlink()
        return Ended(process.exit_code, *texts)

    def cold(self, spec: ProcessSpec) -> Ended:
        """Run a worker that Python starts."""
        return self.end_of(spawn(spec))

    def warm(self, spec: ProcessSpec, *modules: str) -> Ended:
        """Run a worker that is forked."""
        with self.preloaded(modules or ("json",), spec) as preloader:
            assert preloader.phase is PreloadPhase.READY, self.said
            return self.end_of(forked(preloader, spec))


def forked(preloader: Preloader, spec: ProcessSpec) -> ChildProcess:
    """Return a worker that is forked."""
    preloader.begin_round(1)
    process = preloader.fork(spec)
    assert process is not None
    return process


def plain_env() -> Mapping[str, str]:
    """Return the environment of a program that a user starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
