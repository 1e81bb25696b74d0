"""Many nodes in one process, in an order that a seed decides.

Each node runs the real code in a greenlet of its own and hands over before every operation on the
store and whenever it waits. Time passes only when nobody has anything to do. The same seed gives
the same story.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from greenlet import getcurrent, greenlet

from tests.simulation.content import Content

WALL_S = 1e9  # the wall time at the beginning [s since the epoch]


class Killed(BaseException):
    """Ends the program of a node that was killed; nothing catches it."""


class World:
    """All nodes, the time, and what they share.

    Args:
        seed: decides everything.
        is_verbose: tell every operation on the store.
    """

    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self.random = random.Random(seed)
        self.wall_random = random.Random(seed + 1)  # what nothing may depend on has dice of its own
        self.now = 0.0
        self.content = Content()
        self.nodes: list[Node] = []
        self.is_verbose = is_verbose
        self.counts: Counter[str] = Counter()
        self.hub = getcurrent()
        self.running: Node  # whose turn it is, or was last
        self.on_turn: Callable[[Node], None] = lambda _node: None
        self._story: list[tuple[float, str, object]] = []
        self._due: list[tuple[float, float, Callable[[], None]]] = []

    def new_node(self, name: str) -> Node:
        """Add a node."""
        node = Node(self, name, self.random.uniform(0, 1e6))
        self.nodes.append(node)
        return node

    def tell(self, text: str, about: object = "") -> None:
        """Add to the story; what it is about is turned into text only if somebody reads it."""
        self._story.append((self.now, text, about))

    @property
    def story(self) -> str:
        """What has happened, one line each, after the time [s]."""
        return "\n".join(f"{at:9.3f} {text}{about}" for at, text, about in self._story)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Have something happen at a time [s]; what is due at the same time happens in any order."""
        heapq.heappush(self._due, (time, self.random.random(), act))

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is left."""
        if not self._due:
            return False
        time, _, act = heapq.heappop(self._due)
        self.now = max(self.now, time)
        act()
        return True

    def end(self) -> None:
        """End the programs of all nodes."""
        for node in self.nodes:
            node.kill()


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
        self.wall_offset_s = world.wall_random.uniform(-1, 1)
        self.ready_at = world.now
        self.is_over = False
        self.is_killed = False
        self.error: BaseException | None = None
        self.signals: list[int] = []
        self.disturbed_until = -1.0
        self.blind: tuple[float, float] = (-1.0, -1.0)  # the last time it could not see, from and to
        self._greenlet: greenlet | None = None
        self._turn = 0  # of the wait that it is in; turns that were planned for others are void

    def start(self, program: Callable[[], None]) -> None:
        """Have the node run a program, once the world gives it a turn."""
        self._greenlet = greenlet(lambda: self._run(program), parent=self.world.hub)
        self._plan_turn()

    def _run(self, program: Callable[[], None]) -> None:
        try:
            program()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        self.is_over = True

    def _plan_turn(self) -> None:
        self.world.at(self.ready_at, partial(self._take_turn, self._turn))

    def _take_turn(self, turn: int) -> None:
        if self.is_over or self._greenlet is None or turn != self._turn:
            return
        if self.ready_at > self.world.now:  # it was frozen meanwhile
            self._plan_turn()
            return
        self.world.running = self
        self._greenlet.switch()
        self.world.on_turn(self)

    def wait(self, seconds: float) -> None:
        """Hand over, and go on so much later [s] at the earliest."""
        if self.is_killed:
            raise Killed
        world = self.world
        ready_at = world.now + seconds if seconds > 0 else world.now
        self.ready_at = max(self.ready_at, ready_at)
        self._plan_turn()
        self._hand_over()

    def wait_roused(self, seconds: float | None) -> None:
        """Hand over, and go on once it is roused, or so much later [s]; None: without an end."""
        if self.is_killed:
            raise Killed
        if seconds is not None:
            self.ready_at = self.world.now + max(seconds, 0.0)
            self._plan_turn()
        self._hand_over()

    def rouse(self) -> None:
        """Have it go on that waits for that."""
        self.ready_at = self.world.now
        self._plan_turn()

    def _hand_over(self) -> None:
        self.world.hub.switch()
        self._turn += 1
        if self.is_killed:
            raise Killed

    def freeze(self, seconds: float) -> None:
        """Keep the node from running for a time, as SIGSTOP or a paused machine does [s]."""
        self.ready_at = max(self.ready_at, self.world.now + seconds)
        self.disturb(seconds, is_blind=True)

    def disturb(self, seconds: float, *, is_blind: bool = False) -> None:
        """Remember that it cannot do its part for a time [s]; blind, it cannot see the others either."""
        now = self.world.now
        self.disturbed_until = max(self.disturbed_until, now + seconds)
        if is_blind:
            since, until = self.blind
            self.blind = (since if until >= now else now, max(until, now + seconds))

    def kill(self) -> None:
        """End the node: what it has done stays, nothing more comes."""
        if self.is_over:
            return
        self.is_killed = True
        if self._greenlet is None or self._greenlet is getcurrent():
            return  # it ends at its next wait
        if self._greenlet:
            self._greenlet.throw(Killed)
        self.is_over = True

    # hpc_elastic.clock.Clock

    def monotonic(self) -> float:
        """Return this node's monotonic time [s]."""
        return self.world.now + self.offset_s

    def wall(self) -> float:
        """Return the wall time as this node has it [s since the epoch]."""
        return WALL_S + self.world.now + self.wall_offset_s

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        self.wait(seconds)
