"""A line of the job script that failed before srun: what it said, and whether it will again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from hpc_elastic.rendezvous.journal import Epoch, Record, Requeued, RoundFormed

_FAILURE = re.compile(r"setup failed \(exit code (\d+)\): (.*)", re.DOTALL)
_SYNTAX = "syntax error"  # bash's word for a line, or a file that it reads, that it cannot make out
_OWN_TRAP = "trap 'failed setup "  # is what bash ran last when it cannot make out a line of the script
_BY_BASH = re.compile(r"^\S*: line \d+: ")
_CANNOT_RUN, _NOT_FOUND = 126, 127
_OF_THE_NODE = ("module", "ml", ".", "source")  # what nodes are set up with differs, and may be mended
_MOST_WORDS = 200
FIX = "mend it in job.sbatch of the run directory, or submit a new run"


class Earlier(Enum):
    """What became of the job script's own lines in the earlier starts of a submission."""

    NOTHING = auto()  # this is the first start, or others came to no more
    WORKED = auto()  # workers ran
    FAILED = auto()  # the same line failed in the same way


def with_words(failure: str, log: str) -> str:
    """Return a failure with what the log says about it.

    Args:
        failure: as the job script tells it: ``setup failed (exit code 127): pyenv local 3.11``.
        log: the end of the log of the batch script.
    """
    before, found, _ = log.rpartition(f"hpc_elastic: {failure}")
    lines = before.rstrip().splitlines()[-1:] if found else []
    words = _BY_BASH.sub("", lines[0].strip()) if lines else ""
    if not words or "hpc_elastic" in words or words.startswith("slurmstepd:"):
        return _without_trap(failure)
    return f"{_without_trap(failure)} ({words[:_MOST_WORDS]})"


def _without_trap(failure: str) -> str:
    """Return a failure without the line of ours that stands for one that bash cannot make out."""
    head, found, _ = failure.partition(f": {_OWN_TRAP}")
    return f"{head}: a line that bash cannot make out" if found else failure


def is_lasting(failure: str) -> bool:
    """Tell whether a setup line fails wherever and whenever it is run again.

    A program that is not on PATH, or cannot be run, will not be there in two minutes. What a path leads to
    may only be missing on one node, and so may a module.

    Args:
        failure: as `with_words` gives it.
    """
    found = _FAILURE.match(failure)
    if found is None:
        return False
    code, line = int(found[1]), found[2]
    if _SYNTAX in line or line.startswith("a line that bash cannot make out"):
        return True
    program = (line.split() or [""])[0]
    if program in _OF_THE_NODE:
        return False
    return code == _CANNOT_RUN or (code == _NOT_FOUND and "/" not in program)


def earlier_starts(records: Iterable[Record], epoch: Epoch, failure: str) -> Earlier:
    """Return what became of the script's own lines in this submission before.

    Args:
        records: the journal.
        epoch: of this start.
        failure: the line that failed now, and how.
    """
    entries = [record.entry for record in records]
    mine = [entry for entry in entries if isinstance(entry, RoundFormed | Requeued)]
    mine = [entry for entry in mine if entry.epoch.submission == epoch.submission]
    if any(isinstance(entry, RoundFormed) for entry in mine):
        return Earlier.WORKED
    same = _without_trap(failure)
    failed = any(isinstance(entry, Requeued) and entry.detail.startswith(same) for entry in mine)
    return Earlier.FAILED if failed and failure else Earlier.NOTHING
