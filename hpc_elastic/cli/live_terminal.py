"""A screen on a terminal that sends only the lines that have changed.

It leaves the terminal as it was, also when a signal ends the command or Ctrl-Z stops it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from hpc_elastic.cli.say import in_colour
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.watch_screen import ScreenLine
from hpc_elastic.text import WIDTH

_USUAL_LINES = 24  # of a terminal
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
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
        self._old_fd = signal.set_wakeup_fd(self._wakes[1])
        self._old = {signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None)}
        for number, handler in (*((one, self._end) for one in _ENDS), (signal.SIGTSTP, self._stop)):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup, for one, has SIGHUP ignored
                self._old[number] = signal.signal(number, handler)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        for end in self._wakes:
            os.close(end)

    def _end(self, number: int, _: object) -> None:
        """End this process by a signal, with the terminal as it was."""
        with suppress(OSError):  # the terminal may be gone
            self._write(_LEAVE)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _stop(self, number: int, _: object) -> None:
        """Stop this process, with the terminal as it was; when it goes on, the screen is drawn anew."""
        self._write(_LEAVE)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when the process goes on
        signal.signal(number, self._stop)
        self._write(_ENTER)
        self._size = Size(0, 0)

    @property
    def size(self) -> Size:
        """The present size of the terminal; one that tells none is taken for a usual one."""
        found = os.get_terminal_size(self._fd)
        return Size(found.columns or WIDTH, found.lines or _USUAL_LINES)

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
        """Wait; a change of the terminal's size, and Ctrl-Z, end it early."""
        if select.select([self._wakes[0]], [], [], seconds)[0]:
            os.read(self._wakes[0], 1 << 12)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._fd, data) :]
