"""End a group of processes and all they started, without ever blocking.

Which signal the workers of a node get first, and how long they have before SIGKILL, is decided in
`hpc_elastic.node.stop_rules` and `hpc_elastic.node.ending`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Final

from hpc_elastic.processes.linux import ProcessStat, Reaper, open_pidfd, read_stat
from hpc_elastic.processes.process import ChildProcess

KILL_WAIT_S: Final = 2.0
"""How long SIGKILL may take until a process counts as unkillable (state D: it waits for I/O)."""


class Stopper:
    """The stop of one group: signal the groups, wait, SIGKILL, sweep, wait a little, give up.

    Members of the workers' process groups have until the deadline; processes that escaped from the
    groups are killed as soon as the groups are empty.

    Args:
        processes: the workers by local rank.
        reaper: finds the processes that they left behind.
    """

    def __init__(self, processes: Mapping[int, ChildProcess], reaper: Reaper) -> None:
        self._processes = processes
        self._reaper = reaper
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self.watched: dict[int, int] = {}  # pid -> pidfd of left-overs that are waited for
        self._left: list[ProcessStat] = []
        self.is_begun = False

    def begin(self, sig: int, kill_at: float | None) -> None:
        """Signal all groups; a deadline only ever moves earlier."""
        self.is_begun = True
        if kill_at is not None:
            self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        self._reaper.remember(self._reaper.sessions)
        for process in self._processes.values():
            process.signal_group(sig)
            process.signal_group(signal.SIGCONT)  # a stopped process could not act on it

    def kill(self, now: float) -> None:
        """SIGKILL the groups and everything below this process that came from them."""
        self.is_begun = True
        self._killed_at = now if self._killed_at is None else self._killed_at
        self._reaper.remember(self._reaper.sessions)
        for process in self._processes.values():
            process.signal_group(signal.SIGKILL)
        self._reaper.kill_left_overs()

    def step(self, now: float) -> bool:
        """Go on with the stop as far as possible.

        Args:
            now: monotonic time [s].

        Returns:
            True when no process is left, or the remaining ones did not end by SIGKILL.
        """
        if self.is_begun and self._killed_at is None and self._kill_at is not None and now >= self._kill_at:
            self.kill(now)
        if self._is_any_alive():
            self._left = []
            return self._gave_up(now)
        self._left = self._reaper.left_overs()
        if not self.is_begun:
            return not self._left
        in_groups = any(stat.group in self._reaper.sessions for stat in self._left)
        if self._left and (self._killed_at is not None or not in_groups):
            self._killed_at = now if self._killed_at is None else self._killed_at
            self._reaper.kill_left_overs()
        self._watch()
        return not self._left or self._gave_up(now)

    def deadline(self) -> float | None:
        """Return when `step` is due even if nothing happens (monotonic time [s])."""
        return self._kill_at if self._killed_at is None else self._killed_at + KILL_WAIT_S

    def remaining(self) -> list[str]:
        """Return in words the processes that still run: local rank, pid, name and state."""
        found = []
        for rank, process in self._processes.items():
            if process.poll() is None and (stat := read_stat(process.pid)) is not None:
                found.append(f"local rank {rank}: {_words(stat)}")
        found.extend(f"left over: {_words(stat)}" for stat in self._left)
        return found

    def end(self) -> None:
        """Reap the ended workers and close every descriptor."""
        for process in self._processes.values():
            if process.poll() is not None:
                process.reap()
        for fd in self.watched.values():
            os.close(fd)
        self.watched.clear()
        self._reaper.reap_adopted()

    def _is_any_alive(self) -> bool:
        """Take note of exits; return whether any worker still runs."""
        codes = [process.poll() for process in self._processes.values()]
        for process in self._processes.values():
            process.acknowledge()
        return None in codes

    def _gave_up(self, now: float) -> bool:
        return self._killed_at is not None and now >= self._killed_at + KILL_WAIT_S

    def _watch(self) -> None:
        pids = {stat.pid for stat in self._left}
        for pid in self.watched.keys() - pids:
            os.close(self.watched.pop(pid))
        for pid in pids - self.watched.keys():
            fd = open_pidfd(pid)
            if fd is not None:
                self.watched[pid] = fd


def _words(stat: ProcessStat) -> str:
    return f"pid {stat.pid} ({stat.name}) in state {stat.state}"
