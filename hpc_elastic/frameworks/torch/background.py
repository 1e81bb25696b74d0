"""Work beside the training, in a thread."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

_END_S = 30.0


class Background:
    """One piece of work at a time, in a thread that ends with the program.

    Args:
        name: of the thread.
        end_s: for a piece of work that is under way when the program ends [s].
    """

    def __init__(self, name: str, end_s: float = _END_S) -> None:
        self._name, self._end_s = name, end_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        atexit.register(self._finish)

    def start(self, work: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
        """Begin a piece of work; `after` is called at its end, after an error too."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - `wait` returns it
                self._error = error
            finally:
                after()

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a piece of work is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, limit_s: float | None = None) -> BaseException | None:
        """Wait for the work under way; return the error that no call has returned yet.

        Args:
            limit_s: wait no longer [s]; None: to its end.
        """
        if self._thread is not None:
            self._thread.join(limit_s)
            self._thread = self._thread if self._thread.is_alive() else None
        error, self._error = self._error, None
        return error

    def _finish(self) -> None:
        """Let the work end before the program does; not for ever, as ranks that are dead do not answer."""
        if self._thread is not None:
            self._thread.join(self._end_s)
