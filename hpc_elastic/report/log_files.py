"""The log files of a run that are to be shown, their prefix, and srun's words about nodes in them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from typing import BinaryIO, NamedTuple

from hpc_elastic.errors import InputError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Record, RoundFormed
from hpc_elastic.slurm.client import hostlist
from hpc_elastic.store.plain_file import list_plain, open_plain
from hpc_elastic.typed_json import whole_number

_ENDED = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: (.+)$", re.MULTILINE)
_START_ENDS = "hpc_elastic finish: "  # what was said before it is of an earlier start

_STEP = 1 << 16
_MOST_SEEN = 64 << 20  # bytes that are looked through for line ends; a file may have none
_STREAMS = (("stdout.log", ""), ("stderr.log", " err"))


class LogFile(NamedTuple):
    """A log file with the prefix of its lines."""

    path: str
    prefix: str


class WantedLogs(NamedTuple):
    """The user's choice of logs; None for everything."""

    rank: int | None = None
    node: str | None = None
    attempt: int | None = None  # None: the newest


def attempts(paths: RunPaths) -> list[int]:
    """Return the rounds that have logs of workers, oldest first."""
    names = (name.partition("_") for name in _names(paths.logs))
    return sorted(
        number for word, _, text in names if word == "attempt" and (number := whole_number(text)) is not None
    )


def ranks_of_node(records: Iterable[Record], attempt: int, node: str) -> list[int] | None:
    """Return the global ranks that a node had in a round; None if it was not in it."""
    for record in records:
        if isinstance(record.entry, RoundFormed) and record.entry.number == attempt:
            first = 0
            for member in record.entry.members:
                if member.node == node:
                    return list(range(first, first + member.slots))
                first += member.slots
    return None


def agent_files(paths: RunPaths, wanted: WantedLogs) -> list[LogFile]:
    """Return the logs of the agents; their lines carry time and node themselves."""
    if wanted.rank is not None or wanted.attempt is not None:
        return []
    names = sorted(_names(paths.agent_logs), key=natural)
    return [
        LogFile(os.path.join(paths.agent_logs, name), "")
        for name in names
        if name.endswith(".log") and wanted.node in (None, name.removesuffix(".log"))
    ]


def worker_files(
    paths: RunPaths, attempt: int, wanted: WantedLogs, ranks: Iterable[int] | None
) -> list[LogFile]:
    """Return the logs of the workers of a round.

    Args:
        paths: the files of the run.
        attempt: the round.
        wanted: the user's choice.
        ranks: the ranks of the wanted node; None for all.
    """
    root = paths.attempt_logs(attempt)
    present = sorted(number for name in _names(root) if (number := whole_number(name)) is not None)
    allowed = set(present if ranks is None else ranks)
    chosen = [rank for rank in present if rank in allowed and wanted.rank in (None, rank)]
    found = []
    for rank in chosen:
        there = _names(os.path.join(root, str(rank)))
        for name, mark in _STREAMS:
            if name in there:
                path = os.path.join(root, str(rank), name)
                found.append(LogFile(path, f"[{attempt}:rank {rank}{mark}] "))
    return found


def batch_logs(paths: RunPaths) -> list[LogFile]:
    """Return the output of the batch scripts, oldest first."""
    names = [name for name in _names(paths.root) if name.startswith("slurm-") and name.endswith(".out")]
    return [LogFile(os.path.join(paths.root, name), "[batch] ") for name in sorted(names, key=natural)]


def _names(directory: str) -> list[str]:
    try:
        return list_plain(directory, links=True)  # logs may be kept elsewhere
    except OSError:
        return []


def offset_of_last(path: str, lines: int) -> int:
    """Return where the last lines of a file begin [bytes]; 0 if it has no more than these.

    Of a file with endless lines it is the place 64 MiB before the end.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return _offset_in(file, file.seek(0, os.SEEK_END), lines)
    except OSError:
        return 0


def _offset_in(file: BinaryIO, end: int, lines: int) -> int:
    if not lines:
        return end
    at, missing, until = end, lines, max(end - _MOST_SEEN, 0)
    while at > until:
        at = max(at - _STEP, until)
        file.seek(at)
        chunk = file.read(min(_STEP, end - at))
        stop = len(chunk) - (at + len(chunk) >= end)  # the end of the last line begins none
        found = chunk.count(b"\n", 0, stop)
        if found >= missing:
            for _ in range(missing):
                stop = chunk.rindex(b"\n", 0, stop)
            return at + stop + 1
        missing -= found
    return at


def srun_said(log: str, hosts: Collection[str]) -> str:
    """Return how the agents of some hosts have ended, as srun tells it; empty if it does not.

    Args:
        log: the end of the batch script's log.
        hosts: names of nodes.
    """
    told = {}
    for names, how in _ENDED.findall(log.rpartition(_START_ENDS)[2]):
        told.update(dict.fromkeys(set(_expanded(names)).intersection(hosts), how.strip()))
    parts = [f"{host}: {told[host]}" for host in sorted(told)]
    return f"srun says that agents have ended before they came: {', '.join(parts)}" if parts else ""


def _expanded(names: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(names)
    except InputError:
        return ()
