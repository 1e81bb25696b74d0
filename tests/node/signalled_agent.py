"""An agent in a round of two nodes that hears signals and what Slurm says about them; no processes."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.signals import Signalled
from hpc_elastic.node.stop_rules import DrainTimes, StopOrder
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
)
from hpc_elastic.record.why_left import Notice
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.one_node import node_maker, together


class Agent:
    """An agent in a round of two nodes, to which things happen.

    Attributes:
        said: its lines.
        notices: what it is going to be told.
        asked: the signals about which Slurm was asked.
        limits: how long the job may still run, by what other nodes have found out.
        stopped_at: the deadlines that its workers were given while they were ending.
    """

    is_below_slurm = True
    is_asking = False

    def __init__(self, tmp_path: Path, **changes: Any) -> None:
        self.clock = FakeClock()
        self._pending: list[int] = []
        self.said: list[str] = []
        self.notices: deque[Notice] = deque()
        self.later: list[Notice] = []  # what comes while it waits
        self.waited: list[float] = []
        self.asked: list[tuple[float, bool]] = []
        self.limits: list[float] = []
        self.stopped_at: list[float] = []
        pair = together(node_maker(MemoryStore(), self.clock), self.clock)
        node, self.other = reversed(pair) if changes.get("is_second") else pair
        self.run = node.run
        self.loop = SimpleNamespace(
            take_signals=self._take_signals, wait=self._wait, signals=(), notices=self.notices
        )
        parts: Any = SimpleNamespace(
            rendezvous=node,
            clock=self.clock,
            paths=RunPaths(tmp_path),
            log=SimpleNamespace(say=self.said.append),
            loop=self.loop,
            times=AgentTimes(drain=changes.get("drain", DrainTimes()), exit_barrier=2.0),
            signals=SignalMeanings(),
            run=SimpleNamespace(node="n1"),
            on_signal=changes.get("on_signal", AfterDrain.LEAVE),
            notices=self,
        )
        self.group = SimpleNamespace(is_stopping=False)
        ending = SimpleNamespace(stop=self._stop)
        workers: Any = SimpleNamespace(group=self.group, running=self.group, ending=ending)
        self.workers = workers
        self.signalled = Signalled(parts, workers)

    def _take_signals(self) -> list[int]:
        taken, self._pending = self._pending, []
        return taken

    def _wait(self, seconds: float) -> None:
        """Let the answer come that is next."""
        self.waited.append(seconds)
        if not self.later:
            self.clock.advance(seconds)
            return
        self.notices.append(self.later.pop(0))
        self.is_asking = bool(self.later)

    def _stop(self, group: Any, order: StopOrder) -> None:
        assert group is self.group
        assert order.kill_at == order.hold_until
        self.stopped_at.append(order.kill_at)

    def begin(self, *, is_first: bool) -> None:
        """Listen."""

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Note it."""
        self.asked.append((signalled_at, is_warning))

    def hear_limit(self, left_s: float) -> None:
        """Note it."""
        self.limits.append(left_s)

    def hears(self, *signals: int) -> None:
        """Let signals come."""
        self._pending += signals
        self.signalled.note()
        self.signalled.note()  # the loop's next turn, if a warning was asked about

    def is_told(self, notice: Notice) -> None:
        """Let a notice come."""
        self.notices.append(notice)
        self.signalled.note()

    @property
    def left_s(self) -> float | None:
        """How long the workers have [s]."""
        deadline = self.signalled.wish.deadline
        return None if deadline is None else deadline - self.clock.monotonic()
