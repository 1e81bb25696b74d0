"""The end of a node's workers is put off while one of them is in a critical section."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpc_elastic.store import files

LOOK_S = 0.1  # between two looks whether a section was left: nothing wakes the loop for it
SAY_AGAIN_S = 10.0
SUFFIX = ".held"


class Busy(NamedTuple):
    """A worker in a critical section."""

    rank: int
    name: str
    since: float  # monotonic time [s]

    def words(self, now: float) -> str:
        """Return it for people."""
        return f"rank {self.rank} is in '{self.name}' since {max(0.0, now - self.since):.0f} s"


def words_of(busy: Sequence[Busy], now: float) -> str:
    """Return for whom an end waits."""
    more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
    return busy[0].words(now) + more


class StopHold:
    """Whether the workers of one round may be ended, and since when they may not.

    Args:
        say: shows a line in the agent's log.
        path: the file that tells `status` what is waited for, without its suffix.
    """

    def __init__(self, say: Callable[[str], None], path: str) -> None:
        self._say = say
        self._path = path + SUFFIX
        self._asked_at: float | None = None
        self._say_at = float("-inf")
        self.is_on = False

    def asked_at(self, now: float) -> float:
        """Return when the end was asked for first [s]; now, if it was not yet."""
        if self._asked_at is None:
            self._asked_at = now
        return self._asked_at

    def holds(self, busy: Sequence[Busy], now: float, until: float) -> bool:
        """Tell whether the end has to wait.

        Args:
            busy: the workers of this node that are in a critical section.
            now: monotonic time [s].
            until: when it does not wait any longer.
        """
        asked_at = self.asked_at(now)
        if busy and now < until:
            if now >= self._say_at:
                left = f"at most {until - now:.0f} s more"
                self._tell(f"{words_of(busy, now)}: the end of the workers waits for it, {left}", now)
            self.is_on = True
            return True
        if self.is_on:
            self.release()
            waited = f"after {now - asked_at:.1f} s"
            self._say(
                f"{words_of(busy, now)}: {waited} its time is up, the workers are ended all the same"
                if busy
                else f"the critical section was left {waited}"
            )
        return False

    def release(self) -> None:
        """Take note that nothing is held up any more."""
        if self.is_on:
            self.is_on = False
            try:
                os.unlink(self._path)
            except OSError:
                pass

    def _tell(self, text: str, now: float) -> None:
        self._say_at = now + SAY_AGAIN_S
        self._say(text)
        try:
            files.replace(self._path, f"{text}\n".encode())
        except OSError:
            pass
