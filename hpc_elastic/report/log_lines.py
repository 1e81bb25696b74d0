"""Lines out of a part of a log of any length: from its end, and never more than is asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.log_files import LogFile
from hpc_elastic.store.plain_file import open_plain

MOST_SEEN = 64 << 20
"""Bytes that are looked through for the last lines; a file may have none."""

_STEP = 1 << 16
_MOST_LINE = 1 << 20  # a longer line is shown in pieces
_MOST_SHOWN = 1 << 16  # of a line
_MOST_PIECE = 16 << 20


class LogPiece(NamedTuple):
    """A part of a log that was written until a moment.

    It has the lines that end in it.
    """

    at: float  # [s since the epoch]
    file: LogFile
    begin: int  # [bytes]
    end: int
    is_last: bool  # of the file: it has the unfinished line, too

    def parts(self) -> Iterator[LogPiece]:
        """Return it in parts that one can hold, the last one first."""
        end = self.end
        while end > self.begin:
            begin = max(self.begin, end - _MOST_PIECE)
            yield self._replace(begin=begin, end=end, is_last=self.is_last and end == self.end)
            end = begin


def last_lines(piece: LogPiece, most: int) -> tuple[LogPiece, int, int]:
    """Return the part of a piece with its last lines, how many these are, and how many bytes were read.

    Raises:
        OSError: the file cannot be read.
    """
    fd = open_plain(piece.file.path, own=False)
    try:
        begin, end = _bounds(fd, piece)
        at, found, stop = end, 0, end - 1  # the end of the last line begins none
        while at > begin and found < most and end - at < MOST_SEEN:
            at = max(at - _STEP, begin)
            chunk = os.pread(fd, min(_STEP, stop - at), at) if stop > at else b""
            for _ in range(min(chunk.count(b"\n"), most - found)):
                stop = at + chunk.rindex(b"\n", 0, stop - at)
                found += 1
            if found < most:
                stop = at
        is_whole = found < most
        start = at if is_whole else stop + 1
        return piece._replace(begin=start, end=end), found + (is_whole and end > start), end - at
    finally:
        os.close(fd)


def lines_of(piece: LogPiece) -> Iterator[bytes]:
    """Return the lines that end in a piece, without their ends; a long one in pieces, and these cut.

    Raises:
        OSError: the file cannot be read.
    """
    fd = open_plain(piece.file.path, own=False)
    try:
        at, end = _bounds(fd, piece)
        rest = b""
        while at < end and (chunk := os.pread(fd, min(_STEP, end - at), at)):
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(_cut, lines)
            if len(rest) >= _MOST_LINE:
                yield _cut(rest)
                rest = b""
        if rest:
            yield _cut(rest)
    finally:
        os.close(fd)


def line_start(path: str, at: int) -> int:
    """Return where the unfinished line before a place of a file begins [bytes]; that place if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    fd = open_plain(path, own=False)
    try:
        return _line_start(fd, at)
    finally:
        os.close(fd)


def _bounds(fd: int, piece: LogPiece) -> tuple[int, int]:
    return _line_start(fd, piece.begin), piece.end if piece.is_last else _line_start(fd, piece.end)


def _line_start(fd: int, place: int) -> int:
    at, least = place, max(place - _MOST_LINE, 0)
    while at > least:
        begin = max(at - _STEP, least)
        found = os.pread(fd, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return at if at == 0 else place


def _cut(line: bytes) -> bytes:
    if len(line) <= _MOST_SHOWN:
        return line
    return line[:_MOST_SHOWN] + f" ... {len(line) - _MOST_SHOWN:,} bytes more".encode()


class WantedLines(NamedTuple):
    """The user's choice of lines; the defaults are all."""

    most: int = 0  # the newest so many; 0: all
    since: float = 0.0  # written after this moment [s since the epoch]
    pattern: re.Pattern[bytes] | None = None  # found in a line


def chosen_lines(
    pieces: Iterable[LogPiece], wanted: WantedLines, refused: Callable[[OSError], None]
) -> Iterator[tuple[LogPiece, bytes]]:
    """Return the lines that a user wants, the oldest first, each with the piece that it stands in.

    Args:
        pieces: of the logs, the newest first.
        wanted: the choice of the user.
        refused: told that a log cannot be read.
    """
    parts = (part for piece in pieces if piece.at >= wanted.since for part in piece.parts())
    if wanted.pattern is not None and wanted.most:
        yield from reversed([*islice(_matches(parts, wanted.pattern, refused), wanted.most)])
        return
    chosen = [*(_newest(parts, wanted.most, refused) if wanted.most else parts)]
    for part in reversed(chosen):
        for line in _read(part, refused):
            if wanted.pattern is None or wanted.pattern.search(line):
                yield part, line


def _matches(
    parts: Iterable[LogPiece], pattern: re.Pattern[bytes], refused: Callable[[OSError], None]
) -> Iterator[tuple[LogPiece, bytes]]:
    """Return the lines with a pattern, the newest first."""
    for part in parts:
        for line in reversed([line for line in _read(part, refused) if pattern.search(line)]):
            yield part, line


def _newest(parts: Iterable[LogPiece], most: int, refused: Callable[[OSError], None]) -> Iterator[LogPiece]:
    """Return the parts with the newest lines, the newest first."""
    left, seen = most, 0
    for part in parts:
        try:
            last, found, read = last_lines(part, left)
        except OSError as error:
            refused(error)
            continue
        left, seen = left - found, seen + read
        yield last
        if left <= 0 or seen > MOST_SEEN:
            return


def _read(part: LogPiece, refused: Callable[[OSError], None]) -> Iterator[bytes]:
    try:
        yield from lines_of(part)
    except OSError as error:
        refused(error)
