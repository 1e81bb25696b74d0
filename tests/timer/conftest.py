"""Fixtures for timers: paths of pipes, servers that are stopped, children that are killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.timer import FileTimerRequest, FileTimerServer

Spawn = Callable[..., SpawnProcess]


class Watched:
    """A file based server and what it told."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.told: list[tuple[str, FileTimerRequest | None]] = []
        self.path = str(path)
        self.server = FileTimerServer(
            self.path, "run", log_event=lambda name, request: self.told.append((name, request)), **options
        )

    def names(self) -> list[str]:
        """Return the names of the events that were told."""
        return [name for name, _ in self.told]


@pytest.fixture(scope="session")
def spawning() -> SpawnContext:
    """Return the way children are started: afresh."""
    return multiprocessing.get_context("spawn")


@pytest.fixture
def spawn(spawning: SpawnContext) -> Iterator[Spawn]:
    """Return a function that starts children, which are killed at the end."""
    children: list[SpawnProcess] = []

    def start(target: Callable[..., None], *args: Any) -> SpawnProcess:
        child = spawning.Process(target=target, args=args)
        children.append(child)
        child.start()
        return child

    yield start
    for child in children:
        child.kill()
        child.join()
        child.close()


@pytest.fixture
def pipe_path(tmp_path: Path) -> Path:
    """Return where a server may make its pipe."""
    return tmp_path / "timers"


@pytest.fixture
def watched(pipe_path: Path) -> Iterator[Watched]:
    """Return a running server; stopped at the end."""
    one = Watched(pipe_path)
    one.server.start()
    yield one
    one.server.stop()
