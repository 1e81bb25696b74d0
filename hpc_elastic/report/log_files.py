"""The log files of a run that are to be shown, their prefix, and srun's words about nodes in them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

from hpc_elastic.account.log_marks import STREAMS
from hpc_elastic.errors import InputError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Record, RoundFormed
from hpc_elastic.slurm.client import parse
from hpc_elastic.store.plain_file import list_plain
from hpc_elastic.typed_json import whole_number

_ENDED = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: (.+)$", re.MULTILINE)
_START_ENDS = "hpc_elastic finish: "  # lines before it are of an earlier start

_MARKS = ("", " err")  # of the lines of a stream


class LogFile(NamedTuple):
    """A log file with the prefix of its lines, and whose it is."""

    path: str
    prefix: str
    round: int = 0  # 0: it is of no round
    rank: int | None = None  # global rank of a worker
    stream: str = ""  # of a worker: stdout, stderr
    node: str = ""  # of an agent


class WantedLogs(NamedTuple):
    """The user's choice of logs; None for everything."""

    rank: int | None = None
    node: str | None = None
    attempt: int | None = None  # None: the newest
    all: bool = False  # every attempt


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


def rounds_of(records: Iterable[Record]) -> dict[int, RoundFormed]:
    """Return the rounds of a run by their numbers."""
    return {one.entry.number: one.entry for one in records if isinstance(one.entry, RoundFormed)}


def node_of(formed: RoundFormed | None, rank: int) -> str:
    """Return the node that has a rank in a round; empty if that is not known."""
    first = 0
    for member in formed.members if formed else ():
        if first <= rank < first + member.slots:
            return member.node
        first += member.slots
    return ""


def agent_files(paths: RunPaths, wanted: WantedLogs) -> list[LogFile]:
    """Return the logs of the agents; their lines carry time and node themselves."""
    if wanted.rank is not None or wanted.attempt is not None:
        return []
    names = sorted(_names(paths.agent_logs), key=natural)
    return [
        agent_file(paths, node)
        for name in names
        if name.endswith(".log") and wanted.node in (None, node := name.removesuffix(".log"))
    ]


def agent_file(paths: RunPaths, node: str) -> LogFile:
    """Return the log of the agent of a node."""
    return LogFile(paths.agent_log(node), "", node=node)


def ranks_there(paths: RunPaths, attempt: int) -> list[int]:
    """Return the global ranks that have logs of a round."""
    names = _names(paths.attempt_logs(attempt))
    return sorted(number for name in names if (number := whole_number(name)) is not None)


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
    root, present = paths.attempt_logs(attempt), ranks_there(paths, attempt)
    allowed = set(present if ranks is None else ranks)
    chosen = [rank for rank in present if rank in allowed and wanted.rank in (None, rank)]
    found = []
    for rank in chosen:
        there = _names(os.path.join(root, str(rank)))
        found += [file for file in of_worker(paths, attempt, rank) if os.path.basename(file.path) in there]
    return found


def of_worker(paths: RunPaths, attempt: int, rank: int) -> list[LogFile]:
    """Return both logs of a worker, whether they are there or not."""
    place = paths.worker_logs(attempt, rank)
    return [
        LogFile(
            os.path.join(place, name),
            f"[{attempt}:rank {rank}{mark}] ",
            attempt,
            rank,
            name.removesuffix(".log"),
        )
        for name, mark in zip(STREAMS, _MARKS, strict=True)
    ]


def batch_logs(paths: RunPaths) -> list[LogFile]:
    """Return the output of the batch scripts, oldest first."""
    names = [name for name in _names(paths.root) if name.startswith("slurm-") and name.endswith(".out")]
    return [LogFile(os.path.join(paths.root, name), "[batch] ") for name in sorted(names, key=natural)]


def _names(directory: str) -> list[str]:
    try:
        return list_plain(directory, links=True)  # logs may be kept elsewhere
    except OSError:
        return []


def srun_said(log: str, hosts: Collection[str]) -> str:
    """Return how the agents of some hosts have ended, as srun tells it; empty if it does not."""
    told = {}
    for names, how in _ENDED.findall(log.rpartition(_START_ENDS)[2]):
        told.update(dict.fromkeys(set(_expanded(names)).intersection(hosts), how.strip()))
    parts = [f"{host}: {told[host]}" for host in sorted(told)]
    return f"srun says that agents have ended before they came: {', '.join(parts)}" if parts else ""


def _expanded(names: str) -> tuple[str, ...]:
    try:
        return parse.expand(names)
    except InputError:
        return ()
