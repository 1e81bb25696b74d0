"""The contention lock of a simulated run; nothing may rest on it, so it can be broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from hpc_elastic.store.lock import DEFAULT_WAIT_S, STUCK_S, ContentionLock
from tests.simulation.world import Node

POLL_S = 0.01


class LockState(Enum):
    """How the lock behaves."""

    WHOLE = "works"
    SHARED = "is given to everybody"  # for example flock without a lock manager
    STUCK = "is given to nobody"  # its holder's node died, and the server does not notice


class LockFile:
    """What all nodes of a run lock."""

    def __init__(self) -> None:
        self.state = LockState.WHOLE
        self.holder: Node | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is given to who asks now."""
        if self.state is LockState.WHOLE:
            return self.holder is None or self.holder.is_killed
        return self.state is LockState.SHARED


class SimulatedLock(ContentionLock):
    """One node's way to the lock.

    Args:
        file: what is locked.
        node: the node.
    """

    def __init__(self, file: LockFile, node: Node) -> None:
        super().__init__("", node)
        self._file = file
        self._node = node

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock for one short step if it can be had."""
        file, node = self._file, self._node
        node.world.counts["locks wanted"] += 1
        is_stuck = node.world.now < self._stuck_until
        limit = node.world.now + (0.0 if is_stuck else DEFAULT_WAIT_S)
        while not file.is_free:
            if node.world.now >= limit:
                if not is_stuck:
                    self._stuck_until = node.world.now + STUCK_S
                yield False
                return
            node.wait(POLL_S)
        file.holder = node
        try:
            yield True
        finally:
            if file.holder is node and not node.is_killed:
                file.holder = None
