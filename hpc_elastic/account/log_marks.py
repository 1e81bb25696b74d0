"""When the logs of a node had which length: the time of each line of a log, without a byte in it. Pure.

The agent of each node looks at the logs of its workers and at its own, and writes a mark where one has
grown (``logs/agents/<node>.times``). The lines between two marks were written between their times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from hpc_elastic.named_tuple import NamedTuple

MOST_BYTES = 128 << 10
"""A file of marks that is longer is thinned: its older marks become fewer."""

STREAMS = ("stdout.log", "stderr.log")
"""The logs of a worker, in the order of a mark."""

_FEWEST = MOST_BYTES * 3 // 4  # the size that a file is thinned to at most [bytes]
_JITTER_S = 5.0  # an agent that is busy reads a record so much later than it was written
_LINE = (
    rb"(?m)^\[(\d{1,18}),(\d{1,18}(?:\.\d+)?),(\d{1,18}),(\d{1,18}(?:\.\d+)?),(\d{1,18}),(\d{1,18}),"
    rb"\[((?:-?\d{1,18},-?\d{1,18}(?:,-?\d{1,18},-?\d{1,18})*)?)\]\]$"
)


class LogMark(NamedTuple):
    """The lengths of the logs of a node at one moment."""

    round: int  # 0: no workers run
    at: float  # wall time of the node [s since the epoch]
    known: int  # number of the newest journal record that the agent had read; 0: its age is not known
    age: float  # how long ago it had read that record for the first time [s]
    first_rank: int  # global rank of the node's first worker
    agent: int  # length of the agent's own log [bytes]
    sizes: tuple[int, ...]  # of `STREAMS` of each worker, by local rank [bytes]; -1: not known


def encode_mark(mark: LogMark) -> bytes:
    """Return a mark as one line: short, because there are many."""
    values = [*mark._replace(at=round(mark.at, 3), age=round(mark.age, 3))]
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def parse_mark(line: bytes) -> LogMark | None:
    """Return the mark in a line; None if it is torn or damaged."""
    found = re.match(_LINE, line)
    if found is None:
        return None
    number, at, known, age, first_rank, agent, sizes = found.groups()
    lengths = tuple(int(size) for size in sizes.split(b",")) if sizes else ()
    return LogMark(int(number), float(at), int(known), float(age), int(first_rank), int(agent), lengths)


def marks_backwards(data: bytes) -> Iterator[LogMark]:
    """Return the marks in a file, the newest first; lines that are torn or damaged are left out."""
    end = len(data)
    while end > 0:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        mark = parse_mark(data[begin:end])
        if mark is not None:
            yield mark
        end = begin


def marked_rounds(data: bytes) -> set[int]:
    """Return the rounds that have a mark in a file."""
    return {int(found[1]) for found in re.finditer(_LINE, data)}


def time_of(mark: LogMark, records: Mapping[int, float]) -> float:
    """Return when a mark was written, by the clock of the whole run [s since the epoch].

    That is the clock of its node, unless it contradicts the journal: then it is the time of the record that
    the agent had read, and its age.

    Args:
        mark: the mark.
        records: the time of each record of the journal, by its number.
    """
    told = records.get(mark.known)
    if told is None or abs(told + mark.age - mark.at) <= _JITTER_S:
        return mark.at
    return told + mark.age


def thinned(lines: Sequence[bytes]) -> list[bytes]:
    """Return fewer marks: of the older half every second one is left out, then the oldest.

    The last mark of a round stays as long as the round has any. The lines of a log between two marks then
    share the time of the second one.

    Args:
        lines: each with its end, the oldest first.
    """
    half = len(lines) // 2
    rounds = [line.partition(b",")[0] for line in lines]
    kept = [line for at, line in enumerate(lines) if at >= half or at % 2 or rounds[at] != rounds[at + 1]]
    size = sum(map(len, kept))
    while size > _FEWEST:
        size -= len(kept.pop(0))
    return kept
