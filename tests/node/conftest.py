"""Agents for the tests of this package; what a test leaves running is ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic import events, metrics
from hpc_elastic.events.handlers import configured_handler
from hpc_elastic.metrics.api import _router
from hpc_elastic.node.decision import Hang
from hpc_elastic.node.setup.hang_times import HangOptions
from tests.node.agents import Agents, MakeAgents
from tests.node.hang_world import TEN, MakeWorld, World, make_world
from tests.node.telling import Events, Metrics


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeAgents]:
    """Return a function that makes agents for a worker's source; all are ended afterwards."""
    made: list[Agents] = []

    def new(worker: str) -> Agents:
        made.append(Agents(tmp_path / f"run{len(made)}", worker))
        return made[-1]

    yield new
    for agents in made:
        agents.end()


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Give the handlers of this process back after each test."""
    before, handler = (_router._default, dict(_router._by_group)), configured_handler().handler
    yield
    _router._default, _router._by_group = before
    configured_handler().handler = handler


@pytest.fixture
def put(own_handlers: None) -> Metrics:
    """A handler that takes the agent's metrics."""
    handler = Metrics()
    metrics.configure(handler)
    return handler


@pytest.fixture
def recorded(own_handlers: None) -> Events:
    """A handler that takes the agent's events."""
    handler = Events()
    events.configure(handler)
    return handler


@pytest.fixture
def make_hangs(tmp_path: Path) -> Iterator[MakeWorld]:
    """Return a function that makes the watch over two workers, which have made their first step."""
    made: list[World] = []

    def new(options: HangOptions = TEN) -> World:
        world = make_world(tmp_path, options)
        made.append(world)
        world.tick(0, 1)
        assert world.look() is Hang.NONE
        return world

    yield new
    for world in made:
        world.group.context.close(timeout=0)


@pytest.fixture
def world(make_hangs: MakeWorld) -> World:
    """A node whose workers may make no step for ten seconds."""
    return make_hangs()
