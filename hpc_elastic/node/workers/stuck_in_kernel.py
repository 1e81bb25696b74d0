"""Workers that hang in the kernel: their watch, and the words of their node when it leaves the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors import FailureRecord, ProcessFailure
from hpc_elastic.multiprocessing.errors.failure import explain, read_tail
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.processes.linux import read_stat
from hpc_elastic.record.journal import RoundFormed

TIMEOUT_ENV = Env.STATE_TIMEOUT
_RUNS_COUNT = b"voluntary_ctxt_switches:"
logger = logging.getLogger(__name__)
ReadState = Callable[[int], str | None]


class Wedge(NamedTuple):
    """Workers of this node that no signal ends, the first one first."""

    node: str
    formed: RoundFormed  # the round they were started for
    failures: tuple[FailureRecord, ...]

    @property
    def first(self) -> FailureRecord:
        """The one in the records for the other nodes."""
        return self.failures[0]

    @property
    def words(self) -> str:
        """The event in one line."""
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
    """Return the facts of workers that are stuck.

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


"""Returns a process's state: its letter, and perhaps more that changes whenever the process runs."""


def state_timeout(environ: Mapping[str, str], explicit: float | None = None) -> float:
    """Return how long a worker may be in state D [s]; 0: as long as it likes.

    Args:
        environ: the agent's environment; a value that is no positive number means 0, as in torch.
        explicit: comes before the environment.
    """
    try:
        value = float(environ.get(TIMEOUT_ENV, "") if explicit is None else explicit)
    except ValueError:
        return 0.0
    return value if value > 0 and math.isfinite(value) else 0.0


def read_state(pid: int) -> str | None:
    """Return the state of a process's first thread and how often it has gone to sleep, e.g. ``D 17``.

    None when it is gone. The number tells one long sleep from many short ones.
    """
    stat = read_stat(pid)
    if stat is None or stat.state != "D":
        return None if stat is None else stat.state
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            count = next((line.split()[1] for line in status if line.startswith(_RUNS_COUNT)), b"")
    except OSError:
        return None
    return f"D {count.decode()}"


def stuck_words(timeout_s: float) -> str:
    """Return the defect of a worker that has been in state D for too long.

    Args:
        timeout_s: how long it has been at least [s].
    """
    return (
        f"in uninterruptible sleep (state D) for {timeout_s:g} s or longer: it waits for a device or a mount"
    )


class UninterruptibleWatch:
    """Knows since when which worker has been in state D without a break.

    Args:
        timeout_s: how long it may be [s].
        now: this node's monotonic time [s].
        read_state: the state of a process.
    """

    def __init__(
        self, timeout_s: float, now: Callable[[], float], read_state: ReadState = read_state
    ) -> None:
        self.timeout_s = timeout_s
        self._now = now
        self._read_state = read_state
        self._since: dict[int, tuple[float, str]] = {}

    def check(self, pids: Collection[int]) -> tuple[int, ...]:
        """Look at the workers; return those that have been in state D for the timeout or longer.

        Args:
            pids: all workers that run; other processes are forgotten.
        """
        now, before = self._now(), self._since
        self._since = {}
        for pid in pids:
            state = self._read_state(pid)
            if state is None or not state.startswith("D"):
                continue
            since, known = before.get(pid, (now, state))
            self._since[pid] = (since if known == state else now, state)
            if pid not in before:
                logger.info("pid %s is in uninterruptible sleep (state D)", pid)
        return tuple(pid for pid, (since, _) in self._since.items() if now - since >= self.timeout_s)

    def next_check_at(self) -> float:
        """Return when a worker will have been in state D for too long (monotonic [s]); inf: none is."""
        return min((since + self.timeout_s for since, _ in self._since.values()), default=math.inf)
