"""Has this machine wake the loop when others write into the run directory, where it can."""

from __future__ import annotations

import os

from hpc_elastic.paths import RunPaths
from hpc_elastic.store.shared_dir import segment_name
from hpc_elastic.store.watch import Watch


class RunWatch:
    """Watches the journal's newest segment and, on demand, what the peers tell of themselves.

    Args:
        paths: the run.
        watch: what wakes the loop.
    """

    def __init__(self, paths: RunPaths, watch: Watch) -> None:
        self._paths = paths
        self._watch = watch
        self._watched = ("", False)

    def follow(self, last: int, *, peers: bool) -> None:
        """Watch where the record after the last one is going to be.

        Args:
            last: number of the last record read.
            peers: whether to watch members and steps, too.
        """
        segment = segment_name(last + 1)
        if (segment, peers) == self._watched:
            return
        if self._watch.add_directory(os.path.join(self._paths.journal, segment)):  # else not there yet
            self._watched = (segment, peers)
        for directory in (self._paths.members, self._paths.steps):
            if peers:
                self._watch.add_directory(directory)
            else:
                self._watch.remove(directory)
