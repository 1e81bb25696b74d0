"""Writes down how far the workers of a round are, for the account of the run's time."""

from __future__ import annotations

import os
from contextlib import suppress

from hpc_elastic.account.facts import Doing, NodeUse, WorkFact, encode_fact, next_line_at
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.processes.control_group import read_job_usage
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.typed_json import whole_number

_USE_GAP_S = 60.0  # between two looks at the use of the node
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


class _SeenStep(NamedTuple):
    """The newest step, and when this agent first saw it."""

    ticks: int
    step: int | None
    saving_s: float
    total: int | None
    mono: float  # [s]
    known: int  # number of the newest record then


class WorkLog:
    """Writes the lines of one node about one round; one that cannot be written is missing in the account."""

    def __init__(self, parts: AgentParts, group: LocalGroup) -> None:
        self._parts, self._group = parts, group
        self._run = parts.rendezvous.run
        self._has_imported = False
        self._seen = _SeenStep(0, None, 0.0, None, 0.0, 0)
        self._told: _SeenStep | None = None
        self._first_at = 0.0  # when the first step of the round was done [s]
        self._due_at = 0.0  # when a step is worth the next line [s]
        self._fd: int | None = None
        self._used_s = read_job_usage().cpu_s  # CPU time of the step before the round [s]
        self._used_at = self._now()
        with suppress(OSError):
            self._fd = _opened(parts.paths.account, parts.run.node)
        self._write(Doing.STARTED, self._now())

    def look(self, now: float) -> None:
        """Look how far the workers are.

        Args:
            now: monotonic time [s].
        """
        views = self._group.views
        if self._fd is None or not views:
            return
        first = views[0]
        if not self._has_imported and first.pid:
            self._has_imported = True
            self._write(Doing.IMPORTED, now)
        ticks = first.ticks
        if ticks == self._seen.ticks:
            return
        known = self._run.state.last
        self._seen = _SeenStep(ticks, first.last_step, first.saving_s, first.total, now, known)
        if self._told is None:
            self._first_at = now
        if now >= self._due_at:
            self._tell_step(first.resumed if self._told is None else None)

    def close(self) -> None:
        """Write the last step, and that no worker is left."""
        if self._fd is None:
            return
        if self._seen.ticks and self._seen != self._told:
            self._tell_step()
        saving_s = self._group.channels[0].saving_s if self._group.channels else 0.0
        self._seen = self._seen._replace(saving_s=saving_s)
        self._write(Doing.GONE, self._now(), use=self._use())
        os.close(self._fd)
        self._fd = None

    def _tell_step(self, began: int | None = None) -> None:
        self._told = self._seen
        is_due = self._now() - self._used_at >= _USE_GAP_S
        self._write(Doing.STEP, self._seen.mono, self._seen, self._use() if is_due else None, began)
        self._due_at = next_line_at(self._first_at, self._seen.mono)

    def _use(self) -> NodeUse | None:
        """Return the use of the node since the workers were started; None outside of a step of Slurm."""
        self._used_at = self._now()
        usage = read_job_usage()
        cpus = whole_number(self._parts.environ.get("SLURM_CPUS_ON_NODE", ""))
        now_s, before_s = usage.cpu_s, self._used_s
        cpu_s = None if now_s is None or before_s is None else round(max(now_s - before_s, 0.0), 3)
        return None if cpu_s is usage.peak is None else NodeUse(cpu_s, cpus, usage.peak, usage.limit)

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _write(
        self,
        doing: Doing,
        mono: float,
        seen: _SeenStep | None = None,
        use: NodeUse | None = None,
        began: int | None = None,
    ) -> None:
        if self._fd is None:
            return
        at = self._parts.clock.wall() - (self._now() - mono)
        known = self._run.state.last if seen is None else seen.known
        number, me = self._group.formed.number, self._run.membership.node_id
        step = None if seen is None else seen.step
        total = None if seen is None else seen.total
        fact = WorkFact(number, doing, at, mono, me, known, step, self._seen.saving_s, total, use, began)
        with suppress(OSError):
            os.write(self._fd, encode_fact(fact))


def _opened(directory: str, node: str) -> int:
    """Return a node's open file; a line that its last writer has left torn is ended.

    Raises:
        OSError: it cannot be written to.
    """
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    fd = open_plain(os.path.join(directory, f"{node}.log"), _FLAGS)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd
