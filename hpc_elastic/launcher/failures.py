"""The failure of a run as every node's launcher raises it, whichever node it happened on."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    StoreError,
)
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.multiprocessing.errors.failure import (
    ChildFailedError,
    ErrorReply,
    FailureRecord,
    ProcessFailure,
    encode_reply,
    explain,
    failure_record,
    failure_summary,
    first_failures,
    write_data,
)
from hpc_elastic.multiprocessing.signals import SignalException
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import WorkerState


class RecordedFailure(ProcessFailure):
    """A worker's failure as the run's journal has it: it may have happened on another node."""

    def __init__(self, record: FailureRecord) -> None:
        super().__init__(record.local_rank, record.pid, record.exitcode, "", record.timestamp)
        self.node = record.node
        if record.message or record.traceback:
            data = encode_reply(record.message, record.traceback, record.timestamp)
            self._reply = ErrorReply(record.message, record.traceback, record.timestamp, data)
            self.error_file_data = data
            self.message = data["message"]

    def save(self, path: str) -> None:
        """Write an error file, if there is anything to say."""
        if self._reply.data:
            with suppress(OSError):  # the error itself tells as much
                write_data(path, self.error_file_data)
                self.error_file = path


class RunFailedError(ChildFailedError):
    """The run has failed for good; all nodes name the same root cause.

    Args:
        name: the name of the program, for the headline.
        root: the first failure of the run, from its journal.
        own: the failures of this node's workers by global rank, if there are any.
        node: this node's name.
    """

    def __init__(
        self, name: str, root: FailureRecord, own: Mapping[int, ProcessFailure], node: str = ""
    ) -> None:
        failures = {**own}
        known = own.get(root.rank)
        if known is None or known.pid != root.pid:  # it happened on another node
            failures[root.rank] = RecordedFailure(root)
        else:
            explain(known, root.message)
        super().__init__(name, failures)
        self.root = root
        self.node = node

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.root, self.failures, self.node)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank and the failure that the journal has: clocks of nodes are never compared."""
        return self.root.rank, self.failures[self.root.rank]

    def save(self, path: str) -> None:
        """Write an error file with the root cause, for readers on this node such as `record`.

        Where a worker of this node has left one, or there are no words, none is written.
        """
        failure = self.failures[self.root.rank]
        if isinstance(failure, RecordedFailure):
            failure.save(path)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the summary, the run's root cause first.

        Args:
            boarder_delim: the character of the first and the last line.
            section_delim: the character of the line below the headline.
        """
        others = [
            failure_record(failure, rank=rank, node=self.node)
            for rank, failure in self.failures.items()
            if rank != self.root.rank
        ]
        records = [self.root, *first_failures(others)]
        delimiters = (boarder_delim, section_delim)
        return failure_summary(self.name, records, delimiters=delimiters, enrich=self._enriched)


def run_failed(outcome: Outcome, name: str, node: str) -> RunFailedError | None:
    """Return the error of a run that a worker's failure has ended."""
    if not outcome.failure:
        return None
    return RunFailedError(name, FailureRecord.from_json(outcome.failure), outcome.result.failures, node)


def error_of(outcome: Outcome, failed: RunFailedError | None, signalled: int | None) -> Exception | None:
    """Return the exception of a launch; None if it has succeeded.

    Args:
        outcome: of this node's agent.
        failed: the result of `run_failed`.
        signalled: the signal that ended this process, if any.
    """
    if signalled is not None:
        number = signal.Signals(signalled)
        return SignalException(f"Process {os.getpid()} got signal: {number}", number)
    if failed is not None:
        return failed
    if outcome.result.state is WorkerState.SUCCEEDED:
        return None
    if outcome.exit_code == ExitCode.FENCED:
        return RendezvousGracefulExitError(outcome.reason)
    if isinstance(outcome.error, StoreError):
        return RendezvousConnectionError(outcome.reason)
    return outcome.error or RendezvousClosedError(outcome.reason)
