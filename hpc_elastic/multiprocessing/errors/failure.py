"""The failure of a worker: its error file, its record in the journal, and the text for people.

The error file is that of torch.distributed.elastic with one field more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.errors import DamagedError, HpcElasticError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.secrets_out import without_values
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.text import last_words
from hpc_elastic.typed_json import parse

_MAX_READ: Final = 16 << 20
_FAR_FUTURE_S: Final = 1e11  # a later value is no time in seconds

NOT_AVAILABLE: Final = "<N/A>"
"""Stands for an error file that does not exist, and for the signal of who exited."""

_NO_REPLY: Final = "<NONE>"
_NO_DETAILS: Final = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
"""As in torch: people and programs know it."""
_MAX_MESSAGE: Final = 2_000
_MAX_TRACEBACK: Final = 10_000
_TAIL_BYTES: Final = 8_192
_TAIL_LINES: Final = 20
_MAX_TAIL: Final = 4_000
_MAX_OTHERS: Final = 8
_WIDTH: Final = 60
_SHELL_SIGNAL: Final = 128  # a shell's exit code for signal n is 128 + n
_DECORATE: Final = (
    "  (no details: decorate main() with hpc_elastic.multiprocessing.errors.record, or redirect stderr)"
)

_SIGNAL_MEANINGS: Final = {
    "SIGKILL": "killed from outside: often the node ran out of memory, or Slurm ended the step",
    "SIGTERM": "asked to end by another process",
    "SIGSEGV": "invalid memory access in native code",
    "SIGABRT": "aborted itself: a failed assertion, or a watchdog such as NCCL's",
    "SIGBUS": "bus error: often /dev/shm is full or a mapped file was cut",
    "SIGILL": "illegal instruction: often a binary built for another processor",
    "SIGFPE": "arithmetic fault in native code",
    "SIGINT": "interrupted",
    "SIGHUP": "hung up",
    "SIGPIPE": "wrote to a closed pipe",
    "SIGXCPU": "used up its CPU time (ulimit -t)",
    "SIGXFSZ": "wrote a file larger than allowed (ulimit -f)",
}
_CODE_MEANINGS: Final = {126: "not executable", 127: "command not found"}


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


class FailureRecord(NamedTuple):
    """One failed worker, as it is stored in the run's journal.

    exitcode is n, or -n for signal n; the timestamp is wall time [s] of the worker's node, for
    display; `log` is the path of its stderr.log. Texts are bounded: about 20 KiB as JSON.
    """

    rank: int
    local_rank: int = 0
    node: str = ""
    pid: int = 0
    exitcode: int = 1
    message: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    log: str = ""
    timestamp: float = 0.0
    place: str = ""  # of a hang: the call in which the rank waits, the same on all nodes
    stands_out: bool = True  # False of a hang: the others are where it is, so that none is the culprit

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return self._asdict()

    def without(self, secrets: Sequence[str]) -> FailureRecord:
        """Return the record without these secrets in its texts, for the journal is read in many places."""
        texts = (self.message, self.traceback, self.stderr_tail)
        message, traceback, tail = (without_values(text, secrets) for text in texts)
        return self._replace(message=message, traceback=traceback, stderr_tail=tail)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FailureRecord:
        """Read a record; unknown keys are ignored, missing or odd ones take their default."""
        default = cls(rank=-1)
        values: dict[str, Any] = {}
        for name, fallback in default._asdict().items():
            try:
                values[name] = type(fallback)(data[name])
            except (KeyError, TypeError, ValueError):
                values[name] = fallback
        return cls(**values)

    @property
    def exit_status(self) -> int:
        """The exit code as a shell gives it: n, or 128 + n for signal n."""
        return self.exitcode if self.exitcode >= 0 else _SHELL_SIGNAL - self.exitcode


def failure_record(failure: ProcessFailure, *, rank: int, node: str, log: str = "") -> FailureRecord:
    """Return the record of a failure; reads its error file and the end of its log.

    Args:
        failure: as the context reported it.
        rank: the worker's global rank.
        node: name of the node.
        log: path of its stderr.log, empty when it was not redirected.
    """
    return FailureRecord(
        rank=rank,
        local_rank=failure.local_rank,
        node=node,
        pid=failure.pid,
        exitcode=failure.exitcode,
        message=_cut(failure.reply().message, _MAX_MESSAGE),
        traceback=_cut(failure.traceback.rstrip(), _MAX_TRACEBACK),
        stderr_tail=read_tail(log),
        log=log,
        timestamp=failure.time_s,
    )


def node_name() -> str:
    """Return this node's name as the kernel has it; no look-up."""
    return os.uname().nodename


def read_tail(path: str) -> str:
    """Return the last lines of a log, empty when it cannot be read."""
    if not path or not os.path.isfile(path):
        return ""
    try:
        with os.fdopen(open_plain(path, own=False), "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            lines = file.read(_TAIL_BYTES).decode(errors="replace").rstrip().split("\n")
    except OSError:
        return ""
    whole = lines[1:] if start and len(lines) > 1 else lines
    return "\n".join(line.rsplit("\r", 1)[-1] for line in whole[-_TAIL_LINES:])[-_MAX_TAIL:]


def first_failures(records: Iterable[FailureRecord]) -> list[FailureRecord]:
    """Return the records of *one node*, earliest first; clocks of nodes are never compared."""
    return sorted(records, key=lambda record: (record.timestamp, record.rank))


def failure_summary(
    name: str,
    failures: Sequence[FailureRecord],
    *,
    delimiters: tuple[str, str] = ("=", "-"),
    enrich: Callable[[str], str] = str,
) -> str:
    """Return the text that tells why a run failed.

    Args:
        name: the name of the program.
        failures: the root cause first; the others follow in one line each.
        delimiters: the characters of the outer lines and of the line below the headline.
        enrich: changes the text about the root cause.
    """
    outer, inner = (mark * _WIDTH for mark in delimiters)
    lines = [outer, f"{name} FAILED", inner]
    if failures:
        lines += ["Root Cause (first observed failure):", enrich("\n".join(_block(failures[0])))]
    others = failures[1:]
    if others:
        lines.append(f"Other failures ({len(others)}):")
        lines += [f"  {one_line(record)}" for record in others[:_MAX_OTHERS]]
    if len(others) > _MAX_OTHERS:
        lines.append(f"  ... and {len(others) - _MAX_OTHERS} more")
    return "\n".join([*lines, outer])


def one_line(record: FailureRecord) -> str:
    """Return a failure in one line: rank, exit code, and the first line of the reason."""
    reason = _reason(record)
    where = f" on {record.node}" if record.node else ""
    text = f"rank {record.rank}{where}: {_exit_words(record)} (pid {record.pid})"
    return f"{text}: {reason}" if reason else text


def _block(record: FailureRecord) -> list[str]:
    fields = [
        ("time", f"{date_text(record.timestamp)}{f'{record.timestamp % 1:.3f}'[1:]}"),
        ("node", record.node),
        (
            "rank",
            f"{record.rank} (local_rank: {record.local_rank}){'' if record.stands_out else _NO_CULPRIT}",
        ),
        ("exitcode", f"{record.exitcode} (pid: {record.pid}){_more_than_code(record)}"),
        ("meaning", _meaning(record)),
        ("error", _cut(record.message, _MAX_MESSAGE)),
        ("log", record.log),
    ]
    lines = [f"  {key:<10}: {_indent(value)}" for key, value in fields if value]
    if record.traceback:
        return [*lines, "  traceback:", *_quoted(record.traceback)]
    if record.stderr_tail:
        return [*lines, "  last lines of stderr:", *_quoted(record.stderr_tail)]
    return [*lines, _DECORATE]


_NO_CULPRIT = ", of those without progress; no rank stands out"


def _more_than_code(record: FailureRecord) -> str:
    is_plain = record.exitcode >= 0 and not (record.exitcode == ExitCode.HUNG and record.message)
    return "" if is_plain else f", {_exit_words(record)}"


def _exit_words(record: FailureRecord) -> str:
    if record.exitcode < 0:
        return f"signal {-record.exitcode} ({signal_name(record.exitcode)})"
    if record.exitcode == ExitCode.HUNG and record.message:
        return "ended by its agent"
    return f"exit code {record.exitcode}"


def _meaning(record: FailureRecord) -> str:
    if record.exitcode < 0:
        return _SIGNAL_MEANINGS.get(signal_name(record.exitcode), "")
    number = record.exitcode - _SHELL_SIGNAL
    name = signal_name(-number) if number > 0 else ""
    if name in _SIGNAL_MEANINGS:
        return (
            f"{_SHELL_SIGNAL} + {number}: a process inside it was ended by {name}; {_SIGNAL_MEANINGS[name]}"
        )
    return _CODE_MEANINGS.get(record.exitcode, "")


def _reason(record: FailureRecord) -> str:
    """Return the error's own words, or else the last line of stderr that may be one.

    The last output of a worker that was ended from outside has nothing to do with its end.
    """
    from_outside = record.exitcode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    last_line = "" if from_outside else last_words(record.stderr_tail)
    return _cut((record.message.strip() or last_line).split("\n", 1)[0], 200)


def _indent(text: str) -> str:
    return text.replace("\n", "\n              ")


def _quoted(text: str) -> list[str]:
    return [f"    {line}" for line in text.split("\n")]


def _cut(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters; the end says most, so mostly that stays."""
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]} ... {text[head - limit :]}"


class ChildFailedError(HpcElasticError):
    """Workers of this node have failed; the text is the whole summary.

    Args:
        name: the name of the program, for the headline.
        failures: by global rank; at least one.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        if not failures:
            raise ValueError("ChildFailedError needs at least one failure")
        super().__init__(name)
        self.name = name
        self.failures = dict(failures)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the global rank and the failure with the earliest time."""
        return min(self.failures.items(), key=lambda item: item[1].time_s)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the summary.

        Args:
            boarder_delim: the character of the first and the last line.
            section_delim: the character of the line below the headline.
        """
        node = node_name()
        records = [failure_record(failure, rank=rank, node=node) for rank, failure in self.failures.items()]
        delimiters = (boarder_delim, section_delim)
        return failure_summary(
            self.name, first_failures(records), delimiters=delimiters, enrich=self._enriched
        )

    def _enriched(self, text: str) -> str:
        """Return the text about the first failure; after a signal the error handler may add to it."""
        failure = self.get_first_failure()[1]
        errors = sys.modules[__package__]  # the package: programs put a handler of their own in there
        handler = errors.get_error_handler() if failure.exitcode < 0 else None
        enrich = getattr(handler, "maybe_enrich_signal_failure_message", None)  # older handlers have none
        return text if enrich is None else str(enrich(text, failure.error_file))

    def __str__(self) -> str:
        return self.format_msg()
