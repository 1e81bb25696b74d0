"""Work beside the training, in a thread, and copies of states in host memory that it writes."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_elastic.frameworks.torch.train_state import Torch

END_S = 30.0


class Background:
    """One piece of work at a time, in a thread that ends with the program.

    Args:
        end_s: for a piece of work that is under way when the program ends [s].
        at_end: has the program end with an error if the last piece of work has failed and `wait` has not
            returned its error: called with it, returns the text for people. None: it ends as it would.
    """

    def __init__(
        self, name: str, end_s: float = END_S, at_end: Callable[[BaseException], str] | None = None
    ) -> None:
        self._name, self._end_s, self._at_end = name, end_s, at_end
        self._process = os.getpid()
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

    def look(self) -> bool | None:
        """Tell whether the last piece of work has succeeded; None while it is under way."""
        return None if self.is_busy else self._error is None

    def join(self, limit_s: float) -> None:
        """Wait for the work under way, no longer than a limit [s]."""
        if self._thread is not None:
            self._thread.join(limit_s)

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
        if self._at_end is None or self._process != os.getpid():
            return
        error = self._error
        if error is None and self.is_busy:
            error = TimeoutError(f"it was not complete {self._end_s:.0f} s after the end of the program")
        if error is not None:
            sys.stderr.write(f"{self._at_end(error)}\n")
            sys.stdout = _FailsAtEnd(sys.stdout, f"the last piece of work of {self._name} has failed")


class _FailsAtEnd:
    """Stands in for standard output, and fails its last flush: then Python ends with exit code 120.

    All exit functions of the program run before that.
    """

    def __init__(self, stream: Any, text: str) -> None:
        self._stream, self._text = stream, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flush standard output."""
        self._stream.flush()
        if sys.is_finalizing():
            raise RuntimeError(self._text)


class HostCopies:
    """Copies states into buffers in host memory, which stay for the next copy.

    PyTorch's ``DefaultStager`` does so too, but that of version 2.11 is of no use for a second copy.
    """

    def __init__(self, lib: Torch) -> None:
        self._cuda = lib.torch.cuda if lib.torch.cuda.is_available() else None
        self._stager = lib.stager.StateDictStager(pin_memory=self._cuda is not None, share_memory=False)

    def stage(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy in host memory, which is the same memory each time."""
        copied: dict[str, Any] = self._stager.stage(content, non_blocking=self._cuda is not None)
        if self._cuda is not None:
            self._cuda.current_stream().synchronize()
        return copied
