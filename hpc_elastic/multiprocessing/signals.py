"""Turn death signals into `SignalException`, but never in the midst of starting or stopping workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

SIGNALS_ENV: Final = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_DEFAULT: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class SignalTrap:
    """Raises the exception where the caller's code runs or sleeps; holds it back elsewhere.

    Which signals: names joined by commas in TORCHELASTIC_SIGNALS_TO_HANDLE, else SIGTERM, SIGINT,
    SIGHUP and SIGQUIT. The earlier handlers come back with `uninstall`.
    """

    def __init__(self) -> None:
        self._earlier: dict[int, Any] = {}
        self._held = 0
        self._pending: int | None = None
        self._is_closed = False

    def install(self) -> None:
        """Take over the signals; in another thread than the main one this only warns."""
        if threading.current_thread() is not threading.main_thread():
            _warn(
                "Failed to register signal handlers since this is a child thread: "
                "a signal to this process does not give the workers time to end"
            )
            return
        for name in os.environ.get(SIGNALS_ENV, _DEFAULT).split(","):  # noqa: TID251 - torch's switch
            number = getattr(signal, name.strip(), None)
            try:
                earlier = signal.signal(number, self._on_signal)  # type: ignore[arg-type]
            except (OSError, TypeError, ValueError) as error:
                _warn(f"Failed to register signal handler for {name!r} of {SIGNALS_ENV}: {error}")
            else:
                self._earlier[number] = earlier  # type: ignore[index]

    def uninstall(self) -> None:
        """Give the signals back, unless other code has taken them meanwhile."""
        self._is_closed = True
        if threading.current_thread() is threading.main_thread():
            self.restore()

    def restore(self) -> None:
        """Put the earlier handlers back; in a forked child too."""
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the end of the block, then raise the first."""
        before = self._held
        self._held = before + 1
        try:
            yield
        finally:
            self._held = before
            if not before:
                self._raise_pending()

    @contextmanager
    def open(self) -> Iterator[int | None]:
        """Raise within this block, which lies in a `held` one, as soon as a signal comes.

        Gives a descriptor that becomes readable then, for a poll: a signal that comes just before
        the poll begins would not end it. None in another thread than the main one.
        """
        before, wakeup = self._held, _Wakeup()
        try:
            self._held = 0
            self._raise_pending()
            yield wakeup.fd
        finally:
            self._held = before
            wakeup.close()

    def lent(self) -> LentTrap:
        """Return this trap for a group of workers within the block in which it is installed."""
        return LentTrap(self)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._is_closed:
            self._hand_on(number, frame)
        elif not self._held:
            raise _exception(number)
        elif self._pending is None:
            self._pending = number

    def _hand_on(self, number: int, frame: object) -> None:
        """Act as without this trap: other code has put our handler back after its time."""
        earlier = self._earlier.get(number)
        if callable(earlier):
            earlier(number, frame)
        elif earlier != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _raise_pending(self) -> None:
        if self._pending is not None:
            number, self._pending = self._pending, None
            raise _exception(number)


class LentTrap:
    """A trap of another owner, which installs and uninstalls it.

    Args:
        trap: the trap.
    """

    def __init__(self, trap: SignalTrap) -> None:
        self._trap = trap
        self.restore = trap.restore
        self.held = trap.held
        self.open = trap.open

    def install(self) -> None:
        """Do nothing: it is."""

    def uninstall(self) -> None:
        """Do nothing: its owner does."""


class _Wakeup:
    """A pipe into which Python writes when a signal comes, while this lives."""

    def __init__(self) -> None:
        self.fd: int | None = None
        if threading.current_thread() is threading.main_thread():
            self.fd, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._earlier = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def close(self) -> None:
        """Give the signals back to their former handlers."""
        if self.fd is not None:
            signal.set_wakeup_fd(self._earlier)
            os.close(self.fd)
            os.close(self._writing)


def _exception(number: int) -> SignalException:
    sig = signal.Signals(number)
    return SignalException(f"Process {os.getpid()} got signal: {sig}", sig)


def _warn(text: str) -> None:
    import logging  # noqa: PLC0415 - rare

    logging.getLogger(__name__).warning(text)


class SignalException(Exception):  # noqa: N818 - torch's name
    """A death signal came to a process that started workers with `start_processes`.

    An agent, which has a loop of its own, never raises it.

    Args:
        msg: names the process that got it.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval
