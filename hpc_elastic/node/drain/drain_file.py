"""The file by which a user without the command line of hpc_elastic asks a run to save and stop."""

from __future__ import annotations

import os

from hpc_elastic.meet.rules import is_proposer
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.store.plain_file import list_plain

BEATS = 5  # a listing per heartbeat would be a third operation beside its two, for something so rare


class DrainFile:
    """Looks for the file now and then: every `BEATS` heartbeats.

    Only the first few nodes of a round look. They list the run directory: a network file system
    can hide a name that was asked for too early, but not from a listing.

    Args:
        paths: the run.
        interval: time between two looks [s].
    """

    def __init__(self, paths: RunPaths, interval: float) -> None:
        self._paths = paths
        self._interval = interval
        self._look_at = float("-inf")
        self._is_there = False

    def asks(self, running: RoundFormed | None, node_id: str, now: float) -> bool:
        """Tell whether the file is there, by the last look.

        Args:
            running: the round whose workers run, if any.
            node_id: this agent's id.
            now: monotonic time [s].
        """
        if now >= self._look_at and running is not None and is_proposer(running, node_id):
            self._look_at = now + self._interval
            try:
                # nobody else is to end the run by putting a directory of his in the place of the run's
                names = list_plain(self._paths.root, links=True)
                self._is_there = os.path.basename(self._paths.drain) in names
            except OSError:
                pass
        return self._is_there

    def heeded(self) -> None:
        """Take the file away: what it asked for is in the journal."""
        if not self._is_there:
            return
        self._is_there = False
        self._look_at = float("inf")  # this agent leaves
        try:
            os.unlink(self._paths.drain)
        except OSError:
            pass
