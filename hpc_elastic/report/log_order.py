"""The logs of a run in order of time: in pieces between two marks of the agents, the newest first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge

from hpc_elastic.account.log_marks import MOST_BYTES, LogMark, marked_rounds, marks_backwards, time_of
from hpc_elastic.account.one_clock import Stamp, one_clock
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Record
from hpc_elastic.report import log_files
from hpc_elastic.report.log_files import LogFile, WantedLogs
from hpc_elastic.report.log_lines import LogPiece
from hpc_elastic.store.plain_file import list_plain, read_plain

_MOST_MARKS = 4 * MOST_BYTES
_NEVER = float("inf")


class _Length(NamedTuple):
    """The length of a file that was looked at once."""

    size: int  # [bytes]
    changed: float  # [s since the epoch]


class Lengths:
    """The lengths of logs, each as it was at the first look: a log that grows is shown up to there."""

    def __init__(self) -> None:
        self._known: dict[str, _Length] = {}

    def of(self, path: str) -> _Length:
        """Return the length of a log; 0 if it is not there."""
        if path not in self._known:
            self._known[path] = _Length(0, 0.0)
            with suppress(OSError):
                found = os.stat(path)
                size = found.st_size if stat.S_ISREG(found.st_mode) else 1  # a file that is no log is opened
                self._known[path] = _Length(size, found.st_mtime)
        return self._known[path]


class LogOrder:
    """Finds the pieces of the logs that a user wants.

    A log without marks is one piece, which was written until the file last changed.
    """

    def __init__(self, paths: RunPaths, records: Sequence[Record], lengths: Lengths) -> None:
        self._paths, self._lengths = paths, lengths
        self._rounds = log_files.rounds_of(records)
        times = one_clock([Stamp(record.at, record.by) for record in records])
        self._times = {record.number: time for record, time in zip(records, times, strict=True)}

    def pieces(self, wanted: WantedLogs, attempts: Sequence[int]) -> Iterator[LogPiece]:
        """Return the pieces of the logs, the newest first."""
        nodes = self._nodes(wanted, attempts)
        chosen, has_agents = frozenset(attempts), wanted.rank is None and wanted.attempt is None

        def is_meant(file: LogFile) -> bool:
            if file.rank is None:
                return has_agents
            return file.round in chosen and wanted.rank in (None, file.rank)

        marked: dict[str, bytes] = {node: data for node in nodes if (data := self._marks(node))}
        series = [
            _of_node(_Marked(self._paths, node, data), is_meant, self._lengths, self._times)
            for node, data in marked.items()
        ]
        others = self.whole(reversed([*self._unmarked(wanted, attempts, marked)]))
        return merge(others, *reversed(series), key=lambda piece: piece.at, reverse=True)

    def whole(self, files: Iterable[LogFile]) -> list[LogPiece]:
        """Return logs that have no marks, the newest first."""
        return sorted(map(self._whole, files), key=lambda piece: piece.at, reverse=True)

    def _nodes(self, wanted: WantedLogs, attempts: Sequence[int]) -> list[str]:
        """Return the nodes whose logs are meant."""
        if wanted.node is not None:
            return [wanted.node]
        if wanted.rank is None:
            with suppress(OSError):
                names = sorted(list_plain(self._paths.agent_logs), key=natural)
                return [name.removesuffix(".times") for name in names if name.endswith(".times")]
        rank = wanted.rank or 0
        found = dict.fromkeys(log_files.node_of(self._rounds.get(attempt), rank) for attempt in attempts)
        return [node for node in found if node]

    def _marks(self, node: str) -> bytes:
        try:
            return read_plain(self._paths.log_times(node), limit=_MOST_MARKS)
        except OSError:
            return b""

    def _whole(self, file: LogFile) -> LogPiece:
        found = self._lengths.of(file.path)
        return LogPiece(found.changed, file, 0, found.size, is_last=True)

    def _unmarked(
        self, wanted: WantedLogs, attempts: Sequence[int], marked: Mapping[str, bytes]
    ) -> Iterator[LogFile]:
        """Return the logs that no mark tells of."""
        rounds = {node: marked_rounds(data) for node, data in marked.items()}
        yield from (file for file in log_files.agent_files(self._paths, wanted) if not rounds.get(file.node))
        for attempt in attempts:
            others = self._ranks(wanted, attempt, rounds)
            if others:
                yield from log_files.worker_files(self._paths, attempt, wanted, others)

    def _ranks(self, wanted: WantedLogs, attempt: int, rounds: Mapping[str, set[int]]) -> list[int]:
        """Return the ranks of a round that have logs and that no mark tells of."""
        formed, first = self._rounds.get(attempt), 0
        marked: set[int] = set()
        of_node: set[int] = set()
        for member in formed.members if formed else ():
            ranks = range(first, first + member.slots)
            first += member.slots
            marked.update(ranks if attempt in rounds.get(member.node, ()) else ())
            of_node.update(ranks if member.node == wanted.node else ())
        there = log_files.ranks_there(self._paths, attempt)
        return [rank for rank in there if rank not in marked and (wanted.node is None or rank in of_node)]


class _Marked:
    """The marks of a node."""

    def __init__(self, paths: RunPaths, node: str, data: bytes) -> None:
        self.data = data
        self._paths, self._agent = paths, log_files.agent_file(paths, node)
        self._workers: dict[tuple[int, int, int], list[LogFile]] = {}

    def files(self, mark: LogMark) -> Iterator[tuple[LogFile, int]]:
        """Return the logs that a mark tells of, with their lengths; those of later lines first."""
        yield self._agent, mark.agent
        count = len(mark.sizes) // 2
        key = mark.round, mark.first_rank, count
        if key not in self._workers:
            ranks = range(mark.first_rank, mark.first_rank + count)
            self._workers[key] = [
                file for rank in ranks for file in log_files.of_worker(self._paths, mark.round, rank)
            ]
        yield from zip(reversed(self._workers[key]), reversed(mark.sizes), strict=True)


class _Rest(NamedTuple):
    """The part of a log that is older than the marks that were read."""

    file: LogFile
    end: int  # [bytes]
    at: float  # it was written until then


def _of_node(
    marked: _Marked, is_meant: Callable[[LogFile], bool], lengths: Lengths, times: Mapping[int, float]
) -> Iterator[LogPiece]:
    """Return the pieces of the logs of one node, the newest first."""
    rests: dict[str, _Rest] = {}
    done: set[str] = set()
    at = _NEVER
    for mark in marks_backwards(marked.data):
        time = time_of(mark, times)
        is_newest, at = at == _NEVER, min(at, time)
        yield from _left(rests, done, mark.round, lengths)
        for file, size in marked.files(mark):
            if not is_meant(file) or file.path in done:
                continue
            rest = rests.get(file.path)
            if rest is None:
                now = lengths.of(file.path)
                changed = max(at, now.changed + time - mark.at) if is_newest else at
                rest = _Rest(file, now.size, changed)
            begin = min(max(size, 0), rest.end)
            yield from _piece(rest, begin, lengths)
            rests[file.path] = _Rest(file, begin, at)
    yield from _left(rests, done, None, lengths)


def _left(
    rests: dict[str, _Rest], done: set[str], number: int | None, lengths: Lengths
) -> Iterator[LogPiece]:
    """Return the beginnings of logs that no older mark tells of: of other rounds, or (None) of all."""
    over = [
        path
        for path, rest in rests.items()
        if number is None or (rest.file.rank is not None and rest.file.round != number)
    ]
    for path in over:
        rest = rests.pop(path)
        done.add(path)
        yield from _piece(rest, 0, lengths)


def _piece(rest: _Rest, begin: int, lengths: Lengths) -> Iterator[LogPiece]:
    if begin < rest.end:
        is_last = rest.end == lengths.of(rest.file.path).size
        yield LogPiece(rest.at, rest.file, begin, rest.end, is_last)
