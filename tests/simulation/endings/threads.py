"""The threads of a simulated process: programs of the world, so that the order of their steps is the seed's.

It stands in for the module `threading` in the code that looks after a job from a thread of an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpc_elastic.slurm.end import requeue
from hpc_elastic.slurm.watch import job_watch
from tests.simulation.world import Node, World

_USERS: tuple[Any, ...] = (requeue, job_watch)


class ProcessClock:
    """The clock of a process with several threads; also `hpc_elastic.clock.Clock`.

    Args:
        node: the main thread.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def monotonic(self) -> float:
        """Return the monotonic time of its machine [s]."""
        return self._node.monotonic()

    def wall(self) -> float:
        """Return the wall time of its machine [s]."""
        return self._node.wall()

    def sleep(self, seconds: float) -> None:
        """Have the thread that calls wait [s]."""
        self._node.world.running.wait(seconds)


class Threading:
    """What the code uses of `threading`.

    Args:
        world: where the threads run.
        made: is told of each thread, by the thread that makes it.
    """

    TIMEOUT_MAX = 1e9

    def __init__(self, world: World, made: Callable[[Node, Node], None]) -> None:
        self._world = world
        self._made = made

    def Thread(self, target: Callable[[], None], name: str, *, daemon: bool) -> _Thread:  # noqa: N802 - its name
        """Return a thread that has not begun."""
        assert daemon
        return _Thread(self._world, target, name, self._made)

    def Event(self) -> _Event:  # noqa: N802 - its name
        """Return an event."""
        return _Event(self._world)

    def Condition(self) -> _Condition:  # noqa: N802 - its name
        """Return a condition."""
        return _Condition(self._world)


class _Thread:
    def __init__(
        self, world: World, target: Callable[[], None], name: str, made: Callable[[Node, Node], None]
    ) -> None:
        self._world = world
        self._target = target
        self._name = name
        self._made = made

    def start(self) -> None:
        """Have it run."""
        maker = self._world.running
        node = self._world.new_node(f"{self._name} of {maker.name}")
        self._made(maker, node)
        node.start(self._target)


class _Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Node] = []

    def set(self) -> None:
        """Let who waits go on."""
        self._is_set = True
        _rouse(self._waiting)

    def clear(self) -> None:
        """Have others wait again."""
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for so long at most [s]; tell whether it is."""
        if not self._is_set:
            _wait(self._world, self._waiting, timeout)
        return self._is_set


class _Condition:
    """Threads change only where they wait, so that its lock has nothing to do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Node] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass

    def notify(self) -> None:
        """Let who waits go on."""
        _rouse(self._waiting)

    def wait(self, timeout: float | None) -> None:
        """Wait until it is notified, for so long at most [s]."""
        _wait(self._world, self._waiting, timeout)


def _wait(world: World, waiting: list[Node], timeout: float | None) -> None:
    node = world.running
    waiting.append(node)
    node.wait_roused(timeout)
    if node in waiting:
        waiting.remove(node)


def _rouse(waiting: list[Node]) -> None:
    for node in waiting:
        node.rouse()
    waiting.clear()


@contextmanager
def simulated_threads(world: World, made: Callable[[Node, Node], None]) -> Iterator[None]:
    """Have the threads of the code be programs of a world for a while."""
    stand_in, before = Threading(world, made), [(user, user.threading) for user in _USERS]
    for user in _USERS:
        user.threading = stand_in
    try:
        yield
    finally:
        for user, real in before:
            user.threading = real
