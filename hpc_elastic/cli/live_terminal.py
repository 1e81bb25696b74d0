"""A screen on a terminal that sends only the lines that have changed; it leaves the terminal as it was."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from hpc_elastic.cli.say import in_colour
from hpc_elastic.report.watch_screen import ScreenLine

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"


def can_be_live(fd: int) -> bool:
    """Tell whether a descriptor is a terminal whose lines can be written anew."""
    kind = os.environ.get("TERM", "dumb")  # noqa: TID251 - the kind of the user's terminal
    return os.isatty(fd) and kind != "dumb"


class Size(NamedTuple):
    """The size of a terminal."""

    columns: int
    lines: int


class LiveTerminal:
    """The other screen of a terminal, for as long as the context lasts.

    Args:
        fd: of the terminal.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._shown: list[ScreenLine] = []
        self._size = Size(0, 0)
        self._wakes = os.pipe()

    def __enter__(self) -> LiveTerminal:  # noqa: PYI034 - Python 3.10 has no Self
        for end in self._wakes:
            os.set_blocking(end, False)
        self._old = signal.signal(signal.SIGWINCH, lambda *_: None), signal.set_wakeup_fd(self._wakes[1])
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)
        signal.set_wakeup_fd(self._old[1])
        signal.signal(signal.SIGWINCH, self._old[0])
        for end in self._wakes:
            os.close(end)

    @property
    def size(self) -> Size:
        """The present size of the terminal."""
        return Size(*os.get_terminal_size(self._fd))

    def draw(self, lines: Sequence[ScreenLine], size: Size) -> None:
        """Show lines; those that the screen shows already are not sent.

        Args:
            lines: that fit the size.
            size: of the terminal for which they were made.
        """
        begin = "\x1b[2J" if size != self._size else ""
        if begin:
            self._shown = []
        parts = [begin]
        for row in range(max(len(lines), len(self._shown))):
            line = lines[row] if row < len(lines) else ScreenLine("")
            if row >= len(self._shown) or line != self._shown[row]:
                parts.append(f"\x1b[{row + 1};1H{in_colour(line.text, line.colour, bold=line.bold)}\x1b[K")
        self._shown, self._size = list(lines), size
        self._write("".join(parts))

    def wait(self, seconds: float) -> None:
        """Wait; a change of the terminal's size ends it early."""
        if select.select([self._wakes[0]], [], [], seconds)[0]:
            os.read(self._wakes[0], 1 << 12)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._fd, data) :]
