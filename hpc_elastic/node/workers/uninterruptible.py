"""Workers that no signal can end: they wait inside the kernel, in state D, and do not come back.

A worker is in that state for milliseconds whenever it waits for a disk. One that stays there holds
a GPU, a network card or a mount that is broken, and another worker on the same node would too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping

from hpc_elastic.ids import Env
from hpc_elastic.processes.procfs import read_stat

TIMEOUT_ENV = Env.STATE_TIMEOUT
_RUNS_COUNT = b"voluntary_ctxt_switches:"

logger = logging.getLogger(__name__)

ReadState = Callable[[int], str | None]
"""Returns a process's state: its letter, and perhaps more that changes whenever the process runs."""


def state_timeout(environ: Mapping[str, str], explicit: float | None = None) -> float:
    """Return how long a worker may be in state D [s]; 0: as long as it likes.

    Args:
        environ: the agent's environment; what is no positive number there means 0, as in torch.
        explicit: comes before the environment.
    """
    try:
        value = float(environ.get(TIMEOUT_ENV, "") if explicit is None else explicit)
    except ValueError:
        return 0.0
    return value if value > 0 and math.isfinite(value) else 0.0


def read_state(pid: int) -> str | None:
    """Return the state of a process's first thread and how often it has gone to sleep, e.g. ``D 17``.

    None when it is gone. The number tells one long sleep from many short ones.
    """
    stat = read_stat(pid)
    if stat is None or stat.state != "D":
        return None if stat is None else stat.state
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            count = next((line.split()[1] for line in status if line.startswith(_RUNS_COUNT)), b"")
    except OSError:
        return None
    return f"D {count.decode()}"


def stuck_words(timeout_s: float) -> str:
    """Return what is wrong with a worker that has been in state D for too long.

    Args:
        timeout_s: how long it has been at least [s].
    """
    return (
        f"in uninterruptible sleep (state D) for {timeout_s:g} s or longer: it waits for a device or a mount"
    )


class UninterruptibleWatch:
    """Knows since when which worker has been in state D without a break.

    Args:
        timeout_s: how long it may be [s].
        now: this node's monotonic time [s].
        read_state: the state of a process.
    """

    def __init__(
        self, timeout_s: float, now: Callable[[], float], read_state: ReadState = read_state
    ) -> None:
        self.timeout_s = timeout_s
        self._now = now
        self._read_state = read_state
        self._since: dict[int, tuple[float, str]] = {}

    def check(self, pids: Collection[int]) -> tuple[int, ...]:
        """Look at the workers; return those that have been in state D for the timeout or longer.

        Args:
            pids: all workers that run; what is known of any other process is forgotten.
        """
        now, before = self._now(), self._since
        self._since = {}
        for pid in pids:
            state = self._read_state(pid)
            if state is None or not state.startswith("D"):
                continue
            since, known = before.get(pid, (now, state))
            self._since[pid] = (since if known == state else now, state)
            if pid not in before:
                logger.info("pid %s is in uninterruptible sleep (state D)", pid)
        return tuple(pid for pid, (since, _) in self._since.items() if now - since >= self.timeout_s)

    def next_check_at(self) -> float:
        """Return when a worker will have been in state D for too long (monotonic [s]); inf: none is."""
        return min((since + self.timeout_s for since, _ in self._since.values()), default=math.inf)
