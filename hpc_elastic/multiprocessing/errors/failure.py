"""The failure of a worker and its error file, as in torch.distributed.elastic with one field more."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.errors import DamagedError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.typed_json import parse

_MAX_READ: Final = 16 << 20
_FAR_FUTURE_S: Final = 1e11  # a later value is no time in seconds

NOT_AVAILABLE: Final = "<N/A>"
"""Stands for an error file that does not exist, and for the signal of who exited."""

_NO_REPLY: Final = "<NONE>"
_NO_DETAILS: Final = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
"""As in torch: people and programs know it."""


class ProcessFailure(DataClass):
    """One worker that ended with an exit code other than 0.

    The error file is read once, here, and never raises: a missing, empty, cut or foreign file
    leaves the exit code. `message` is the file's value of that key, a mapping with ``message``
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
        """Read the error file; a data class derived from this one calls it, too."""
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
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    __hash__ = None

    def _values(self) -> tuple[object, ...]:
        """Return the values that torch compares: the time is in whole seconds."""
        place = self.local_rank, self.pid, self.exitcode, self.error_file
        return (*place, self.error_file_data, self.message, self.timestamp)

    def reply(self) -> ErrorReply:
        """Return the content of the error file."""
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
        """Wall time of the failure in whole seconds; a caller that knows better may set it [s]."""
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
    """Add the agent's reason to a failure; the worker's own message stays.

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


class ErrorReply(NamedTuple):
    """The content of an error file; empty and None where it has none."""

    message: str = ""
    traceback: str = ""
    time_s: float | None = None
    data: Mapping[str, Any] = {}


def encode_reply(message: str, traceback: str, time_s: float) -> dict[str, Any]:
    """Return the content of an error file.

    Args:
        message: ``<type>: <text>`` of the exception.
        traceback: its formatted traceback.
        time_s: wall time of the failure [s].
    """
    extra = {"py_callstack": traceback, "timestamp": str(int(time_s)), "time_s": time_s}
    return {"message": {"message": message, "extraInfo": extra}}


def parse_reply(content: bytes) -> ErrorReply:
    """Return the reply in the content of an error file; never raises."""
    try:
        data = parse(content)
    except DamagedError:
        text = content.decode(errors="replace").strip()
        return ErrorReply(message=f"(damaged error file) {text[:500]}" if text else "")
    if not isinstance(data, dict):
        return ErrorReply(message=str(data))
    body = data.get("message")
    if not isinstance(body, dict):
        return ErrorReply("" if body is None else str(body), "", _seconds(data.get("timestamp")), data)
    found = body.get("extraInfo")
    extra = found if isinstance(found, dict) else {}
    time_s = _seconds(extra.get("time_s"))
    return ErrorReply(
        message=str(body.get("message") or ""),
        traceback=str(extra.get("py_callstack") or ""),
        time_s=_seconds(extra.get("timestamp")) if time_s is None else time_s,
        data=data,
    )


def _seconds(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < _FAR_FUTURE_S else None


def read_reply(path: str) -> ErrorReply | None:
    """Return the reply in an error file of this user, None when there is none."""
    if not path:
        return None
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            written_s = os.fstat(file.fileno()).st_mtime
            reply = parse_reply(file.read(_MAX_READ))
    except OSError:
        return None
    return _sharpened(reply, written_s)


def _sharpened(reply: ErrorReply, written_s: float) -> ErrorReply:
    """Return an answer whose time is below the second where the file's own time tells it.

    torch's `record` writes whole seconds, and writes them at once.
    """
    if reply.time_s is None or not reply.time_s.is_integer() or int(written_s) != reply.time_s:
        return reply
    return reply._replace(time_s=written_s)


def write_data(path: str, data: Mapping[str, Any]) -> None:
    """Put an error file in place at once, so that no reader sees half of it.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"  # others may have made a link of any name
    made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with open(made, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
