"""Computes the goodput of a run now and then, in a thread beside the agent's loop, for its metrics."""

from __future__ import annotations

import threading

from hpc_elastic.account.account import account_of
from hpc_elastic.account.read import read_facts
from hpc_elastic.account.spans import History
from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Record
from hpc_elastic.record.run_log import read_newer

_GAP_S = 60.0  # between two computations, at least
_SHARE = 0.005  # of the time for them, at most
_SHORT_S = 0.5  # a computation that takes no longer is worth another one when the agent leaves


class RunGoodput(NamedTuple):
    """The goodput of a run."""

    share: float  # of the time in which the run had nodes
    lost_steps: int


class GoodputWatch:
    """Computes the goodput of one run; journal and account are read again, Slurm is not asked."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        self._paths, self._clock = paths, clock
        self._records: list[Record] = []
        self._due = -1.0  # monotonic time of the next computation [s]
        self._cost_s = 0.0  # of the newest one
        self._thread: threading.Thread | None = None
        self._found: RunGoodput | None = None

    def look(self, now: float) -> RunGoodput | None:
        """Begin to compute if it is time to; return a result that is new.

        Args:
            now: monotonic time [s].
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return None
            self._thread = None
            self._due = now + max(_GAP_S, self._cost_s / _SHARE)
            return self._found
        if now >= self._due:
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()
        return None

    def last(self) -> RunGoodput | None:
        """Return the goodput at the end of this agent; None if it is not known, or takes long to compute."""
        if self._due < 0 and self._thread is None:
            return None  # the workers have told no step
        if self._thread is not None:
            self._thread.join(_SHORT_S)
        if (self._thread is not None and self._thread.is_alive()) or self._cost_s > _SHORT_S:
            return None
        self._compute()
        return self._found

    def _compute(self) -> None:
        began, self._found = self._clock.monotonic(), None
        try:
            last = self._records[-1].number if self._records else 0
            self._records += read_newer(self._paths, last)
            history = History(self._records, read_facts(self._paths), now=self._clock.wall())
            account = account_of(history)
        except (HpcElasticError, OSError):
            return  # the next computation may find the files again
        finally:
            self._cost_s = self._clock.monotonic() - began
        if account.goodput_on_nodes is not None:
            self._found = RunGoodput(account.goodput_on_nodes, account.lost_steps)
