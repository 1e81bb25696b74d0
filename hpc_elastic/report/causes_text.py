"""What a run has been through, counted by cause, and exit codes in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from signal import Signals

from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Cause, Record, Requeued
from hpc_elastic.report.timeline import count_text

_NAMES = {
    ExitCode.REQUEUE: "drained, to be requeued",
    ExitCode.FAILED: "the run failed, not for a worker's exit code",
    ExitCode.FENCED: "a newer start of the run exists",
    ExitCode.WEDGED: "workers hang in the kernel",
    126: "the program cannot be run",
    127: "the program was not found",
    168: "srun could not start the step: its credential was revoked",
    233: "srun could not reach a node of the job",
}
_SIGNALLED = 128


def restarts_text(counts: Mapping[Cause, int]) -> str:
    """Return why rounds of this submission ended; empty if none did.

    Args:
        counts: rounds ended per cause.
    """
    return _counted(counts)


def requeues_text(records: Iterable[Record], submission: int) -> str:
    """Return why the job of a submission was requeued; empty if it was not."""
    causes = Counter(
        record.entry.cause
        for record in records
        if isinstance(record.entry, Requeued) and record.entry.epoch.submission == submission
    )
    return _counted(causes)


def _counted(counts: Mapping[Cause, int]) -> str:
    told = sorted(((-number, cause.value) for cause, number in counts.items() if number > 0))
    return ", ".join(f"{-number} {word.replace('_', ' ')}" for number, word in told)


def code_text(code: int) -> str:
    """Return an exit code as a person would explain it: ``137 (killed by SIGKILL)``.

    Args:
        code: of a process, an agent or a batch script; negative, or 128 + n, for signal n.
    """
    if code in _NAMES:
        return f"{code} ({_NAMES[code]})"
    number = -code if code < 0 else code - _SIGNALLED
    try:
        return f"{code} (killed by {Signals(number).name})"
    except ValueError:
        return str(code)


def job_code_text(field: str) -> str:
    """Return Slurm's ``ExitCode=1:0`` in words; empty for one that says nothing.

    Args:
        field: exit code and signal, with a colon between them.
    """
    code, _, number = field.partition(":")
    if not code.isdigit() or not number.isdigit() or field == "0:0":
        return ""
    return f"exit code {code_text(-int(number) if number != '0' else int(code))}"


def used_text(number: int, most: int | None, noun: str, causes: str) -> str:
    """Return how much of a budget is used, and what for.

    Args:
        number: how often.
        most: the budget; None if nobody knows it.
        noun: of what.
        causes: why; may be empty.
    """
    text = count_text(number, noun) if most is None else f"{number} of {most} {noun}s"
    return f"{text} ({causes})" if causes else text
