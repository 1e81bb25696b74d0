"""What an agent knows about a worker that failed (names as in torch.distributed.elastic)."""

from __future__ import annotations

import signal
from typing import Any, ClassVar, Final

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.data_fields import DataFields, DataParams
from hpc_elastic.multiprocessing.errors.error_file import ErrorReply, read_reply

NOT_AVAILABLE: Final = "<N/A>"
"""Stands for an error file that does not exist, and for the signal of who exited."""

_NO_REPLY: Final = "<NONE>"
_NO_DETAILS: Final = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
"""As in torch: people and programs know it."""


class ProcessFailure:
    """One worker that ended with an exit code other than 0.

    The error file is read once, here, and never raises: a missing, empty, cut or foreign file
    leaves the exit code. `message` is what the file has under that key, a mapping with ``message``
    and ``extraInfo`` or a text; else words made of the exit code. `text` is always one text.

    Args:
        local_rank: of the worker.
        pid: it had.
        exitcode: n, or -n for signal n.
        error_file: its error file; `NOT_AVAILABLE` afterwards if there is none.
        observed_at: wall time when the end was seen [s]; None means now.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        *("local_rank", "pid", "exitcode", "error_file"),
        derived=("error_file_data", "message", "timestamp"),
    )
    __dataclass_params__: ClassVar[Any] = DataParams()

    def __init__(
        self, local_rank: int, pid: int, exitcode: int, error_file: str, observed_at: float | None = None
    ) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.exitcode = exitcode
        self.error_file = error_file
        self.__post_init__()
        if observed_at is not None:
            self._observed_at = observed_at

    def __post_init__(self) -> None:
        """Read the error file; also what a data class derived from this one calls."""
        reply = read_reply(self.error_file)
        self.error_file = NOT_AVAILABLE if reply is None else self.error_file
        self._reply = reply or ErrorReply()
        self._observed_at = SystemClock().wall()
        self._corrected_at: float | None = None
        self.error_file_data: dict[str, Any] = dict(self._reply.data) or {"message": _NO_REPLY}
        self.message: Any = self._reply.data.get("message") or self.text
        if not self.message:
            self.message = _NO_DETAILS
            self.error_file_data["errorTraits"] = {
                "category": "system_terminated_error",
                "retryability": "False",
            }

    def __repr__(self) -> str:
        shown = ("local_rank", "pid", "exitcode", "error_file", "message", "timestamp")
        return f"ProcessFailure({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessFailure) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def reply(self) -> ErrorReply:
        """Return what the error file says."""
        return self._reply

    @property
    def text(self) -> str:
        """``<type>: <text>`` of the exception, else the signal in words, else empty."""
        if self._reply.message or self.exitcode >= 0:
            return self._reply.message
        return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"

    @property
    def traceback(self) -> str:
        """The traceback of the exception, empty when there is none."""
        return self._reply.traceback

    @property
    def recorded_at(self) -> float | None:
        """Wall time of the exception as the worker recorded it [s], if it did."""
        return self._reply.time_s

    @property
    def time_s(self) -> float:
        """Wall time of the failure [s]: the worker's own, else when its end was seen."""
        own = self._reply.time_s if self._corrected_at is None else self._corrected_at
        return self._observed_at if own is None else own

    @property
    def timestamp(self) -> int:
        """Wall time of the failure in whole seconds; who knows better may set it [s]."""
        return int(self.time_s)

    @timestamp.setter
    def timestamp(self, seconds: float) -> None:
        self._corrected_at = seconds

    def signal_name(self) -> str:
        """Return the name of the signal that ended it, else ``<N/A>``."""
        return signal_name(self.exitcode)

    def timestamp_isoformat(self) -> str:
        """Return the local time of the failure as ``YYYY-MM-DD_HH:MM:SS``."""
        return date_text(self.time_s).replace(" ", "_")


def explain(failure: ProcessFailure, words: str) -> None:
    """Have a failure tell why the worker ended, as its agent knows it; what the worker has said stands.

    Args:
        failure: changed.
        words: nothing is done without any.
    """
    if words and not failure.reply().message:
        failure._reply = failure.reply()._replace(message=words)  # noqa: SLF001 - its own module
        failure.message, failure.error_file_data = words, {"message": words}


def signal_name(exitcode: int) -> str:
    """Return the name of signal n for the exit code -n, else ``<N/A>``."""
    try:
        return signal.Signals(-exitcode).name if exitcode < 0 else NOT_AVAILABLE
    except ValueError:
        return f"SIG{-exitcode}"
