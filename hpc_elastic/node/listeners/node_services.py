"""The watchdog, the health check and the watch for stuck workers of an agent; whichever is asked for."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from hpc_elastic.ids import Env
from hpc_elastic.node.listeners.telemetry_hooks import Services, Surroundings, Telemetry

if TYPE_CHECKING:
    from hpc_elastic.node.listeners.health_check import HealthCheckServer
    from hpc_elastic.node.listeners.watchdog import Watchdog
    from hpc_elastic.node.workers.stuck_in_kernel import UninterruptibleWatch
    from hpc_elastic.timer import FileTimerRequest

PACKAGE = "hpc_elastic"
_HEALTH = logging.getLogger("hpc_elastic.node.listeners.health_check")
_TIMERS = "hpc_elastic.timer"  # the agent itself reports the subjects of its warnings
_QUICKEST_S = 0.05  # between two looks at a worker in state D
_HELD_UP = 0.25  # part of the time in state D after which a turn of the agent counts as held up itself,
_HELD_UP_S = 1.0  # and the least such time [s]


class AgentLogHandler(logging.Handler):
    """Shows the package's log lines in the agent's own log."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        if record.levelno >= logging.ERROR or not record.name.startswith(_TIMERS):
            self._say(self.format(record))


class NodeServices(Services):
    """The services that the environment asks for, as under torchrun."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._say = around.say
        self._notes: deque[tuple[str, FileTimerRequest | None]] = deque()
        self._telemetry = Telemetry()
        self._log_handler = AgentLogHandler(around.say)
        self._watchdog: Watchdog | None = None
        self._health: HealthCheckServer | None = None
        self._level = logging.NOTSET  # of the health check's log lines, before
        self._stuck: UninterruptibleWatch | None = None

    def open(self, telemetry: Telemetry) -> None:
        """Begin, before there are workers."""
        self._telemetry = telemetry
        logging.getLogger(PACKAGE).addHandler(self._log_handler)
        self._watchdog = self._make_watchdog()
        self._stuck = self._make_stuck_watch()
        self._health = self._make_health_check()
        if self._health is not None:
            self._health.start()

    def _make_watchdog(self) -> Watchdog | None:
        around = self._around
        if Env.ENABLE_FILE_TIMER not in around.environ:
            return None
        from hpc_elastic.node.listeners.watchdog import Watchdog  # noqa: PLC0415 - only if asked for

        return Watchdog.from_env(around.environ, around.run_id, self._note, directory=around.scratch)

    def _make_health_check(self) -> HealthCheckServer | None:
        if Env.HEALTH_CHECK_PORT not in self._around.environ:
            return None
        from hpc_elastic.node.listeners import health_check  # noqa: PLC0415 - only if asked for

        self._level = _HEALTH.level
        _HEALTH.setLevel(logging.INFO)
        return health_check.health_check_from_env(self._around.environ, self.last_progress_time)

    def _make_stuck_watch(self) -> UninterruptibleWatch | None:
        value = self._around.environ.get(Env.STATE_TIMEOUT)
        if value is None:
            return None
        from hpc_elastic.node.workers import stuck_in_kernel  # noqa: PLC0415 - only if asked for

        timeout_s = stuck_in_kernel.state_timeout(self._around.environ)
        if timeout_s > 0:
            self.state_timeout_s = timeout_s
            return stuck_in_kernel.UninterruptibleWatch(timeout_s, self._around.clock.monotonic)
        if value.strip() not in ("", "0"):
            self._say(
                f"{Env.STATE_TIMEOUT}={value} is no time in seconds: workers in state D are not looked for"
            )
        return None

    def last_progress_time(self) -> int:
        """Return when loop and watchdog have both shown progress last [s since the epoch]."""
        clock = self._around.clock
        turned_at = clock.wall() - (clock.monotonic() - self._around.loop.turned_at)
        watched_at = self._watchdog.last_progress_time() if self._watchdog is not None else None
        return int(turned_at if watched_at is None else min(turned_at, watched_at))

    def before_workers(self) -> Mapping[str, str]:
        """Start to watch timers; return where the workers find the pipe."""
        if self._watchdog is None:
            return {}
        try:
            self._watchdog.start()
        except OSError as error:
            self._say(f"the workers' timers are not watched: {error}")
        return self._watchdog.worker_env()

    def stuck(self, pids: Callable[[], Collection[int]]) -> tuple[int, ...]:
        """Report the acts of the watchdog; return workers that have been in state D for too long.

        A cause that has held up the agent itself may have held up the workers, too: their time begins anew.
        """
        self._pass_on()
        if self._stuck is None:
            return ()
        took_s = self._around.clock.monotonic() - self._around.loop.turned_at
        is_held_up = took_s >= max(_HELD_UP_S, self.state_timeout_s * _HELD_UP)
        return self._stuck.check(() if is_held_up else pids())

    def reason(self, pid: int) -> str:
        """Return why this agent has ended a worker."""
        return "" if self._watchdog is None else self._watchdog.reason(pid)

    def wake_at(self) -> float:
        """Return when a worker will have been in state D for too long."""
        if self._stuck is None:
            return math.inf
        return max(self._stuck.next_check_at(), self._around.clock.monotonic() + _QUICKEST_S)

    def after_workers(self) -> None:
        """Stop to watch timers."""
        if self._watchdog is not None:
            self._watchdog.stop()
        self._pass_on()

    def close(self) -> None:
        """End all of it."""
        self.after_workers()
        if self._health is not None:
            self._health.stop()
            _HEALTH.setLevel(self._level)
        logging.getLogger(PACKAGE).removeHandler(self._log_handler)

    def _note(self, name: str, request: FileTimerRequest | None) -> None:
        """Leave a note for the agent's thread; called in the watchdog's, too."""
        self._notes.append((name, request))
        self._around.loop.wake()

    def _pass_on(self) -> None:
        while self._notes:
            name, request = self._notes.popleft()
            if request is not None:
                from hpc_elastic.node.listeners.watchdog import EXPIRED, expired_words  # noqa: PLC0415 - is imported

                if name == EXPIRED:
                    self._say(expired_words(request))
            self._telemetry.watchdog(name, request)
