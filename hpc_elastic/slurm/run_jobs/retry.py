"""Trying again for a while: the file system and slurmctld may be away for minutes, and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError, StoreError, TakenOverError, UnfitFileError
from hpc_elastic.slurm.run_jobs.job_start import Say

GONE_PATIENCE_S = 30.0  # for a run directory that is not there: a mount may come back
PATIENCE_S = 300.0  # for slurmctld and for the shared directory; a failover takes minutes
FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0

_T = TypeVar("_T")


class Patience:
    """Tries what the end of a job start needs until it works, or for too long.

    Args:
        clock: paces the tries.
        say: is told once that, and why, something is tried again.
        if_in_vain: what becomes of the job if the shared directory stays away, for that line.
    """

    def __init__(self, clock: Clock, say: Say, if_in_vain: str = "") -> None:
        self._clock = clock
        self._say = say
        self._if_in_vain = if_in_vain

    def __call__(
        self,
        act: Callable[[], _T],
        patience_s: float = PATIENCE_S,
        passing: type[HpcElasticError] = StoreError,
    ) -> _T:
        """Return what `act` returns.

        Args:
            act: is called again after a `StoreError`, an `OSError` or an error that may pass.
            patience_s: for how long [s].
            passing: such an error.

        Raises:
            UnfitFileError: a file is none of the run's; another try finds the same.
            HpcElasticError: the last error, after that time.
            TakenOverError: at once.
            OSError: the same, of the file system.
        """
        pause_s, give_up_at = FIRST_PAUSE_S, self._clock.monotonic() + patience_s
        said = False
        while True:
            try:
                return act()
            except (TakenOverError, UnfitFileError):  # no file system that is away
                raise
            except (StoreError, OSError, passing) as error:
                if self._clock.monotonic() >= give_up_at:
                    raise
                if not said:
                    then = self._if_in_vain if isinstance(error, (StoreError, OSError)) else ""
                    why = " ".join(str(error).split())
                    self._say(f"trying again for up to {patience_s:.0f} s{then}: {why}")
                    said = True
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
