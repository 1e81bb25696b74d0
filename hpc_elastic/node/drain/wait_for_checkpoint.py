"""A drain ends when the checkpoint of its stop step is durable; until then its writers are not killed."""

from __future__ import annotations

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import is_half_saved
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import list_names

LOOK_S = 0.1  # between two looks at the marks


class DurableWait:
    """Checks whether some ranks have marked the checkpoint of the stop step and others have not.

    It matters only while workers that have ended have left something running. A checkpoint that nobody
    has marked is not waited for: nobody may be going to save.

    Args:
        paths: the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._directory = paths.checkpoints
        self._look_at = float("-inf")
        self._waits = False

    def waits(self, state: RunState, now: float) -> bool:
        """Tell whether shards are missing, by the last look.

        Args:
            state: the run.
            now: monotonic time [s].
        """
        if state.drain is None or state.stop_step is None or state.stop_step < 0:
            return False
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            try:
                self._waits = is_half_saved(list_names(self._directory), state.stop_step)
            except OSError:
                self._waits = False
        return self._waits
