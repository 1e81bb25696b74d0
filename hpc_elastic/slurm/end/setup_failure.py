"""A line of the job script that failed before srun: what it said, and whether it will again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from hpc_elastic.record.journal import Epoch, Record, Requeued, RoundFormed, SetupFailure

SETUP = "setup"  # step of the lines that the user has given
_SYNTAX = "syntax error"  # bash's word for a line, or a file that it reads, that it cannot make out
_OWN_TRAP = "trap 'failed setup "  # is what bash ran last when it cannot make out a line of the script
_BY_BASH = re.compile(r"^\S*: line \d+: ")
_CANNOT_RUN, _NOT_FOUND = 126, 127
_BY_SLURM = re.compile(  # slurmstepd begins its lines with its name, since Slurm 26.05 with the time
    r"slurmstepd(?:-\S+)?: |\[\d{4}-\d\d-\d\dT[\d:.]+\] (?:error|fatal): (?:\*\*\* (?:JOB|STEP) |.*\bStepId=)"
)
_MISSING = re.compile(r"(?:.* )?([^\s/:()]+): command not found")  # said of a program that was given no path
_NO_PROGRAM = re.compile(r".*: (?:Permission denied|Is a directory)")  # other reasons of 126 may pass
_OF_THE_NODE = ("module", "ml", ".", "source")  # what nodes are set up with differs, and may be mended
_MOST_WORDS = 200
_UNREADABLE = "a line that bash cannot make out"
FIX = "mend it in job.sbatch of the run directory, or submit a new run"
FIX_IN_QUEUE = (  # Slurm has a copy of the script that the job was queued with
    "mend what it needs and release the job; if the line itself is wrong: scancel the job, mend job.sbatch "
    "in the run directory, then hpc-elastic submit --resume"
)


class Earlier(Enum):
    """What became of the job script's own lines in the earlier starts of a submission."""

    NOTHING = auto()  # this is the first start, or others came to no more
    WORKED = auto()  # workers ran
    FAILED = auto()  # the same line failed in the same way
    OTHERWISE = auto()  # nothing yet, but workers ran in an earlier submission, perhaps with other lines


def with_words(failure: SetupFailure, log: str) -> SetupFailure:
    """Return a failure with what the log says about it, and whether that tells that it lasts.

    Args:
        failure: as the job script tells it.
        log: the end of the log of the batch script.
    """
    before, found, _ = log.rpartition(f"hpc_elastic: {failure.plain}")
    lines = before.rstrip().splitlines()[-1:] if found else []
    words = _BY_BASH.sub("", "".join(lines).strip())
    if "hpc_elastic" in words or _BY_SLURM.match(words):
        words = ""
    failure = _readable(failure)._replace(words=words[:_MOST_WORDS])
    return failure._replace(lasting=_is_lasting(failure))


def _readable(failure: SetupFailure) -> SetupFailure:
    """Return a failure without the line of ours that stands for one that bash cannot make out."""
    return failure._replace(line=_UNREADABLE) if failure.line.startswith(_OWN_TRAP) else failure


def _is_lasting(failure: SetupFailure) -> bool:
    """Tell whether a setup line fails wherever and whenever it is run again, by the words of bash.

    A program that is not on PATH, or must not be run, will not be there in two minutes. What a path leads
    to may only be missing on one node, and so may a module. The exit code alone proves nothing: a program
    on a file system that is away, or that is being written, cannot be run either (126), and other programs
    end with 127, too, such as a shell whose script is not there.
    """
    if failure.step != SETUP:
        return False
    if _SYNTAX in failure.words or failure.line == _UNREADABLE:
        return True
    if failure.line.strip().partition(" ")[0] in _OF_THE_NODE:
        return False
    if failure.code == _CANNOT_RUN:
        return _NO_PROGRAM.fullmatch(failure.words) is not None
    missing = _MISSING.fullmatch(failure.words)
    return failure.code == _NOT_FOUND and missing is not None and missing[1] not in _OF_THE_NODE


def earlier_starts(records: Iterable[Record], epoch: Epoch, failure: SetupFailure | None) -> Earlier:
    """Return what became of the script's own lines in this submission before.

    Args:
        records: the journal.
        epoch: of this start.
        failure: the line that failed now; None: none did.
    """
    entries = [record.entry for record in records]
    formed = {entry.epoch.submission for entry in entries if isinstance(entry, RoundFormed)}
    if epoch.submission in formed:
        return Earlier.WORKED
    requeues = [entry for entry in entries if isinstance(entry, Requeued)]
    mine = [entry.failure for entry in requeues if entry.epoch.submission == epoch.submission]
    now = None if failure is None else _readable(failure)
    if now is not None and any(one is not None and one.is_same(now) for one in mine):
        return Earlier.FAILED
    return Earlier.OTHERWISE if formed else Earlier.NOTHING
