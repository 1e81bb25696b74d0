"""The end of a node's workers: one object asks them, waits for critical sections, and gives up stuck ones.

A worker that waits in the kernel for a broken device or a dead mount outlives SIGKILL. No other worker is
started beside it. It gets some time, since a file server may only be slow; then its node leaves the run.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.errors import StoreError
from hpc_elastic.node.decision import Action
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.stop_rules import StopOrder
from hpc_elastic.node.workers.local_group import Busy, LocalGroup
from hpc_elastic.processes.linux import read_stat
from hpc_elastic.record.journal import NodeUnfit
from hpc_elastic.store import files

if TYPE_CHECKING:
    from hpc_elastic.node.workers.stuck_in_kernel import Wedge

LOOK_S = 0.1  # between two looks at a critical section: its end wakes no loop
_RESCUE_LOOK_S = 0.02  # the same for workers that keep their state
SAY_AGAIN_S = 10.0
SUFFIX = ".held"
STUCK_S = 60.0  # the time of a worker that SIGKILL has not ended
_PAUSE_S = 0.5


class WorkersEnding:
    """Ends the workers of a node, round by round.

    Args:
        parts: the agent's parts.
        on_stop: called before the workers get SIGTERM.
        stuck_s: the time of a worker that SIGKILL has not ended.
    """

    def __init__(self, parts: AgentParts, on_stop: Callable[[], None], stuck_s: float = STUCK_S) -> None:
        self._parts = parts
        self._on_stop = on_stop
        self._stuck_s = stuck_s
        self._run = parts.rendezvous.run
        self._hold = self._new_hold()
        self._is_rescuing = False
        self.wedge: Wedge | None = None  # workers of this round that no signal ends

    def begin(self) -> None:
        """Take note of a new round."""
        self._hold, self.wedge, self._is_rescuing = self._new_hold(), None, False

    def _new_hold(self) -> StopHold:
        path = os.path.join(self._parts.paths.nodes, self._run.membership.node_id)
        return StopHold(self._parts.log.say, path)

    @property
    def is_held(self) -> bool:
        """Whether the end of the workers waits for a critical section, or for a rescue of their state."""
        return self._hold.is_on or self._is_rescuing

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep, as far as critical sections and rescues go [s]."""
        if self._is_rescuing:
            return _RESCUE_LOOK_S
        return LOOK_S if self._hold.is_on else math.inf

    def asked_at(self, now: float) -> float:
        """Return the time of the first order to end these workers, monotonic [s]; `now` if this is it."""
        return self._hold.asked_at(now)

    def stop(self, group: LocalGroup, order: StopOrder) -> None:
        """Ask the workers to end, unless one is in a critical section or keeps its state; never blocks."""
        now = self._parts.clock.monotonic()
        self._is_rescuing = not group.is_stopping and group.is_rescuing(now, order.rescue_until)
        if not group.is_stopping and self._hold.holds(group.busy(), now, order.hold_until):
            return
        if self._is_rescuing:
            return
        self._on_stop()
        group.stop(signal.SIGTERM, order.kill_at)

    def look_for_stuck(self, group: LocalGroup) -> Wedge | None:
        """Return the workers that have waited in the kernel for too long, when they are found.

        While this node cannot see the run directory, the same cause may hold up the workers, too.
        """
        if self.wedge is not None:
            return None
        services, sees = self._parts.services, self._run.blind_since is None
        pids = services.stuck(lambda: group.context.pids().values() if sees else ())
        return self._give_up(group, pids, services.state_timeout_s) if pids else None

    def finish(self, group: LocalGroup, action: Action) -> Action:
        """Close a group that is gone; return the act that follows.

        Args:
            group: of this node.
            action: the act that follows if no process is left.
        """
        self._hold.release()
        context = group.context
        context.close(timeout=0)
        unkillable = context.unkillable()
        for process in unkillable:
            self._parts.log.say(f"cannot be killed: {process}")
        if not unkillable:
            group.remove_empty_logs()
        elif action is Action.REJOIN and (pids := self.outwait(group)):
            wedge = self._give_up(group, pids, self._stuck_s)
            with suppress(StoreError):  # this node leaves even if the others do not hear of it
                self._run.commit(NodeUnfit(self._run.membership.epoch, self._run.node, wedge.words))
            return Action.ABANDON
        return action

    def outwait(self, group: LocalGroup) -> tuple[int, ...]:
        """Return the workers that are left after their time; the agent gives signs of life meanwhile."""
        clock, loop = self._parts.clock, self._parts.loop
        if stuck_of(group):
            self._parts.log.say(
                f"no other worker is started beside it; it has {self._stuck_s:g} s to end after all"
            )
        limit = clock.monotonic() + self._stuck_s
        while (pids := stuck_of(group)) and clock.monotonic() < limit and not loop.signals:
            loop.wait(_PAUSE_S)
            with suppress(StoreError):
                self._run.tick()
        return pids

    def _give_up(self, group: LocalGroup, pids: tuple[int, ...], timeout_s: float) -> Wedge:
        from hpc_elastic.node.workers.stuck_in_kernel import wedge_of  # noqa: PLC0415 - rare

        self.wedge = wedge_of(group, pids, timeout_s, self._parts.run.node, self._parts.clock.wall())
        self._parts.log.say(self.wedge.words)
        return self.wedge


def stuck_of(group: LocalGroup) -> tuple[int, ...]:
    """Return the workers of an ended group that are left, in state D."""
    pids = group.context.pids().values() if group.context.unkillable() else ()
    stats = (read_stat(pid) for pid in pids)
    return tuple(stat.pid for stat in stats if stat is not None and stat.state == "D")


class StopHold:
    """Puts off the end of the workers of one round while one of them is in a critical section.

    Args:
        say: shows a line in the agent's log.
        path: the file that tells `status` the reason, without its suffix.
    """

    def __init__(self, say: Callable[[str], None], path: str) -> None:
        self._say = say
        self._path = path + SUFFIX
        self._asked_at: float | None = None
        self._say_at = float("-inf")
        self.is_on = False

    def asked_at(self, now: float) -> float:
        """Return the time of the first order to end the workers [s]; now, if this is it."""
        if self._asked_at is None:
            self._asked_at = now
        return self._asked_at

    def holds(self, busy: Sequence[Busy], now: float, until: float) -> bool:
        """Tell whether the end has to wait.

        Args:
            busy: the workers of this node that are in a critical section.
            now: monotonic time [s].
            until: when it does not wait any longer.
        """
        asked_at = self.asked_at(now)
        if busy and now < until:
            if now >= self._say_at:
                left = f"at most {until - now:.0f} s more"
                self._show(f"{_words_of(busy, now)}: the end of the workers waits for it, {left}", now)
            self.is_on = True
            return True
        if self.is_on:
            self.release()
            waited = f"after {now - asked_at:.1f} s"
            self._say(
                f"{_words_of(busy, now)}: {waited} its time is up, the workers are ended all the same"
                if busy
                else f"the critical section was left {waited}"
            )
        return False

    def release(self) -> None:
        """Take note that nothing is put off any more."""
        if self.is_on:
            self.is_on = False
            with suppress(OSError):
                os.unlink(self._path)

    def _show(self, text: str, now: float) -> None:
        self._say_at = now + SAY_AGAIN_S
        self._say(text)
        with suppress(OSError):
            files.replace(self._path, f"{text}\n".encode())


def _words_of(busy: Sequence[Busy], now: float) -> str:
    more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
    first = busy[0]
    return f"rank {first.rank} is in '{first.name}' since {max(0.0, now - first.since):.0f} s{more}"
