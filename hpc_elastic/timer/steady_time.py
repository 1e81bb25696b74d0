"""Expiration times that a step of the wall clock does not move."""

from __future__ import annotations

from hpc_elastic.clock import Clock

_NOISE_S = 0.05  # two clocks are not read at the same instant; a smaller step is not worth correcting


class SteadyTime:
    """Wall time as it was when this object was made, carried on by the monotonic clock.

    Clients tell absolute wall times (the field ``expiration_time`` of torch's requests). A server
    translates them when they arrive and then compares them with its own steady time, so that
    setting the wall clock neither kills a healthy worker nor spares a stuck one. Only a step
    between a client's look at the clock and the arrival of its request, milliseconds later,
    goes unnoticed.

    Args:
        clock: the clocks of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.wall() - clock.monotonic()

    def now(self) -> float:
        """Return the steady time [s since the epoch]; the wall time until the clock is set."""
        return self._clock.monotonic() + self._offset_s

    def of_wall(self, wall_s: float) -> float:
        """Return the steady time at which the wall clock, as it goes now, will show `wall_s`."""
        step_s = self.now() - self._clock.wall()
        return wall_s + step_s if abs(step_s) > _NOISE_S else wall_s
