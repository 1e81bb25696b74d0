"""Find processes that workers left behind: group members without a leader, and escaped descendants."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from hpc_elastic.processes.procfs import ProcessStat, children, descendants, is_marked


class Reaper:
    """Tells which descendants of this process belong to the workers of one group.

    This process must be a child subreaper (`linux.adopt_orphans`), so that a process that
    loses its parent below a worker becomes a child of this process.

    Args:
        marker: the mark that the workers carry in their environment.
        keep: pids of children that are none of the workers' (the guard).
        owns_process: whether every descendant outside of this process's own session that is not
            kept belongs to the workers; finds also those that cleared their environment.
    """

    def __init__(self, marker: str, keep: Collection[int], *, owns_process: bool) -> None:
        self._markers = frozenset((marker,))
        self._keep = frozenset(keep)
        self._owns_process = owns_process
        self._own_session = os.getsid(0)
        self._adopted: set[int] = set()
        self._remembered: set[int] = set()
        self.sessions: set[int] = set()
        """The sessions of the workers: their pids."""

    def remember(self, workers: Collection[int]) -> None:
        """Record the descendants of living workers: a forked worker's own forks carry no mark."""
        if not self._owns_process:
            below = descendants(stat for pid in workers for stat in children(pid))
            self._remembered.update(stat.pid for stat in below)

    def left_overs(self) -> list[ProcessStat]:
        """Return the processes below this one that belong to the workers, the workers included."""
        self.reap_adopted()
        below = descendants(stat for stat in children(os.getpid()) if stat.pid not in self._keep)
        found = [stat for stat in below if not stat.is_dead and self._is_ours(stat)]
        self._adopted.update(stat.pid for stat in found)
        return found

    def reap_adopted(self) -> bool:
        """Take the exit status of ended descendants that came to this process as orphans.

        Returns:
            Whether there is anything that may have ended; ended workers count until they are reaped.
        """
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        except ChildProcessError:
            return True
        for stat in children(os.getpid()):
            if stat.is_dead and stat.pid not in self.sessions and self._is_orphan(stat):
                _reap(stat.pid)
                self._adopted.discard(stat.pid)
        return True

    def kill_left_overs(self) -> list[ProcessStat]:
        """Send SIGKILL to all processes of the workers and return them."""
        found = self.left_overs()
        for stat in found:
            send_kill(stat.pid)
        return found

    def _is_orphan(self, stat: ProcessStat) -> bool:
        if stat.pid in self._adopted or stat.session in self.sessions:
            return True
        return self._is_foreign(stat)

    def _is_ours(self, stat: ProcessStat) -> bool:
        if stat.session in self.sessions or self._is_foreign(stat):
            return True
        return stat.pid in self._remembered or is_marked(stat.pid, self._markers)

    def _is_foreign(self, stat: ProcessStat) -> bool:
        """Return whether a process can only have come from a worker, as all workers left our session."""
        return self._owns_process and stat.session != self._own_session and stat.pid not in self._keep


def send_kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone or not ours to signal is left alone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
