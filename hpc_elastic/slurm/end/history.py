"""The earlier starts of a run at the end of one: failed script lines, saves, tasks of an array. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from hpc_elastic.record.array_task import TaskStart, start_of
from hpc_elastic.record.journal import (
    Cause,
    Drained,
    Epoch,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    SetupFailure,
    StopAgreed,
    StopKind,
    TaskStopped,
)
from hpc_elastic.record.progress import BEGINNING, Progress, Trained, with_round
from hpc_elastic.text import count_text

HOW = "worker.tick(step), worker.should_stop() and worker.checkpoint_saved(step, path) of hpc_elastic tell"

SETUP = "setup"  # step of the lines that the user has given
_SYNTAX = "syntax error"  # bash's word for a line, or a file that it reads, that it cannot make out
_OWN_TRAP = "trap 'failed setup "  # the last command of bash when it cannot make out a line of the script
_BY_BASH = re.compile(r"^\S*: line \d+: ")
_CANNOT_RUN, _NOT_FOUND = 126, 127
_BY_SLURM = re.compile(  # slurmstepd begins its lines with its name, since Slurm 26.05 with the time
    r"slurmstepd(?:-\S+)?: |\[\d{4}-\d\d-\d\dT[\d:.]+\] (?:error|fatal): (?:\*\*\* (?:JOB|STEP) |.*\bStepId=)"
)
_MISSING = re.compile(r"(?:.* )?([^\s/:()]+): command not found")  # said of a program that was given no path
_NO_PROGRAM = re.compile(r".*: (?:Permission denied|Is a directory)")  # other reasons of 126 may pass
_OF_THE_NODE = ("module", "ml", ".", "source")  # the software of nodes differs, and may be mended
_MOST_WORDS = 200
_UNREADABLE = "a line that bash cannot make out"
FIX = "mend it in job.sbatch of the run directory, or submit a new run"
FIX_IN_QUEUE = (  # Slurm has a copy of the script that the job was queued with
    "mend the cause and release the job; if the line itself is wrong: scancel the job, mend job.sbatch "
    "in the run directory, then hpc-elastic submit --resume"
)


class Earlier(Enum):
    """The fate of the job script's own lines in the earlier starts of a submission."""

    NOTHING = auto()  # this is the first start, or others came to no more
    WORKED = auto()  # workers ran
    FAILED = auto()  # the same line failed in the same way
    OTHERWISE = auto()  # nothing yet, but workers ran in an earlier submission, perhaps with other lines


def with_words(failure: SetupFailure, log: str) -> SetupFailure:
    """Return a failure with the words of the log about it, and whether those tell that it lasts.

    Args:
        failure: as the job script tells it.
        log: the end of the log of the batch script.
    """
    before, _, _ = log.rpartition(f"hpc_elastic: {failure.plain}")
    lines = before.rstrip().splitlines()[-1:]  # none if the log tells nothing of it
    words = _BY_BASH.sub("", "".join(lines).strip())
    if "hpc_elastic" in words or _BY_SLURM.match(words):
        words = ""
    failure = _readable(failure)._replace(words=words[:_MOST_WORDS])
    return failure._replace(lasting=_is_lasting(failure))


def is_by_slurm(line: str) -> bool:
    """Tell whether a line of a log is one of Slurm's own, other than of a program that ran out of memory."""
    return _BY_SLURM.match(line) is not None and "oom" not in line.lower()


def _readable(failure: SetupFailure) -> SetupFailure:
    """Return a failure without the line of ours that stands for one that bash cannot make out."""
    return failure._replace(line=_UNREADABLE) if failure.line.startswith(_OWN_TRAP) else failure


def _is_lasting(failure: SetupFailure) -> bool:
    """Tell whether a setup line fails wherever and whenever it is run again, by the words of bash.

    A program that is not on PATH, or must not be run, will not be there in two minutes. The target of a path
    may only be missing on one node, and so may a module. The exit code alone proves nothing: a program
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
    """Return the fate of the script's own lines in this submission before.

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


"""The calls that would change that nothing is known."""


_NAME = "max_starts_without_save"


def saves_text(progress: Progress, newest: int, limit: int | None) -> str:
    """Return the text about a start that has not saved; empty if it has saved, or no workers ran in it.

    Args:
        progress: that of the records.
        newest: the newest durable step there is; `progress.BEGINNING` if there is none.
        limit: after how many starts the run is held; None: it is not, or that is not to be said.
    """
    starts, noun, last = progress.starts_in_vain(newest), "start", "the last start has"
    if not progress.tells and (starts or progress.silent):
        what = "start" if starts else "round"
        first = f"the last {count_text(starts, noun)} in a row began from step 0; " if starts > 1 else ""
        return f"{first}nothing is known of its saves, so each {what} may begin anew: {HOW}"
    if not starts:
        starts, noun, last = progress.stops_in_vain(newest), "stop", "the round that had to stop last has"
    if not starts:
        return ""
    who = last if starts == 1 else f"the last {count_text(starts, noun)} in a row have"
    then = f" (held after {limit}: {_NAME})" if limit else ""
    return f"{who} saved {_what(max(newest, progress.newest))}{then}"


def saved_nothing_text(progress: Progress, newest: int, limit: int | None, *, of_starts: bool) -> str:
    """Return that starts, or stops within a start, lead nowhere; empty if they do, or no save is ever marked.

    Args:
        progress: that of the records; a program that marks no saves may save by itself.
        newest: the newest durable step there is; `progress.BEGINNING` if there is none.
        limit: after how many that saved nothing; None or 0: never.
        of_starts: whether the starts of the job are counted; else the stops within them.
    """
    count, noun = progress.stops_in_vain(newest), "stop"
    if of_starts:
        count, noun = progress.starts_in_vain(newest), "start"
    if not limit or count < limit or not progress.tells:
        return ""
    return f"{count_text(count, noun)} in a row saved {_what(max(newest, progress.newest))}"


def in_vain_text(progress: Progress, newest: int, limit: int | None, *, of_starts: bool) -> str:
    """Return the same with the budget that is spent with it."""
    text = saved_nothing_text(progress, newest, limit, of_starts=of_starts)
    return f"{text} ({_NAME} = {limit})" if text else ""


def _what(step: int) -> str:
    return "nothing" if step == BEGINNING else f"nothing newer than step {step}"


def short_time_text(starts: Sequence[Trained], limit_s: float | None) -> str:
    """Return that starts which ended for their time limit have trained for little of it; empty if not.

    Args:
        starts: of the submission, the oldest first.
        limit_s: the time limit of the job [s]; None: it has none, or it is not known.
    """
    if limit_s is None:
        return ""
    short: list[float] = []
    for start in reversed(starts):
        seconds = start.seconds
        if seconds is None or start.cause is not Cause.TIME_LIMIT or 2 * seconds >= limit_s:
            break
        short.append(seconds)
    if not short:
        return ""
    least, most = f"{min(short):.0f}", f"{max(short):.0f}"
    spans = f"{least} s" if least == most else f"{least} to {most} s"
    who = "this start has" if len(short) == 1 else f"the last {count_text(len(short), 'start')} have each"
    return (
        f"{who} trained for {spans} of a time limit of {limit_s:.0f} s; a longer --time, or a "
        f"--checkpoint-lead of the time of a save, leaves more"
    )


def task_trained(records: Iterable[Record], start: TaskStart) -> Trained:
    """Return the work of one start of a task: that of the rounds with its agents.

    Args:
        records: of the run.
        start: of the task; a relaunch of srun belongs to it.
    """
    found, formed = Trained(), None
    for record in records:
        entry = record.entry
        if isinstance(entry, RoundFormed):
            formed = record if any(_is_of(one.node_id, start) for one in entry.members) else None
        elif isinstance(entry, StopAgreed | RoundEnded | Drained):
            found, formed = found._replace(seconds=with_round(found.seconds, formed, record)), None
        elif isinstance(entry, NodeLeft) and _is_of(entry.node_id, start):
            found = found._replace(cause=entry.cause)
    return found


def _is_of(node_id: str, start: TaskStart) -> bool:
    found = start_of(node_id)
    return found is not None and found[:2] == start[:2]


def goodbye_of(records: Iterable[Record], start: TaskStart) -> NodeLeft | None:
    """Return the record of the agent of one start of a task on leaving, None if there is none."""
    for record in reversed(list(records)):
        entry = record.entry
        if isinstance(entry, NodeLeft) and start_of(entry.node_id) == start:
            return entry
    return None


def stopped(start: TaskStart, epoch: Epoch, how: StopKind, node: str, detail: str) -> TaskStopped:
    """Return the record of a batch script that it has ended a start of its task."""
    return TaskStopped(epoch, how, start.task, start.restart, node, detail)


def given_up(records: Iterable[Record]) -> frozenset[str]:
    """Return the names of the tasks that were given up and have been in no round since."""
    found: set[str] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, TaskStopped) and entry.how is StopKind.GIVEN_UP:
            found.add(entry.task)
        elif isinstance(entry, RoundFormed):
            starts = (start_of(member.node_id) for member in entry.members)
            found.difference_update(start.task for start in starts if start)
    return frozenset(found)


def task_starts_in_vain(records: Iterable[Record], start: TaskStart) -> int:
    """Return how many of the newest starts of a task, up to this one, were in no round and did not leave."""
    useful: set[int] = set()
    for record in records:
        entry = record.entry
        ids = [member.node_id for member in entry.members] if isinstance(entry, RoundFormed) else []
        ids += [entry.node_id] if isinstance(entry, NodeLeft) else []
        useful.update(one.restart for one in map(start_of, ids) if one and one.task == start.task)
    last = max((restart for restart in useful if restart <= start.restart), default=-1)
    return start.restart - last
