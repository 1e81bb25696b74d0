"""The past of a run in words: causes counted, exit codes, unfit nodes, steps that were not saved. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from signal import Signals

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.member_names import natural, parse_name
from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import (
    Cause,
    NodeLeft,
    Record,
    Requeued,
    RoundFormed,
    TaskStopped,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.record.why_left import requeued_for, who_asked
from hpc_elastic.text import count_text
from hpc_elastic.typed_json import whole_number

_NAMES = {
    ExitCode.REQUEUE: "left before the run had ended",
    ExitCode.FAILED: "the run failed, not for a worker's exit code",
    ExitCode.FENCED: "a newer start of the run exists",
    ExitCode.WEDGED: "workers hang in the kernel",
    ExitCode.UNFIT: "the node is unfit and stays out",
    ExitCode.HUNG: "the workers hung once too often",
    126: "the program cannot be run",
    127: "the program was not found",
    168: "srun could not start the step: its credential was revoked",
    233: "srun could not reach a node of the job",
}
_SIGNALLED = 128
_MOST_NAMES = 4
_MOST_WORDS = 80  # of a reason; the node's own line has all of it

_Nouns = tuple[str, str]  # for one and for several
_UNFIT = ("unfit node", "unfit nodes")


def restarts_text(counts: Mapping[Cause, int], signals: Mapping[str, int] | None = None) -> str:
    """Return why rounds of this submission ended; empty if none did.

    Args:
        counts: rounds ended per cause.
        signals: how many of those that count as preemptions ended by a signal that Slurm has not said so of.
    """
    named = {(name, f"{name}s"): number for name, number in (signals or {}).items()}
    words = {CAUSES[cause][:2]: number for cause, number in counts.items()}
    words[CAUSES[Cause.PREEMPTION][:2]] = counts.get(Cause.PREEMPTION, 0) - sum(named.values())
    return _counted({**words, **named})


def signals_of(records: Iterable[Record]) -> dict[str, int]:
    """Return how many rounds of the newest submission ended by which signal that may be no preemption."""
    found: Counter[str] = Counter()
    state, cause = RunState(), Cause.PREEMPTION
    for record in records:
        after = fold(state, [record])
        before, now = state.counts.get(cause, 0), after.counts.get(cause, 0)
        if now < before:  # a new submission, or a budget that its user has given anew
            found.clear()
        signal = who_asked(after, cause).signal if now > before else ""
        if signal:
            found[signal] += 1
        state = after
    return dict(found)


def requeues_text(records: Iterable[Record], submission: int) -> str:
    """Return why the job of a submission was requeued; empty if it was not.

    A node that was unfit is not among those that were lost, and a signal that a user sent is no preemption.
    """
    words: Counter[_Nouns] = Counter()
    state = RunState()
    for record in records:
        entry = record.entry
        if isinstance(entry, Requeued) and entry.epoch.submission == submission:
            signal = requeued_for(state, entry).signal
            nouns = (signal, f"{signal}s") if signal else CAUSES[entry.cause][:2]
            words[_UNFIT if is_for_unfit(entry.cause, state) else nouns] += 1
        state = fold(state, [record])
    return _counted(words)


def task_requeues(records: Iterable[Record], members: Iterable[str], submission: int) -> dict[str, int]:
    """Return how often each task of an array was requeued in a submission, those that were not left out.

    Slurm counts that for each task, and the ids of its agents tell: a task that is not back is not counted.

    Args:
        records: of the run.
        members: the listing of ``members/``.
        submission: its number.
    """
    names = [name for name in map(parse_name, members) if name is not None]
    times: dict[str, int] = {}
    ids = {name.node_id for name in names if name.epoch.submission == submission}
    for record in records:
        entry = record.entry
        if isinstance(entry, RoundFormed) and entry.epoch.submission == submission:
            ids.update(member.node_id for member in entry.members)
        elif isinstance(entry, NodeLeft) and entry.epoch.submission == submission:
            ids.add(entry.node_id)
        elif isinstance(entry, TaskStopped) and entry.epoch.submission == submission:
            times[entry.task] = max(times.get(entry.task, 0), entry.restart)
    for start in filter(None, map(start_of, ids)):
        times[start.task] = max(times.get(start.task, 0), start.restart)
    return {task: number for task, number in sorted(times.items(), key=_place) if number}


def _place(item: tuple[str, int]) -> tuple[object, ...]:
    return natural(item[0])


def tasks_text(times: Mapping[str, int], most: int) -> str:
    """Return how much of a budget that each task of an array has for itself is used."""
    text = f"{count_text(sum(times.values()), 'requeue')} of single tasks (at most {most} for each"
    if len(times) > 1:
        worst = max(times, key=lambda task: times[task])
        text += f"; the most: task {worst}, {times[worst]}"
    elif times:
        text += f"; all of task {next(iter(times))}"
    return f"{text})"


def _counted(counts: Mapping[_Nouns, int]) -> str:
    told = sorted((-number, nouns) for nouns, number in counts.items() if number > 0)
    return ", ".join(f"{-number} {nouns[number < -1]}" for number, nouns in told)


def used_text(number: int, most: int | None, noun: str, causes: str) -> str:
    """Return how much of a budget is used, and its purpose.

    Args:
        number: how often.
        most: the budget; None if it is not known.
        noun: the things that it counts.
        causes: why; may be empty.
    """
    text = count_text(number, noun) if most is None else f"{number} of {most} {noun}s"
    return f"{text} ({causes})" if causes else text


def is_for_unfit(cause: Cause, state: RunState) -> bool:
    """Tell whether a loss of nodes, as counted, is that nodes are unfit."""
    return cause is Cause.NODE_LOSS and state.only_unfit


def unfit_text(unfit: Mapping[str, str]) -> str:
    """Return ``1 node unfit: node3 (disk full)``.

    Args:
        unfit: the nodes, and why; at least one.
    """
    names = sorted(unfit, key=natural)
    told = ", ".join(f"{name} ({_short(unfit[name])})" for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{count_text(len(names), 'node')} unfit: {told}{more}"


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]} ..."


def unsaved_text(state: RunState, saved: int | None) -> str:
    """Return the steps that are missing, to be put behind a sentence; empty if none is, or it is not known.

    All ranks have agreed on a step to stop at, so a checkpoint of it, or a later one, was to be marked.

    Args:
        state: the run when its workers had stopped.
        saved: the step of the newest durable checkpoint, None if none is marked.
    """
    parts = []
    if state.failed_leaving:
        first = state.failed_leaving[0].failure.get("rank", "?")
        more = len(state.failed_leaving) - 1
        also = f", and workers on {count_text(more, 'other node')}" if more else ""
        parts.append(f"rank {first} failed instead of saving{also}")
    if (step := missing_step(state, saved)) is not None:
        newest = "none is" if saved is None else f"the newest is of step {saved}"
        parts.append(f"no checkpoint of step {step} was marked ({newest})")
    return "".join(f"; {part}" for part in parts)


def missing_step(state: RunState, saved: int | None) -> int | None:
    """Return the step that all ranks stopped at without a checkpoint of it; None if there is one."""
    step = state.stop_step
    if step is None or step < 0:
        return None  # the workers do not tell their steps
    return step if saved is None or saved < step else None


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
    exited, signal = whole_number(code), whole_number(number)
    if exited is None or signal is None or field == "0:0":
        return ""
    return f"exit code {code_text(-signal or exited)}"
