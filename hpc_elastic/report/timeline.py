"""The events of a run, as lines for people. Pure.

Times are the writers' wall times and serve display only; a span is shown between records of one node, as
the clocks of two may differ by an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hpc_elastic.account.facts import is_untold
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import (
    NO_RANK,
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    DrillBegan,
    DrillCalledOff,
    Epoch,
    EpochStarted,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    NeverAsked,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Notified,
    RanksStopped,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
    StopKind,
    TaskStopped,
    WarningHeld,
)
from hpc_elastic.record.node_faults import slow_text
from hpc_elastic.record.progress import BEGINNING, writer_node
from hpc_elastic.record.state import NO_EPOCH, RunState, apply
from hpc_elastic.record.why_left import EarlyNotice, asked_text, requeued_for, who_asked
from hpc_elastic.report.causes_text import code_text, is_for_unfit, unfit_text, unsaved_text
from hpc_elastic.text import count_text, few_text, last_words

_MOST_NAMES = 8
_MOST_WORDS = 120  # of an error, in one line
_ONE_DECIMAL, _MINUTE, _HOUR, _DAY = 9.95, 60, 3600, 86400  # [s]
_CENTURY = 36525 * _DAY


_NO_ROUND = (Cause.JOIN_TIMEOUT, Cause.NODE_LOSS, Cause.AGENT_ERROR)  # may end a start before its first


_Text = Callable[[Any, RunState, float | None], str]


class Moment(NamedTuple):
    """One thing that happened."""

    at: float  # [s since the epoch]
    submission: int
    text: str
    is_ending: bool = False  # the run has ended with it


def timeline(
    records: Iterable[Record], *, by_torchrun: bool = False, begun: Mapping[int, int] = {}
) -> list[Moment]:
    """Return the events, oldest first; records that changed nothing are left out.

    Args:
        records: of the run.
        by_torchrun: its agents are torchrun's, which do not tell how many workers they have.
        begun: the steps that rounds went on from, by their numbers, where their workers have told.
    """
    formed = _met if by_torchrun else partial(_formed, begun=begun)
    records = list(records)
    ended = partial(_ended, lost=_lost_with_crash(records))
    texts: Mapping[type, _Text] = {**_TEXTS, RoundFormed: formed, RoundEnded: ended}
    state, moments = RunState(), []
    newest: dict[type, Record] = {}  # record of each kind
    for record in records:
        after = apply(state, record.entry)
        if after != state and not _is_formal(record):
            entry, epoch = record.entry, after.epoch
            if (alone := _TEXTS_ALONE.get(type(entry))) is not None:
                text = alone(entry)
            else:
                text_of: _Text = _without_agents if _has_no_agent(record) else texts[type(entry)]
                text = text_of(entry, state, _span_s(record, newest))
            if isinstance(entry, Note | Notified | DrillBegan | DrillCalledOff | NodeTaken):
                epoch = entry.epoch  # perhaps of an earlier start
            is_ending = isinstance(entry, RunEnded)
            moments.append(Moment(record.at, max(epoch.submission, 0), text, is_ending))
            newest[type(record.entry)] = record
        state = after
    return moments


_BEGINNINGS: Mapping[type, tuple[type, ...]] = {
    RoundFormed: (EpochStarted, RoundEnded),
    RoundEnded: (RoundFormed,),
    Drained: (EpochStarted, DrainRequested, RoundEnded),
}


def _span_s(record: Record, newest: Mapping[type, Record]) -> float | None:
    """Return how long the phase that a record ends has lasted [s]; None if another node began it."""
    known = [newest[kind] for kind in _BEGINNINGS.get(type(record.entry), ()) if kind in newest]
    began = max(known, key=lambda each: each.number, default=None)
    return record.at - began.at if began is not None and writer_node(began) == writer_node(record) else None


def _for(word: str, span_s: float | None) -> str:
    """Return a word and how long something took, if that is known."""
    return "" if span_s is None else f"{word}{span_text(span_s)}"


def _is_formal(record: Record) -> bool:
    """Tell whether nothing happened: a start is written with the ending of a job that never ran."""
    return isinstance(record.entry, EpochStarted) and record.role is Role.COMMAND


def _has_no_agent(record: Record) -> bool:
    """Tell whether a start is on record that no agent has announced: the job script did, as it ended."""
    return isinstance(record.entry, EpochStarted) and record.role is Role.SCRIPT and not record.entry.expected


def _without_agents(entry: EpochStarted, before: RunState, _span_s: float | None) -> str:
    epoch, known = entry.epoch, before.epoch
    if epoch.script == known.script and known != NO_EPOCH:
        return f"no agent could be started again (relaunch {epoch.relaunch})"
    job = f"job {entry.job_id}" if entry.job_id else "the run"
    return f"{job} started{_which_start(epoch)}, but none of its agents"


def _started(entry: EpochStarted, before: RunState, _span_s: float | None) -> str:
    epoch, known = entry.epoch, before.epoch
    names = f" on {names_text(entry.expected)}" if entry.expected else ""
    if epoch.script == known.script and known != NO_EPOCH:
        return f"agents started again{names} (relaunch {epoch.relaunch})"
    job = f"job {entry.job_id}" if entry.job_id else "the run"
    return f"{job} started{names}" + _which_start(epoch)


def _which_start(epoch: Epoch) -> str:
    """Return which start of which job of its submission this is; nothing for the first."""
    parts = [f"job {epoch.link + 1} of the submission"] if epoch.link else []
    parts += [f"restart {epoch.restart}"] if epoch.restart else []
    return f" ({', '.join(parts)})" if parts else ""


def _formed(entry: RoundFormed, before: RunState, span_s: float | None, begun: Mapping[int, int] = {}) -> str:
    nodes = tuple(member.node for member in entry.members)
    names = names_text(nodes)
    if entry.is_script:
        return f"the job script started on {names}"
    step = _step_text(entry, begun)
    size = f"{count_text(entry.workers, 'worker')} on {names}"
    gone = tuple(name for name in entry.lost if name not in nodes)  # others are back with a new agent
    lost = f", without {names_text(gone)} (lost)" if gone else ""
    return f"round {entry.number}: {size}{lost}{step}, formed{_for(' in ', span_s)}{_in_vain(entry, before)}"


def _step_text(entry: RoundFormed, begun: Mapping[int, int]) -> str:
    """Return where the workers of a round begin; it may be newer than the checkpoint."""
    step = None if entry.checkpoint is None else entry.checkpoint.step
    if is_untold(entry.number, begun):
        return "" if step is None else f", newest checkpoint: step {step}"
    found = begun.get(entry.number, step)
    return f", from step {found}" if found or step is not None else ""


def _in_vain(entry: RoundFormed, before: RunState) -> str:
    """Return that the start before has saved nothing, told as this one begins to work."""
    known, now = before.progress, apply(before, entry).progress
    if known.began is not None or not now.in_vain:
        return ""
    if not now.tells:
        return "; whether the start before has saved is not known"
    starts = "the start before" if now.in_vain == 1 else f"the last {count_text(now.in_vain, 'start')}"
    return f"; nothing newer was saved in {starts}"


def _met(entry: RoundFormed, _before: RunState, span_s: float | None) -> str:
    """Tell of a round of torchrun's agents."""
    names = names_text(tuple(member.node for member in entry.members))
    return (
        f"round {entry.number}: {count_text(len(entry.members), 'node')} ({names}) met{_for(' in ', span_s)}"
    )


def _lost_with_crash(records: Iterable[Record]) -> dict[int, tuple[str, ...]]:
    """Return by round the nodes that were lost where workers failed first, as only the next round tells."""
    crashed, found = 0, {}
    for record in records:
        entry = record.entry
        if isinstance(entry, RoundEnded):
            crashed = entry.number if entry.cause is Cause.CRASH else 0
        elif isinstance(entry, RoundFormed) and entry.lost and crashed:
            found[crashed] = entry.lost
        crashed = 0 if isinstance(entry, RoundFormed) else crashed
    return found


def _ended(
    entry: RoundEnded,
    before: RunState,
    span_s: float | None,
    lost: Mapping[int, tuple[str, ...]] = {},
) -> str:
    is_pause = entry.cause is Cause.MEMBERSHIP
    if is_pause and before.drain is None:
        why = "its agents meet anew and do not tell why: a worker failed, or nodes have changed"
        return f"round {entry.number} ended{_for(' after ', span_s)}: {why}"
    text = f"round {entry.number} {'paused' if is_pause else 'ended'}{_for(' after ', span_s)}: "
    gone = f"lost {names_text(lost[entry.number])}; before that was known: " if entry.number in lost else ""
    return text + gone + ended_text(entry, before) + _unsaved(entry, before)


def _unsaved(entry: RoundEnded, before: RunState) -> str:
    """Return that workers that were asked to stop have saved nothing, and the run goes on."""
    now = apply(before, entry).progress
    if not now.tells:
        return "; whether it has saved is not known" if now.silent > before.progress.silent else ""
    if now.stops <= before.progress.stops:
        return ""
    newer = "" if now.newest == BEGINNING else f" newer than step {now.newest}"
    return f"; nothing{newer} was saved"


def ended_text(entry: RoundEnded, state: RunState) -> str:
    """Return why a round ended, in a state that still knows the request."""
    if entry.word is not None:
        return entry.word.text
    if entry.failure:
        return failure_text(entry.failure)
    if entry.cause is Cause.NODE_LOSS and entry.nodes:
        return f"lost {names_text(entry.nodes)}"
    return cause_text(entry.cause, state)


def why_text(cause: Cause, state: RunState) -> str:
    """Return why a start of the run was left; nodes that were unfit are not called lost."""
    if is_for_unfit(cause, state):
        return unfit_text(state.unfit)
    drained = state.drained
    if cause is Cause.LAUNCH_FAILURE and drained is not None and drained.cause is cause:
        return CAUSES[cause].alone  # the batch script was killed: agents leave for that alone
    is_told = (
        cause is Cause.JOIN_TIMEOUT and drained is not None and drained.cause is cause and drained.detail
    )
    clause = CAUSES[cause].clause
    return f"{clause}: {drained.detail}" if is_told and drained is not None else clause


def left_text(cause: Cause, state: RunState) -> str:
    """Return why the agents left a start of the run; a signal alone may mean more than they take it for."""
    return who_asked(state, cause).text or why_text(cause, state)


def cause_text(cause: Cause, state: RunState) -> str:
    """Return why a round ends, in a state that still knows the request."""
    drain = state.drain
    if drain is None or drain.then is not AfterDrain.REJOIN or drain.cause is not cause:
        return who_asked(state, cause).text or CAUSES[cause].clause
    if cause is not Cause.MEMBERSHIP:
        return f"{drain.node} leaves ({_signal_text(drain)})"
    if not drain.node and state.size is not None and state.wanted is not None:
        return _size_text(state.size)
    return drain.detail or CAUSES[cause].clause


def _signal_text(entry: DrainRequested | NodeLeft) -> str:
    """Return why a node leaves; a signal alone may have another meaning than the recorded one."""
    told, why = asked_text(entry), CAUSES[entry.cause].alone
    is_clear = entry.cause is Cause.PREEMPTION or entry.asked.answer is not None or not entry.asked.signal
    if told and is_clear:
        return told
    return f"{why} ({told})" if told else why


def _drain_asked(entry: DrainRequested, _before: RunState, _span_s: float | None) -> str:
    if entry.then is AfterDrain.REJOIN and entry.cause is not Cause.MEMBERSHIP:
        return f"{entry.node} is to leave, the others go on: {_signal_text(entry)}"
    if entry.then is AfterDrain.REJOIN:
        return f"pause asked for: {entry.detail or CAUSES[entry.cause].clause}"
    on = f" on {entry.node}" if entry.node else ""
    told = asked_text(entry)
    if entry.cause is Cause.PREEMPTION and told:  # a signal may mean something else
        return f"drain asked for{on}: {told}"
    detail = f" ({told})" if told else ""
    return f"drain asked for{on}: {CAUSES[entry.cause].clause}{detail}"


def stop_text(entry: StopAgreed) -> str:
    """Return where the workers stop; for those that do not tell their steps it is not known."""
    is_told = entry.step >= 0
    return (
        f"all running ranks stop at step {entry.step} at the latest"
        if is_told
        else "the workers do not ask whether to stop"
    )


def _node_left(entry: NodeLeft, before: RunState, _span_s: float | None) -> str:
    if entry.cause is Cause.NODE_LOSS and entry.node in before.unfit:
        return f"{entry.node} left: it is unfit, so its task gets another node"
    if entry.cause is Cause.MEMBERSHIP and entry.detail:
        return f"{entry.node} left: {entry.detail}"
    if entry.cause is Cause.CANCEL:
        return f"{entry.node} left: {CAUSES[entry.cause].alone}"
    return f"{entry.node} left: {_signal_text(entry)}"


def task_stopped_text(entry: TaskStopped) -> str:
    """Return the words of the batch script of an array task about the end of one of its starts."""
    where = f"task {entry.task}" + (f" on {entry.node}" if entry.node else "")
    return f"{where} {_STOPS[entry.how]}: {entry.detail}"


_STOPS = {
    StopKind.FAILED: "could not start its agent",
    StopKind.HELD: "is held",
    StopKind.GIVEN_UP: "is given up",
}


def _drained(entry: Drained, before: RunState, span_s: float | None) -> str:
    why = left_text(entry.cause, apply(before, entry))
    if before.round is None and entry.cause in _NO_ROUND:
        return f"this start is given up{_for(' after ', span_s)}: {why}"
    saved = "" if entry.step is None else f"; checkpoint of step {entry.step}"
    lost = "" if not entry.missing else f"; {few_text(entry.missing)} vanished before it had stopped"
    return f"drained ({why}){_for(' in ', span_s)}{lost}{saved}{unsaved_text(before, entry.step)}"


def _requeued(entry: Requeued, before: RunState, _span_s: float | None) -> str:
    lost = f": {few_text(entry.nodes)}" if entry.nodes else ""
    return f"requeued ({back_text(entry, before)}{lost})"


def back_text(entry: Requeued, state: RunState) -> str:
    """Return why a job was handed back to Slurm.

    Args:
        entry: the record of that.
        state: the run before it, or with it.
    """
    is_told = entry.cause is Cause.LAUNCH_FAILURE and entry.detail  # the part that could not start, and how
    told = entry.detail if entry.failure is None else entry.failure.text
    return (told if is_told else requeued_for(state, entry).text) or why_text(entry.cause, state)


def _size_text(entry: SizeWanted) -> str:
    before = "" if entry.before in (None, entry.size) else f", in place of {entry.before}"
    return f"{count_text(entry.size, 'node')} wanted ({entry.detail}){before}"


def never_asks_text(found: NeverAsked) -> str:
    """Return the fate of workers that do not ask whether to stop, as a sentence."""
    what = "the workers do not ask whether to stop"
    if found.runs_on_s is None:
        return f"{what}: they cannot save when their nodes are wanted back"
    return (
        f"{what}: they run on until their time is up (--unasked), {span_text(found.runs_on_s)} after a stop, "
        "at a preemption as long as Slurm grants"
    )


def stopped_ranks_text(node: str, ranks: Sequence[int]) -> str:
    """Return which workers of a node are stopped by a signal."""
    if not ranks:
        return f"no rank on {node} is stopped any more"
    word, they, them = ("rank", "is", "it") if len(ranks) == 1 else ("ranks", "are", "them")
    told = ", ".join(map(str, ranks))
    return f"{word} {told} on {node} {they} stopped (SIGSTOP): the others wait for {them}"


def ending_text(ending: RunEnded) -> str:
    """Return how a run ended, in one line."""
    text = ending.decision.value + (f": {ending.reason}" if ending.reason else "")
    if ending.decision is Decision.FAILED and ending.failure:
        text += f"; {failure_text(ending.failure)}"
    return text


def _drain_explained(entry: DrainExplained) -> str:
    left = "" if entry.left_s is None else f"; workers have {span_text(entry.left_s)} more"
    return f"Slurm says: {entry.detail}{left}"


def _never_asked(entry: NeverAsked) -> str:
    if entry.asks_now:
        return "the workers ask whether to stop now: they can save when their nodes are wanted back"
    return never_asks_text(entry)


_TEXTS: dict[type, _Text] = {
    EpochStarted: _started,
    RoundFormed: _formed,
    RoundEnded: _ended,
    DrainRequested: _drain_asked,
    NodeLeft: _node_left,
    Drained: _drained,
    Requeued: _requeued,
}
_TEXTS_ALONE: dict[type, Callable[[Any], str]] = {  # of those that need neither the run nor a span
    DrainExplained: _drain_explained,
    StopAgreed: stop_text,
    TaskStopped: task_stopped_text,
    NodeUnfit: lambda entry: f"{entry.node} is unfit and stays out: {entry.reason}",
    RunEnded: ending_text,
    SizeWanted: _size_text,
    HangSuspected: lambda entry: f"stacks of all ranks asked for by {entry.node}: {entry.detail}",
    NodeTaken: lambda entry: f"nothing is held against {entry.node}: {entry.reason}",
    NeverAsked: _never_asked,
    RanksStopped: lambda entry: stopped_ranks_text(entry.node, entry.ranks),
    NodeSlow: lambda entry: f"{entry.node} is slow: {slow_text(entry)}",
    WarningHeld: lambda entry: f"{entry.node} was warned {EarlyNotice(entry.left_s, entry.before_s).text}",
    FailedLeaving: lambda entry: (
        f"a worker failed as all were to save and leave: {failure_text(entry.failure)}"
    ),
    FailedAlike: lambda entry: f"the workers on {entry.node} failed in the same way",
    DrillBegan: lambda entry: entry.detail,
    DrillCalledOff: lambda entry: entry.detail,
    Notified: lambda entry: f"a message is sent: {entry.event.value}",
    Note: lambda entry: entry.text,
}


def failure_text(failure: Mapping[str, Any]) -> str:
    """Return a worker's failure in one line; facts that the record lacks are left out."""
    code = failure.get("exitcode", 1)
    by_signal = isinstance(code, int) and code < 0
    is_hang = code == ExitCode.HUNG and bool(failure.get("message"))
    if is_hang and failure.get("stands_out") is False:
        return f"the workers hang: {_cut(str(failure['message']).strip().partition(chr(10))[0])}"
    how = "hangs" if is_hang else f"exit code {code_text(code) if isinstance(code, int) else code}"
    where = f" on {failure['node']}" if failure.get("node") else ""
    message = str(failure.get("message") or "").strip().split("\n", 1)[0]
    first = message or ("" if by_signal else last_words(str(failure.get("stderr_tail") or "")))
    rank = failure.get("rank", "?")
    who = "the job script" if rank == NO_RANK else f"rank {rank}"
    return f"{who}{where}: {how}" + (f": {_cut(first)}" if first else "")


def _cut(text: str) -> str:
    if len(text) <= _MOST_WORDS:
        return text
    import textwrap  # noqa: PLC0415 - for errors alone

    lines = textwrap.wrap(text, _MOST_WORDS, break_on_hyphens=False)  # whole words
    return f"{lines[0]} ..." if lines else ""


def names_text(names: tuple[str, ...]) -> str:
    """Return node names, the many of a large job cut short."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def span_text(seconds: float) -> str:
    """Return a span of time as people write it: ``0.3 s``, ``12 s``, ``3 min 5 s``, ``2 h 3 min``."""
    seconds = max(seconds, 0.0)
    if not seconds < _CENTURY:
        return "more than 100 years"
    whole = round(seconds)
    if seconds < _ONE_DECIMAL:
        return f"{seconds:.1f} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
