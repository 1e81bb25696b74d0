"""The lines of logs on stdout: as text, as JSON, and as they come."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Sequence
from json import dumps

from hpc_elastic.cli.say import hand_out, say_aside
from hpc_elastic.clock import SystemClock, clock_text
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.processes.tail import Console, Sink, Tail
from hpc_elastic.report import log_files
from hpc_elastic.report.explain.as_json import FORMAT
from hpc_elastic.report.log_files import LogFile
from hpc_elastic.report.log_lines import LogPiece, WantedLines, line_start
from hpc_elastic.report.log_order import Lengths
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.text import visible_log

_BATCH = 1 << 16  # bytes that are written at once


def hand_out_lines(run: RunFiles, lines: Iterable[tuple[LogPiece, bytes]]) -> None:
    """Print a document line by line: logs may be longer than the memory."""
    head = {"format": FORMAT, "kind": "logs", "run": run.paths.root, "name": run.name}
    hand_out(f'{dumps(head, indent=2)[:-2]},\n  "lines": [')
    mark, rounds = "\n", log_files.rounds_of(run.records)
    for piece, line in lines:
        file = piece.file
        fields = {
            "at": round(piece.at, 3),
            "node": file.node or log_files.node_of(rounds.get(file.round), file.rank or 0) or None,
            "round": file.round or None,
            "rank": file.rank,
            "stream": file.stream or None,
            "text": line.decode(errors="replace"),
        }
        hand_out(f"{mark}    {dumps(fields)}")
        mark = ",\n"
    hand_out("\n  ]\n}\n")


class ShownLogs:
    """The lines of logs on stdout: those that are there, then those that come."""

    def __init__(self, wanted: WantedLines, *, with_times: bool) -> None:
        self._wanted, self._with_times = wanted, with_times
        self._tails: dict[str, Tail] = {}
        self._sink: Sink = ChangedSink(Console(1), for_terminal) if os.isatty(1) else Console(1)
        self._sink_of_new = ChangedSink(self._sink, _with_time) if with_times else self._sink
        self._told: set[str] = set()  # of files that are none

    def show(self, lines: Iterable[tuple[LogPiece, bytes]]) -> None:
        """Show lines at the pace of the reader."""
        batch, size = [], 0
        for piece, line in lines:
            time = f"{clock_text(piece.at)} " if self._with_times else ""
            batch.append(b"%s%s\n" % (f"{time}{piece.file.prefix}".encode(), line))
            size += len(batch[-1])
            if size >= _BATCH:
                self._put(b"".join(batch))
                batch, size = [], 0
        self._put(b"".join(batch))

    def _put(self, lines: bytes) -> None:
        self._sink.put(lines)
        while not self._sink.flush():
            select.select([], [1], [], 1.0)

    def refused(self, error: OSError) -> None:
        """Tell once that a log is none."""
        if isinstance(error, UnfitFileError) and str(error) not in self._told:
            self._told.add(str(error))
            say_aside(f"left out: {error}")

    def go_on(self, files: Sequence[LogFile], lengths: Lengths) -> None:
        """Follow files behind the lines that were shown."""
        for file in files:
            try:
                offset = line_start(file.path, lengths.of(file.path).size)
            except OSError:
                offset = 0
            self._tails[file.path] = self._tail(file, offset)

    def _tail(self, file: LogFile, offset: int) -> Tail:
        pattern = self._wanted.pattern
        wanted = None if pattern is None else lambda line: pattern.search(line) is not None
        return Tail(file.path, self._sink_of_new, file.prefix.encode(), offset=offset, wanted=wanted)

    def show_new(self, files: Sequence[LogFile]) -> None:
        """Show the new lines of all files, and all of files that are new."""
        for file in files:
            if file.path not in self._tails:
                self._tails[file.path] = self._tail(file, 0)
        for tail in self._tails.values():
            _pump_all(tail)
            if tail.error is not None:
                self.refused(tail.error)

    def finish(self, keep: Sequence[LogFile] = ()) -> None:
        """Show the rest, unfinished lines too, and let go of all files that are not to be kept."""
        kept = {file.path for file in keep}
        for path in [path for path in self._tails if path not in kept]:
            _pump_all(self._tails[path])
            self._tails.pop(path).finish()


def _pump_all(tail: Tail) -> None:
    """Show all that is there, at the pace of the reader."""
    while tail.pump() or tail.is_blocked:
        if tail.is_blocked:
            select.select([], [1], [], 1.0)


class ChangedSink:
    """Changes lines before it hands them on.

    Args:
        sink: takes the lines.
        change: returns lines, of which each ends with a line end, in another form.
    """

    def __init__(self, sink: Sink, change: Callable[[bytes], bytes]) -> None:
        self._sink, self._change = sink, change

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait."""
        return self._sink.is_blocked

    @property
    def is_never_slow(self) -> bool:
        """Whether no reader at the other end can make lines wait."""
        return self._sink.is_never_slow

    def put(self, lines: bytes) -> None:
        """Take lines that end with a line end."""
        self._sink.put(self._change(lines))

    def flush(self) -> bool:
        """Write the waiting lines; return whether that is all."""
        return self._sink.flush()

    def blocked_fd(self) -> int | None:
        """Return the descriptor that lines wait for."""
        return self._sink.blocked_fd()


def for_terminal(lines: bytes) -> bytes:
    """Return lines with colours, and as escapes all that would move, clear or rename the terminal.

    With NO_COLOR colours are left out.
    """
    return visible_log(lines, colours=not os.environ.get("NO_COLOR"))  # noqa: TID251 - the user's choice


def _with_time(lines: bytes) -> bytes:
    time = clock_text(SystemClock().wall()).encode()
    return b"".join(b"%s %s\n" % (time, line) for line in lines[:-1].split(b"\n"))
