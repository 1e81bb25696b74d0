"""The words of Slurm's commands: states, times, ids, releases, options, and host lists. Pure.

A host list is compressed: ``node[1-3,7],gpu[01-04]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from itertools import product

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

TESTED = ((20, 11), (22, 5), (24, 11), (26, 5))
_NAMED = r"option '--([a-z0-9-]+)' (?:requires|doesn't allow) an argument"
_UNKNOWN = r"unrecognized option|option '\S+' is ambiguous"
_NAME = r"[a-z][a-z0-9-]*"
MAX_HOSTS = 100_000
_LONGEST_NAME = 255  # of a host, in characters
_MOST_DIGITS = 18
_QUOTED = 100  # characters of a host list in a message


class JobState(Enum):
    """The states of a job that matter here; each knows whether the job can still run."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    REQUEUED = "REQUEUED"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"  # a word of a later version: the job may run, wait or be over

    @property
    def is_active(self) -> bool:
        """Whether Slurm may still have something to do for the job."""
        return self is not JobState.ENDED


_WORDS = {
    JobState.PENDING: ("PENDING", "PD", "RESV_DEL_HOLD", "RD"),
    JobState.RUNNING: (
        "RUNNING", "R", "CONFIGURING", "CF", "RESIZING", "RS", "SIGNALING", "SI", "POWER_UP_NODE",
    ),
    JobState.SUSPENDED: ("SUSPENDED", "S", "STOPPED", "ST"),
    JobState.COMPLETING: ("COMPLETING", "CG", "STAGE_OUT", "SO", "UPDATE_DB"),
    JobState.REQUEUED: (  # its owner may not change it before it is PENDING
        "REQUEUED", "RQ", "REQUEUE_FED", "RF", "REQUEUE_HOLD", "RH", "SPECIAL_EXIT", "SE", "RECONFIG_FAIL",
        "EXPEDITING", "EX",
    ),
    JobState.ENDED: (
        "COMPLETED", "CD", "CANCELLED", "CA", "FAILED", "F", "TIMEOUT", "TO", "NODE_FAIL", "NF", "PREEMPTED",
        "PR", "BOOT_FAIL", "BF", "DEADLINE", "DL", "OUT_OF_MEMORY", "OOM", "LAUNCH_FAILED", "LF", "REVOKED",
        "RV",
    ),
}  # fmt: skip
"""The words of Slurm 20.11 to 26.05, long and short."""

_STATES = {word: state for state, words in _WORDS.items() for word in words}


def job_state(text: str) -> JobState:
    """Return the state for Slurm's long or short name; a word that is not known is UNKNOWN."""
    word = re.split(r"[ +,]", text.strip())[0].upper()
    return _STATES.get(word, JobState.UNKNOWN)


def help_options(text: str) -> frozenset[str]:
    """Return the long names of all options in the output of ``sbatch --help``."""
    return frozenset(re.findall(r"^\s+(?:-\w,?\s+)?--([a-z][a-z0-9-]*)", text, re.MULTILINE))


def submitted_job_id(text: str) -> str | None:
    """Return the job id in the output of ``sbatch --parsable``: ``1234`` or ``1234;cluster``.

    A site's own submit filter may print more lines before; sbatch's own is the last one.
    """
    found = re.findall(r"^(\d+)(?:;\S+)?\s*$", text, re.MULTILINE)
    return found[-1] if found else None


def time_left_s(text: str) -> float | None:
    """Return the time left in the output of ``squeue -h -o %L`` [s]; None if there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def is_unknown_job(stderr: str) -> bool:
    """Return whether Slurm's words mean that it does not (or no longer) know the job."""
    return "Invalid job id" in stderr


def may_have_been_queued(stderr: str) -> bool:
    """Return whether a failed sbatch may still have reached the controller."""
    return "timed out" in stderr.lower() or "Zero Bytes were transmitted" in stderr


def controllers(output: str) -> list[tuple[str, bool]]:
    """Return host and whether it is up of each line of ``scontrol ping``."""
    lines = re.findall(r"^Slurmctld\([^)]*\) at (\S+) is (\w+)", output, re.MULTILINE)
    return [(host, state == "UP") for host, state in lines]


def between_s(first: str, last: str) -> float | None:
    """Return the seconds between two of Slurm's dates; None if one is none."""
    a, b = _stamp(first), _stamp(last)
    return None if a is None or b is None else float(max(0, b - a))


def _stamp(text: str) -> int | None:
    """Return the seconds of ``2026-11-21T20:00:00`` in a calendar of its own; good for differences only."""
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", text)
    if found is None:
        return None
    year, month, day, hours, minutes, secs = map(int, found.groups())
    months = 12 * year + month - 3  # a year that begins in March has its odd day at its end
    of_year = (153 * (months % 12) + 2) // 5 + day
    days = 365 * (months // 12) + months // 48 - months // 1200 + months // 4800 + of_year
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


"""Releases that the tests on a real Slurm run with: `scripts/test --slurm all`."""


_LIMITS_ITS_OWN_REQUEUES = (24, 5)
EXPEDITES = (25, 11)  # the first release with --requeue=expedite


def release(said: str) -> tuple[int, int] | None:
    """Return the release in the output of ``sbatch --version``, ``slurm 24.11.5``; None if it tells none."""
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def release_text(of: tuple[int, int]) -> str:
    """Return a release as Slurm writes it: ``24.11``, ``22.05``."""
    return f"{of[0]}.{of[1]:02}"


def tested_text(of: tuple[int, int]) -> str:
    """Return how the tests cover a release."""
    known = ", ".join(map(release_text, TESTED))
    if of in TESTED:
        return "hpc_elastic is tested with it"
    where = "older than" if of < TESTED[0] else "newer than" if of > TESTED[-1] else "between"
    return f"{where} the releases that hpc_elastic is tested with: {known}"


def requeue_limit(of: tuple[int, int], config: Mapping[str, str]) -> int | None:
    """Return how often Slurm itself requeues a job whose script ends within its preemption grace.

    After that it holds the job (``launch_failure_limit_exceeded_requeued_held``). Requeues by
    ``scontrol requeue`` do not count, nor do those of jobs that stay until Slurm ends them.

    Args:
        of: the release.
        config: of ``scontrol show config``.

    Returns:
        The limit; None if this release never requeues such a job, or does not tell.
    """
    most = config.get("MaxBatchRequeue", "")
    return int(most) if of >= _LIMITS_ITS_OWN_REQUEUES and most.isdecimal() else None


def allows_expedited(config: Mapping[str, str]) -> bool:
    """Tell whether a site lets jobs ask to start again at once after a requeue.

    Args:
        config: of ``scontrol show config``.
    """
    return "enable_expedited_requeue" in config.get("SlurmctldParameters", "").lower().split(",")


def knows_expedited(help_text: str) -> bool:
    """Tell whether sbatch takes ``--requeue=expedite``, by the output of ``sbatch --help``."""
    return "--requeue[=" in help_text


def is_expedited(job: str) -> bool:
    """Tell whether a job was queued with ``--requeue=expedite``, by the output of ``scontrol show job``."""
    return re.search(r"^\s*ExpeditedRequeue=Yes\b", job, re.MULTILINE) is not None


def options_taken(
    asked: Iterable[str], listed: Collection[str], complaint: Callable[[str], str]
) -> frozenset[str]:
    """Return those of some long names that sbatch takes, though its help may not list them.

    Each version of Slurm takes some more (``--hint``, ``--segment``). sbatch reads its command line before it
    looks for a script, so it can be asked with an empty one: nothing is queued. It also takes the beginning
    of a name for the name; its words then tell the whole one.

    Args:
        asked: the names.
        listed: those in its help.
        complaint: runs sbatch with one word and an empty script, and returns its words.
    """
    unlisted = (name for name in asked if name not in listed and re.fullmatch(_NAME, name))
    return frozenset(name for name in unlisted if _takes(name, listed, complaint))


def _takes(name: str, listed: Collection[str], complaint: Callable[[str], str]) -> bool:
    # with a value first: --external=x is refused, while --external alone would need no script
    for word in (f"--{name}=x", f"--{name}"):
        said = complaint(word)
        if re.search(_UNKNOWN, said):
            return False
        if found := re.search(_NAMED, said):
            return found[1] == name
    return not any(other.startswith(name) for other in listed)  # may have a value, and so says nothing


class _Range(NamedTuple):
    """Numbers from the first to the last one, with leading zeros up to a width."""

    low: int
    high: int
    width: int

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def texts(self) -> list[str]:
        return [str(number).zfill(self.width) for number in range(self.low, self.high + 1)]


class _Item(NamedTuple):
    """One item of a host list: a text before each bracket, the brackets' content, and the text behind."""

    texts: list[str]
    brackets: list[list[_Range]]

    @property
    def size(self) -> int:
        """How many hosts it names, or some number above `MAX_HOSTS`; nothing is built for that."""
        size = 1
        for ranges in self.brackets:
            size *= sum(one.size for one in ranges)
            if size > MAX_HOSTS:  # it only grows
                break
        return size

    @property
    def longest(self) -> int:
        """How many characters its longest name has."""
        numbers = sum(max(max(one.width, len(str(one.high))) for one in ranges) for ranges in self.brackets)
        return sum(map(len, self.texts)) + numbers

    def names(self) -> list[str]:
        """Return the hosts; the last bracket counts fastest."""
        numbers = ([text for one in ranges for text in one.texts()] for ranges in self.brackets)
        head, *tails = self.texts
        return [
            head + "".join(number + tail for number, tail in zip(chosen, tails, strict=True))
            for chosen in product(*numbers)
        ]


def expand(text: str) -> tuple[str, ...]:
    """Return the host names of a host list, in its order; they are counted before the first is built.

    Raises:
        InputError: brackets do not match, a range is not a range, or it names more than `MAX_HOSTS` hosts.
    """
    items = [_item(part, text) for part in _split(text)]
    if sum(item.size for item in items) > MAX_HOSTS:
        raise _bad(text, f"it names more than {MAX_HOSTS} hosts")
    if any(item.longest > _LONGEST_NAME for item in items):
        raise _bad(text, f"it names a host of more than {_LONGEST_NAME} characters")
    return tuple(name for item in items for name in item.names())


def _bad(text: str, why: str) -> InputError:
    return InputError(
        f"{_short(text)} is not a host list: {why}",
        where="host list",
        fix="write it as node[1-3,7],gpu[01-04]",
    )


def _short(text: str) -> str:
    return (
        repr(text)
        if len(text) <= _QUOTED
        else f"{text[:_QUOTED]!r} and {len(text) - _QUOTED} more characters"
    )


def _split(whole: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, start, depth = [], 0, 0
    for found in re.finditer(r"[\[\],]", whole):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if found[0] == "," and depth == 0:
            parts.append(whole[start : found.start()])
            start = found.end()
        if depth not in (0, 1):
            raise _bad(whole, "the brackets do not match")
    if depth:
        raise _bad(whole, "the brackets do not match")
    parts.append(whole[start:])
    return [part.strip() for part in parts if part.strip()]


def _item(part: str, whole: str) -> _Item:
    """Take one item apart; its brackets match, and none stands in another."""
    head, *rest = part.split("[")
    texts: list[str] = [head]
    brackets: list[list[_Range]] = []
    for text in rest:
        inside, _, tail = text.partition("]")
        brackets.append([_range(word.strip(), whole) for word in inside.split(",")])
        texts.append(tail)
    return _Item(texts, brackets)


def _range(word: str, whole: str) -> _Range:
    first, dash, last = word.partition("-")
    last = last if dash else first
    if not all(end.isascii() and end.isdecimal() and len(end) <= _MOST_DIGITS for end in (first, last)):
        raise _bad(whole, f"{_short(word)} is not a number or range")
    low, high = int(first), int(last)
    if low > high:
        raise _bad(whole, f"the range {_short(word)} runs backwards")
    return _Range(low, high, len(first))
