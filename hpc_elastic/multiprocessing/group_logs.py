"""The teed logs of a group of workers: followed while it runs, copied to the end when it has ended."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hpc_elastic.multiprocessing.logs import LogsDest
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.tail import (
    MAX_LAG,
    Console,
    Sink,
    Tail,
    TailLimits,
    blocked_fds,
    pump_all,
    sink_of,
)
from hpc_elastic.store.plain_file import open_to_append

if TYPE_CHECKING:
    from hpc_elastic.processes.tail import PumpThread

_CONSOLE_WAIT_S: Final = 5.0  # for a console that does not keep up, after the last process has ended

Filters = tuple[tuple[str, ...], tuple[str, ...]]
"""Texts of which a line of stdout, of stderr, must contain one to be copied to the filtered file."""


class GroupEvents(NamedTuple):
    """The events that a loop waits for before it looks at a group again."""

    fds: Sequence[int] = ()  # one becomes readable when something ends
    due_at: float = math.inf  # when a look is due even without an event, monotonic [s]
    has_more_lines: bool = False  # of logs, now
    is_console_full: bool = False  # lines wait for it; it makes no event


NO_EVENTS = GroupEvents()


class GroupLogs:
    """Copies teed streams to the console and chosen lines of them to two common files.

    Args:
        dest: the files.
        prefixes: the prefix of each line, by local rank.
        filters: which lines go to the common files.
        in_background: a thread copies, and a slow console gets every line; otherwise `pump` has to
            be called, and a console that is too far behind goes on with the newest lines.
    """

    def __init__(
        self, dest: LogsDest, prefixes: Mapping[int, bytes], filters: Filters, *, in_background: bool
    ) -> None:
        self._dest = dest
        self._prefixes = prefixes
        self._filters = filters
        self._in_background = in_background
        self._tails: list[Tail] = []
        self._files: list[int] = []
        self._thread: PumpThread | None = None
        self._is_cut_short = False
        self._rest_until: float | None = None

    def open(self) -> None:
        """Note where the logs end now; later lines are copied.

        Raises:
            OSError: a common file cannot be opened.
        """
        for number, paths, common, texts in (
            (1, self._dest.tee_stdouts, self._dest.filtered_stdout, self._filters[0]),
            (2, self._dest.tee_stderrs, self._dest.filtered_stderr, self._filters[1]),
        ):
            if paths:
                limits = TailLimits() if self._in_background else TailLimits(lag=MAX_LAG)
                self._add(paths, sink_of(sys.stdout if number == 1 else sys.stderr), limits=limits)
            if paths and texts and common:
                file = open_to_append(common, 0o666)
                self._files.append(file)
                self._add(paths, Console(file), wanted=_contains(texts))

    def start(self) -> None:
        """Begin to copy in the background, if that is wanted."""
        if self._in_background and self._tails:
            from hpc_elastic.processes.tail import PumpThread  # noqa: PLC0415 - needs threading

            self._thread = PumpThread(self._tails)
            self._thread.start()

    def pump(self) -> bool:
        """Copy new lines; return True when more is there now. With a thread this does nothing."""
        return pump_all(self._tails) if self._thread is None else False

    def pump_and_look(self) -> tuple[bool, bool]:
        """Copy new lines as `pump` does; return whether more is there now, and whether a console is full."""
        if self._thread is not None or not self._tails:
            return False, False
        return pump_all(self._tails), bool(blocked_fds(self._tails))

    def stop(self) -> None:
        """End the thread; from now on `pump` copies."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def copy_rest(self, now: float) -> bool:
        """Copy on when all processes have ended; never blocks.

        A file gets everything. So does a background thread's slow reader; a stuck one gets nothing more.
        Else lines that are not taken in time are left out, except the last lines of each log, which have
        as much time again.

        Args:
            now: monotonic time [s].

        Returns:
            True when there is no more to wait for.
        """
        if not self._tails:
            return True
        before = self.position()
        is_more = self.pump()
        if not self.blocked_fds():
            return not is_more
        if self._rest_until is None or (self._in_background and self.position() > before):
            self._rest_until = now + (_CONSOLE_WAIT_S if self._in_background else _CONSOLE_WAIT_S / 2)
        if now < self._rest_until:
            return False
        if self._in_background or self._is_cut_short:
            return True
        for tail in self._tails:
            tail.leave_out()
        self._is_cut_short, self._rest_until = True, now + _CONSOLE_WAIT_S / 2
        return False

    def finish(self) -> None:
        """Copy the rest as far as the console takes it, and close all files."""
        self.stop()
        for tail in self._tails:
            tail.finish()
        while self._files:
            os.close(self._files.pop())

    @property
    def needs_pump(self) -> bool:
        """Whether `pump` has something to follow."""
        return bool(self._tails) and self._thread is None

    def position(self) -> int:
        """Return a number that grows while copying goes on."""
        return sum(tail.position for tail in self._tails)

    def blocked_fds(self) -> list[int]:
        """Return the descriptors that lines wait for, when no thread does."""
        return blocked_fds(self._tails) if self._thread is None else []

    def paths(self) -> list[str]:
        """Return the files that are followed."""
        return [*self._dest.tee_stdouts.values(), *self._dest.tee_stderrs.values()]

    def _add(
        self,
        paths: Mapping[int, str],
        sink: Sink,
        *,
        limits: TailLimits = TailLimits(),  # noqa: B008 - frozen
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._tails += [
            Tail(path, sink, self._prefixes[rank], offset=_size(path), wanted=wanted, limits=limits)
            for rank, path in paths.items()
        ]


def _contains(texts: tuple[str, ...]) -> Callable[[bytes], bool]:
    needles = [text.encode() for text in texts]
    return lambda line: any(needle in line for needle in needles)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
