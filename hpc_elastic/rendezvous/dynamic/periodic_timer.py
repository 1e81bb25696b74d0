"""Calling something again and again in a thread of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

_MOMENT_S = 1.0  # a call that is under way may need what the thread that lets the timer go holds


class Duration(Protocol):
    """A `datetime.timedelta`, for code that is not to load `datetime`."""

    def total_seconds(self) -> float:
        """Return the length [s]."""
        ...


def seconds(duration: float | Duration) -> float:
    """Return a duration in seconds."""
    return float(duration) if isinstance(duration, (int, float)) else duration.total_seconds()


class _TimerState:
    """The data of the timer and its thread; the thread does not keep the timer alive."""

    def __init__(self, interval_s: float, call: Callable[[], object]) -> None:
        self.interval_s = interval_s
        self.call = call
        self.stop = threading.Event()
        self.error: Exception | None = None


class PeriodicTimer:
    """Calls a function once per interval until it is cancelled or forgotten.

    A function that fails is called again at the next interval; `error` holds its last exception.

    Args:
        interval: time between two calls, as a timedelta or in seconds.
        function: called at each interval.
        args: its arguments.
        kwargs: its named arguments.
    """

    def __init__(
        self, interval: float | Duration, function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        self._name: str | None = None
        self._thread: threading.Thread | None = None
        self._shared = _TimerState(seconds(interval), lambda: function(*args, **kwargs))

    @property
    def name(self) -> str | None:
        """The name of the thread, if it was given one."""
        return self._name

    @property
    def error(self) -> Exception | None:
        """The exception of the last call; None if it succeeded."""
        return self._shared.error

    def set_name(self, name: str) -> None:
        """Name the thread.

        Raises:
            RuntimeError: it runs already.
        """
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._name = name

    def start(self) -> None:
        """Start calling; the first call is one interval away.

        Raises:
            RuntimeError: the timer was started before.
        """
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._thread = threading.Thread(
            target=_run, name=self._name or "PeriodicTimer", args=(self._shared,), daemon=True
        )
        forgotten = weakref.finalize(self, _end, self._shared, self._thread)
        forgotten.atexit = False
        self._thread.start()

    def is_alive(self) -> bool:
        """Tell whether the thread runs in this process; after a fork it does not run in the child."""
        return self._thread is not None and self._thread.is_alive()

    def cancel(self, timeout_s: float | None = None) -> None:
        """Stop calling, and wait for a call that is under way, at most so long [s]."""
        self._shared.stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _end(shared: _TimerState, thread: threading.Thread) -> None:
    """End the thread of a timer without references; its last holder waits only for a moment."""
    shared.stop.set()
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(_MOMENT_S)


def _run(shared: _TimerState) -> None:
    while not shared.stop.wait(shared.interval_s):
        try:
            shared.call()
        except Exception as error:  # noqa: BLE001 - a timer does not end because one call failed
            shared.error = error
        else:
            shared.error = None
