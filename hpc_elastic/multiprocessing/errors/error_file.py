"""The error file of a worker: the JSON that torch.distributed.elastic writes, and one field more.

    {"message": {"message": "ValueError: bad",
                 "errorCode": 1,                                        set by a parent
                 "extraInfo": {"py_callstack": "Traceback ...",
                               "timestamp": "1700000000",               whole seconds, as torch
                               "time_s": 1700000000.123}}}              ours

The older flat form ``{"message": "text", "timestamp": 1700000000}`` is read too. Whatever else a
file holds is read as far as possible: a worker may die while it writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hpc_elastic.errors import DamagedError
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.typed_json import parse

_MAX_READ: Final = 16 << 20
_FAR_FUTURE_S: Final = 1e11  # what is later is no time in seconds


class ErrorReply(NamedTuple):
    """What an error file says; empty and None where it says nothing."""

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
    """Return what the content of an error file says; never raises, whatever it holds."""
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
    """Return what an error file of this user's says, None when there is none."""
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
