"""Many nodes in one process, in an order that a seed decides.

Each node runs the real code in a thread of its own, but only one thread runs at any time: a node
hands over before every operation on the store and whenever it waits. Time passes only when nobody
has anything to do. The same seed gives the same story.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from hpc_elastic.errors import StoreError
from hpc_elastic.store.memory import MemoryStore

OPERATION_S = 0.005  # the longest an ordinary operation on the store takes [s]
STALE_S = 0.3  # the oldest listing that a network file system was seen to return [s]


class Killed(BaseException):
    """Ends the thread of a node that was killed; nothing catches it."""


class Node:
    """A machine with one agent; it does nothing unless the world lets it.

    Args:
        world: where it lives.
        name: its name.
        offset_s: how far its monotonic clock is ahead of the others' [s].
    """

    def __init__(self, world: World, name: str, offset_s: float) -> None:
        self.world = world
        self.name = name
        self.offset_s = offset_s
        self.ready_at = world.now
        self.is_over = False
        self.is_killed = False
        self.error: BaseException | None = None
        self.signals: list[int] = []
        self._turn = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def start(self, program: Callable[[], None]) -> None:
        """Have the node run a program, once the world gives it a turn."""
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True, name=self.name)
        self._thread.start()

    def _run(self, program: Callable[[], None]) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                program()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        self.is_over = True
        self.world.turn_is_over.release()

    def take_turn(self) -> None:
        """Let the node run until it hands over; called by the world."""
        self._turn.release()
        self.world.turn_is_over.acquire()

    def wait(self, seconds: float) -> None:
        """Hand over, and go on so much later [s] at the earliest."""
        self.ready_at = max(self.ready_at, self.world.now + max(0.0, seconds))
        self.world.turn_is_over.release()
        self._turn.acquire()
        if self.is_killed:
            raise Killed

    def freeze(self, seconds: float) -> None:
        """Keep the node from running for a time, as SIGSTOP or a paused machine does [s]."""
        self.ready_at = max(self.ready_at, self.world.now + seconds)

    def kill(self) -> None:
        """End the node: what it has done stays, nothing more comes."""
        if not self.is_over:
            self.is_killed = True
            self.take_turn()

    # hpc_elastic.clock.Clock

    def monotonic(self) -> float:
        """Return this node's monotonic time [s]."""
        return self.world.now + self.offset_s

    def wall(self) -> float:
        """Return a wall time that is good for nothing."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        self.wait(seconds)


class World:
    """All nodes, the time, and what they share.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.nodes: list[Node] = []
        self.shared = MemoryStore()
        self.story: list[str] = []
        self.turn_is_over = threading.Semaphore(0)
        self.stalled_until = 0.0
        self.check: Callable[[], None] = lambda: None

    def new_node(self, name: str) -> Node:
        """Add a node."""
        node = Node(self, name, self.random.uniform(0, 1e6))
        self.nodes.append(node)
        return node

    def tell(self, text: str) -> None:
        """Add to the story."""
        self.story.append(f"{self.now:9.3f} {text}")

    def step(self) -> bool:
        """Give one node a turn, or let time pass to the next one; False if nobody is left."""
        living = [node for node in self.nodes if not node.is_over]
        if not living:
            return False
        ready = [node for node in living if node.ready_at <= self.now]
        if ready:
            self.random.choice(ready).take_turn()
            self.check()
        else:
            self.now = min(node.ready_at for node in living)
        return True

    def end(self) -> None:
        """End the threads of all nodes."""
        for node in self.nodes:
            node.kill()


class Mount:
    """The store as one node sees it: slow, now and then stale, sometimes failing.

    Args:
        node: the node.
        stale: how often a listing or reading is an older one (0 to 1).
        lost_reply: how often an operation is done but reported as failed (0 to 1).
    """

    def __init__(self, node: Node, *, stale: float, lost_reply: float) -> None:
        self._node = node
        self._world = node.world
        self._store = node.world.shared
        self._stale = stale
        self._lost_reply = lost_reply
        self._listed: dict[str, tuple[float, list[str]]] = {}
        self._written: dict[str, int] = {}

    def _operate(self) -> None:
        world = self._world
        stalled = max(0.0, world.stalled_until - world.now)
        self._node.wait(stalled + world.random.uniform(0, OPERATION_S))

    def _may_fail(self) -> None:
        if self._world.random.random() < self._lost_reply:
            raise StoreError("the reply was lost")

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create a record; see `Store.append`."""
        self._operate()
        won = self._store.append(log, number, value)
        if won:
            self._written[log] = number
        self._may_fail()
        return won

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return what follows, or only the first part of it; what this node wrote is always there."""
        self._operate()
        self._may_fail()
        found = self._store.read_after(log, number)
        own = max(0, self._written.get(log, 0) - number)
        if len(found) > own and self._world.random.random() < self._stale:
            return found[: self._world.random.randrange(own, len(found))]
        return found

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a file."""
        self._operate()
        self._store.put(directory, name, value)
        self._may_fail()

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        self._operate()
        self._may_fail()
        return self._store.get(directory, name)

    def list(self, directory: str) -> list[str]:
        """Return the names, or those of the last look if that was just now."""
        self._operate()
        self._may_fail()
        world = self._world
        looked_at, names = self._listed.get(directory, (float("-inf"), []))
        if world.now - looked_at > STALE_S or world.random.random() >= self._stale:
            looked_at, names = world.now, self._store.list(directory)
            self._listed[directory] = (looked_at, names)
        return names

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        self._operate()
        self._store.mark(directory, name, instead_of=instead_of)
        self._listed.pop(directory, None)
        self._may_fail()

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._operate()
        self._store.unmark(directory, name)
        self._listed.pop(directory, None)
        self._may_fail()
