"""Workers that hang in the kernel: what their node says of them when it leaves the run."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.ids import ExitCode
from hpc_elastic.multiprocessing.errors import FailureRecord, ProcessFailure
from hpc_elastic.multiprocessing.errors.failure import explain
from hpc_elastic.multiprocessing.errors.summary import read_tail
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.node.workers.uninterruptible import stuck_words
from hpc_elastic.record.journal import RoundFormed


class Wedge(NamedTuple):
    """Workers of this node that no signal ends, the first one first."""

    node: str
    formed: RoundFormed  # the round they were started for
    failures: tuple[FailureRecord, ...]

    @property
    def first(self) -> FailureRecord:
        """The one that the other nodes are told of."""
        return self.failures[0]

    @property
    def words(self) -> str:
        """What has happened, in one line."""
        workers = ", ".join(f"rank {failure.rank} (pid {failure.pid})" for failure in self.failures)
        return f"{workers} on {self.node}: {self.first.message}; {self.node} leaves the run and needs care"

    def outcome(self) -> Outcome:
        """Return how the agent ends: this is never a success."""
        failures = {}
        for record in self.failures:
            failure = ProcessFailure(record.local_rank, record.pid, record.exitcode, "", record.timestamp)
            explain(failure, record.message)
            failures[record.rank] = failure
        result = RunResult(WorkerState.FAILED, {}, failures)
        return Outcome(ExitCode.WEDGED, self.words, self.first.to_json(), result)


def wedge_of(group: LocalGroup, pids: tuple[int, ...], timeout_s: float, node: str, wall_s: float) -> Wedge:
    """Return what is to be said of workers that are stuck.

    Args:
        group: the workers of this node.
        pids: those that are stuck, at least one.
        timeout_s: how long they have been at least [s].
        node: this node's name.
        wall_s: wall time of now [s].
    """
    logs = group.context.stderrs
    return Wedge(
        node,
        group.formed,
        tuple(
            FailureRecord(
                rank=group.place.base_rank + local_rank,
                local_rank=local_rank,
                node=node,
                pid=pid,
                exitcode=ExitCode.WEDGED,
                message=stuck_words(timeout_s),
                stderr_tail=read_tail(logs.get(local_rank, "")),
                log=logs.get(local_rank, ""),
                timestamp=wall_s,
            )
            for local_rank, pid in sorted(group.context.pids().items())
            if pid in pids
        ),
    )
