"""A clock that a test moves by hand."""

from __future__ import annotations


class FakeClock:
    """A `hpc_elastic.clock.Clock` on which time passes only by `sleep` and `advance`.

    Args:
        monotonic_s: where the monotonic clock starts [s].
        wall_s: where the wall clock starts [s since the epoch]; another value than the monotonic
            one, so that code which mixes the two is noticed.
    """

    def __init__(self, monotonic_s: float = 1_000.0, wall_s: float = 1_700_000_000.0) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s

    def monotonic(self) -> float:
        """Return the fake monotonic time [s]."""
        return self._monotonic_s

    def wall(self) -> float:
        """Return the fake wall time [s since the epoch]."""
        return self._wall_s

    def sleep(self, seconds: float) -> None:
        """Let time pass [s] without waiting."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass [s].

        Raises:
            ValueError: `seconds` is negative; clocks do not go backwards.
        """
        if seconds < 0:
            raise ValueError(f"clocks do not go backwards: {seconds}")
        self._monotonic_s += seconds
        self._wall_s += seconds
