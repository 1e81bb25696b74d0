"""What an agent knows about a worker that failed (names as in torch.distributed.elastic)."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.multiprocessing.errors.error_file import ErrorReply, read_reply


class ProcessFailure:
    """One worker that ended with an exit code other than 0.

    The error file is read once, when something in it is first asked for, and never raises:
    a missing, empty, cut or foreign file leaves the exit code.

    Args:
        local_rank: of the worker.
        pid: it had.
        exitcode: n, or -n for signal n.
        error_file: its error file; need not exist.
        observed_at: wall time when the end was seen [s]; None means now.
    """

    def __init__(
        self, local_rank: int, pid: int, exitcode: int, error_file: str, observed_at: float | None = None
    ) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.exitcode = exitcode
        self.error_file = error_file
        self._observed_at = SystemClock().wall() if observed_at is None else observed_at
        self._reply: ErrorReply | None = None

    def __repr__(self) -> str:
        return f"ProcessFailure(local_rank={self.local_rank}, pid={self.pid}, exitcode={self.exitcode})"

    def reply(self) -> ErrorReply:
        """Return what the error file says."""
        if self._reply is None:
            self._reply = read_reply(self.error_file) or ErrorReply()
        return self._reply

    @property
    def error_file_data(self) -> Mapping[str, Any]:
        """The error file as it is, empty when there is none."""
        return self.reply().data

    @property
    def message(self) -> str:
        """``<type>: <text>`` of the exception, else the signal in words, else empty."""
        text = self.reply().message
        if text or self.exitcode >= 0:
            return text
        return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"

    @property
    def traceback(self) -> str:
        """The traceback of the exception, empty when there is none."""
        return self.reply().traceback

    @property
    def time_s(self) -> float:
        """Wall time of the failure [s]: the worker's own, else when its end was seen."""
        own = self.reply().time_s
        return self._observed_at if own is None else own

    @property
    def timestamp(self) -> int:
        """Wall time of the failure in whole seconds."""
        return int(self.time_s)

    def signal_name(self) -> str:
        """Return the name of the signal that ended it, else ``<N/A>``."""
        return signal_name(self.exitcode)

    def timestamp_isoformat(self) -> str:
        """Return the local time of the failure as ``YYYY-MM-DD_HH:MM:SS``."""
        return date_text(self.time_s).replace(" ", "_")


def signal_name(exitcode: int) -> str:
    """Return the name of signal n for the exit code -n, else ``<N/A>``."""
    try:
        return signal.Signals(-exitcode).name if exitcode < 0 else "<N/A>"
    except ValueError:
        return f"SIG{-exitcode}"


class ChildFailedError(HpcElasticError):
    """Workers of this node have failed; the text is the whole summary.

    Args:
        name: what was run, for the headline.
        failures: by global rank; at least one.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        if not failures:
            raise ValueError("ChildFailedError needs at least one failure")
        super().__init__(name)
        self.name = name
        self.failures = dict(failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the global rank and the failure with the earliest time."""
        return min(self.failures.items(), key=lambda item: item[1].time_s)

    def __str__(self) -> str:
        # pylint: disable-next=cyclic-import
        from hpc_elastic.multiprocessing.errors.summary import (  # noqa: PLC0415 - summary reads failures
            failure_record,
            failure_summary,
            first_failures,
            node_name,
        )

        node = node_name()
        records = [failure_record(failure, rank=rank, node=node) for rank, failure in self.failures.items()]
        return failure_summary(self.name, first_failures(records))
