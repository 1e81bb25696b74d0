"""Follow several logs in the background and print their lines to a stream (names as in torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.processes.tail import PumpThread, Sink, Tail, TextSink, sink_of

__all__ = ["TailLog", "tail_logfile"]

Filter = Callable[[str], bool]


class _Flag(Protocol):
    """The part of `threading.Event` that is needed."""

    def is_set(self) -> bool:
        """Return whether the writer of the log has ended."""


def tail_logfile(  # noqa: PLR0913 - torch's signature
    header: str,
    file: str,
    dst: TextIO,
    finished: _Flag,
    interval_sec: float,
    log_line_filter: Filter | None = None,
    *,
    clock: Clock | None = None,
) -> None:
    """Print the lines of a log until its writer has ended; without a filter all of them.

    Args:
        header: stands before each line.
        file: the log; need not exist yet.
        dst: where to print.
        finished: set when nothing more will be written.
        interval_sec: pause between two looks [s].
        log_line_filter: tells of a line, its end included, whether it is printed.
        clock: does the sleeping.
    """
    clock = clock or SystemClock()
    tail = Tail(file, sink_of(dst), header.encode(), wanted=_on_bytes(log_line_filter))
    while not finished.is_set():
        if not tail.pump():
            clock.sleep(interval_sec)
    tail.finish()


class TailLog:
    """Follows the logs of several ranks; whole lines, each with its rank's header.

    The logs need not exist when it starts. A line that has no end yet is printed when it has, or
    at the end. Bytes that are no UTF-8 are replaced only where the stream has no descriptor.

    Args:
        name: of the writer; the header is ``[<name><rank>]:``.
        log_files: the logs by local rank.
        dst: where to print; None prints nothing.
        log_line_prefixes: headers by local rank, instead of the usual one.
        interval_sec: longest pause between two looks [s].
        log_line_filter: tells of a line, its end included, whether it is printed.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO | None,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Filter | None = None,
    ) -> None:
        self._name = name
        self._sink: Sink = sink_of(dst)
        prefixes = log_line_prefixes or {}
        self._tails = [
            Tail(
                path,
                self._sink,
                prefixes.get(rank, f"[{name}{rank}]:").encode(),
                wanted=_on_bytes(log_line_filter),
            )
            for rank, path in (log_files if dst is not None else {}).items()
        ]
        self._thread = PumpThread(self._tails, interval_sec) if self._tails else None
        self._stopped = False

    def start(self) -> TailLog:
        """Begin in the background and return itself."""
        if self._thread is not None:
            self._thread.start()
        return self

    def stop(self) -> None:
        """Print the rest and end; an error of the stream or of a log is logged, not raised."""
        if self._thread is not None and not self._stopped:
            self._thread.stop()
            for tail in self._tails:
                tail.finish()
            errors: list[Exception | None] = [tail.error for tail in self._tails]
            errors.append(self._sink.error if isinstance(self._sink, TextSink) else None)
            self._report([error for error in errors if error is not None])
        self._stopped = True

    def _report(self, errors: list[Exception]) -> None:
        for error in errors:
            import logging  # noqa: PLC0415 - rare

            logging.getLogger(__name__).error("error in log tailer for %s. %r", self._name, error)

    def stopped(self) -> bool:
        """Return whether `stop` has been called."""
        return self._stopped


def _on_bytes(log_line_filter: Filter | None) -> Callable[[bytes], bool] | None:
    if log_line_filter is None:
        return None
    return lambda line: log_line_filter(line.decode(errors="replace") + "\n")
