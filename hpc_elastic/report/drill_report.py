"""The effect of a drill on a run, from the records that followed it, and the verdict on its grace time. Pure.

A drill counts in the budgets of the run as the fault that it plays.

Other faults of the run meanwhile differ by the round, node, worker and cause that the records name,
and are never taken for the drill's. Times are wall times of several nodes and of the file server: spans are
as exact as their clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hpc_elastic.account.facts import is_untold
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    EpochStarted,
    FailedLeaving,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
    TaskStopped,
)
from hpc_elastic.record.state import RunState
from hpc_elastic.report.timeline import failure_text, stop_text, task_stopped_text
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.client.deadlines import Site, margin_s, stop_s
from hpc_elastic.slurm.end.choices import budgets_of
from hpc_elastic.text import count_text

_REQUEUED = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE)
_FAILS = "ends the run as failed"
_UNKNOWN = (
    "submit has not started this run, so its --max-restarts is not known here: "
    f"with 0, the default of torchrun's flags, this drill {_FAILS}"
)


class _Budget(NamedTuple):
    name: str
    limit: int
    used: int
    what: str  # the counted thing, in the singular
    then: str  # the fate of the run with one more


def budget_warnings(
    cause: Cause,
    state: RunState,
    spec: Mapping[str, Any],
    *,
    has_queue: bool,
    task_restarts: int | None = None,
) -> list[str]:
    """Return the warnings before a drill: which budgets it exceeds, and of which it is the last.

    Args:
        cause: that the run counts it as.
        state: the run.
        spec: its job spec as it was stored; empty if the budgets are not known.
        has_queue: whether Slurm has a queue in which the run may wait.
        task_restarts: how often the array task that is struck was started again; None: the run is one job.
    """
    if not spec:
        return [_UNKNOWN] if cause in (Cause.CRASH, Cause.HANG) else []
    warnings = []
    for budget in _budgets(cause, state, spec, has_queue, task_restarts):
        limit = f"{budget.name} = {budget.limit}"
        if budget.used >= budget.limit:
            warnings.append(f"{limit} is spent: this drill counts, too, and {budget.then}")
        elif budget.used + 1 == budget.limit:
            last = f"this drill counts, and is the last {budget.what} of {limit}"
            warnings.append(f"{last}: the next one, be it a real one, {budget.then}")
    return warnings


def _budgets(
    cause: Cause,
    state: RunState,
    spec: Mapping[str, Any],
    has_queue: bool,  # noqa: FBT001 - as it was given
    task_restarts: int | None,
) -> Iterator[_Budget]:
    """Give the budgets that a cause counts in."""
    budgets = budgets_of(spec)
    is_held = budgets.holds and has_queue and not spec.get("chain")
    then = "holds the run until you release it" if is_held else _FAILS
    used = state.used(cause)
    if cause in (Cause.CRASH, Cause.HANG):
        row = CAUSES[cause]
        yield _Budget(row.budget, in_force(spec, row.budget), used, row.noun, _FAILS)
    own = budgets.of(cause)
    if own is not None:  # nodes that are lost count when the job is requeued for one
        limit, budget = own
        lost = f"{then}, if the job is requeued for it" if cause is Cause.NODE_LOSS else then
        yield _Budget(budget.value, limit, used, CAUSES[cause].noun, lost)
    if cause in _REQUEUED and task_restarts is None:
        yield _Budget("max_requeues", budgets.max_requeues, state.requeues, "requeue", then)
    elif cause in _REQUEUED:
        yield _Budget(
            "max_requeues", budgets.max_requeues, task_restarts or 0, "requeue", "gives the task up"
        )


_KILLED = (-9, 137)  # how a worker ends that is killed; 137 if a shell tells of it
_SAVED, _STOPPED = "saved", "stopped"  # phases; without an agreed step the last save is unknown

_Entry = TypeVar("_Entry")
MEANWHILE = "not the drill"  # name of an act of something else
_NOTABLE = (RoundEnded, DrainRequested, DrainExplained, NodeLeft, TaskStopped, EpochStarted, SizeWanted)


class Saved(NamedTuple):
    """A durable checkpoint and when it became so [s since the epoch]."""

    step: int
    at: float


class DrillPhase(NamedTuple):
    """One thing that followed, and how long after the drill began [s]."""

    name: str
    after_s: float
    text: str


class Course(NamedTuple):
    """The course of a run after a drill so far.

    Attributes:
        phases: in the order of their times.
        resumed: the round that the run came back with; None until then.
        ending: how the run ended, if it did.
        steps_lost: steps that are computed again; None if that is not known.
        most_lost: the same, at most: workers that have told no step may go on from a state in memory.
        others: faults meanwhile that are not the drill's.
        overtaken: whether the target of the drill ended for another reason before an agent noticed the drill.
        agreed: whether the workers stop at a step that all have agreed on, and whose checkpoint is `saved`.
        unsaved: the steps not saved, as the end of a sentence; empty if there are none, or it is not known.
        had_nothing_to_save: whether no step was completed since a checkpoint that was there before the drill.
    """

    phases: list[DrillPhase]
    resumed: RoundFormed | None
    ending: RunEnded | None
    steps_lost: int | None
    others: tuple[DrillPhase, ...] = ()
    overtaken: bool = False
    agreed: bool = False
    unsaved: str = ""
    had_nothing_to_save: bool = False
    most_lost: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.resumed is not None or self.ending is not None or self.overtaken

    @property
    def noticed(self) -> bool:
        """Whether anybody has noticed."""
        return any(phase.name == "noticed" for phase in self.phases)


class _Trail(NamedTuple):
    """The records behind a drill.

    Attributes:
        before: those before the notice; all of them without one.
        notice: the first that tells of the drill; None: none does.
        since: those after it, up to the round with which the run is back.
        back_at: the time of that round [s since the epoch].
        back: the round; it may be the notice itself.
    """

    before: Sequence[Record]
    notice: Record | None = None
    since: Sequence[Record] = ()
    back_at: float | None = None
    back: RoundFormed | None = None


def _trail_of(after: Sequence[Record], fault: InjectedFault) -> _Trail:
    place = next((at for at, record in enumerate(after) if is_trace(record.entry, fault, after[at:])), None)
    if place is None:
        return _Trail(after)
    rest = after[place:]
    back = next((at for at, record in enumerate(rest) if isinstance(record.entry, RoundFormed)), len(rest))
    return _Trail(after[:place], rest[0], rest[1 : back + 1], *_first(rest, RoundFormed))


def _first(records: Iterable[Record], kind: type[_Entry]) -> tuple[float, _Entry] | tuple[None, None]:
    """Return the time and the entry of the first record of a kind."""
    return next(((one.at, one.entry) for one in records if isinstance(one.entry, kind)), (None, None))


def course_of(
    records: Sequence[Record], fault: InjectedFault, saved: Sequence[Saved], begun: Mapping[int, int] = {}
) -> Course:
    """Return the course of a run after a drill.

    Args:
        records: the journal.
        fault: the deed of the drill, its target and its time.
        saved: all durable checkpoints.
        begun: the steps that rounds went on from, by their numbers, where their workers have told.
    """
    after = [record for record in records if record.number > fault.last]
    trail = _trail_of(after, fault)
    _, stop = _first(trail.since, StopAgreed)
    is_agreed = stop is not None and stop.step >= 0  # without ticks no step is known
    step = stop.step if stop is not None and is_agreed else fault.step
    phases = sorted(_phases(fault, trail, saved, begun), key=lambda phase: phase.after_s)
    resumed, most_lost = trail.back, None
    if resumed is not None and step is not None:
        most_lost = max(0, step - _step(resumed, begun))
    lost = None if resumed is not None and is_untold(resumed.number, begun) else most_lost
    had_nothing = resumed is not None and resumed.checkpoint is not None and lost == 0
    had_nothing = had_nothing and bool(saved) and all(mark.at < fault.at for mark in saved)
    return Course(
        phases,
        resumed,
        _first(after, RunEnded)[1] if resumed is None else None,
        lost,
        tuple(_others(fault, trail)),
        trail.notice is None and fault.rank is not None and _is_over(after, fault.round),
        is_agreed,
        _unsaved(trail.since, phases, resumed),
        had_nothing,
        most_lost,
    )


def _others(fault: InjectedFault, trail: _Trail) -> Iterator[DrillPhase]:
    """Yield the acts of something else; one that only the next round explains is left out till then."""
    notice = trail.notice
    if notice is None:
        found = [one for one in trail.before if not is_undecided(one.entry, fault)]
    else:
        later = (one for one in trail.since if not is_trace_after(one.entry, notice.entry, fault))
        found = [*trail.before, *later]
    for record in found:
        if isinstance(record.entry, _NOTABLE):
            text = _told(record.entry) + _perhaps(record, fault)
            yield DrillPhase(MEANWHILE, record.at - fault.at, text)


def _unsaved(since: Sequence[Record], phases: Iterable[DrillPhase], resumed: RoundFormed | None) -> str:
    """Return the steps that the workers did not save, though they were to."""
    _, failed = _first(since, FailedLeaving)
    if failed is not None:
        return f"a worker failed instead of saving: {failure_text(failed.failure)}"
    _, stop = _first(since, StopAgreed)
    step = -1 if stop is None else stop.step
    is_saved = any(phase.name == _SAVED for phase in phases)
    if resumed is None or step < 0 or is_saved or (resumed.checkpoint and resumed.checkpoint.step >= step):
        return ""
    return f"no checkpoint of step {step}, at which all stopped, was marked"


def _phases(
    fault: InjectedFault, trail: _Trail, saved: Iterable[Saved], begun: Mapping[int, int]
) -> Iterator[DrillPhase]:
    """Yield the phases of the drill until the run was back."""
    notice, since = trail.notice, trail.since
    if notice is None:
        return
    own = (record for record in since if is_trace_after(record.entry, notice.entry, fault))
    explained_at, explained = _first(own, DrainExplained)
    stop_at, stop = _first(since, StopAgreed)
    durable = None
    if stop is not None:
        durable = next((mark for mark in saved if mark.step >= stop.step and mark.at >= fault.at), None)
    left_at = next((record.at for record in since if is_stop_of_task(record.entry, fault)), None)
    found = (
        ("noticed", notice.at, _noticed(notice.entry, fault)),
        ("Slurm says", explained_at, "" if explained is None else explained.detail),
        ("workers told", stop_at, "" if stop is None else stop_text(stop)),
        (_SAVED, durable and durable.at, "" if durable is None else f"step {durable.step}"),
        (_STOPPED, _first(since, Drained)[0], "all workers of this start have stopped"),
        (_STOPPED, left_at, f"all workers on {fault.node} have stopped"),
        ("requeued", _first(since, Requeued)[0], "the job is back in the queue"),
        ("started again", _first(since, EpochStarted)[0], "the agents are back"),
        ("running again", trail.back_at, "" if trail.back is None else _running(trail.back, begun)),
    )
    yield from (DrillPhase(name, at - fault.at, text) for name, at, text in found if at is not None)


def _lost_text(course: Course, resumed: RoundFormed) -> str:
    """Return the steps that were computed again, as the end of a sentence, or nothing."""
    lost = course.steps_lost
    if lost is not None:
        return f"; {count_text(lost, 'step')} computed again"
    if course.most_lost:
        return f"; at most {count_text(course.most_lost, 'step')} computed again"
    if resumed.is_script:
        return "; its output tells from where the script has gone on"
    if resumed.checkpoint is None:
        return "; the lost steps are not known: it marks no checkpoint, and tells no step"
    return ""


def verdict(course: Course, but: str = "") -> tuple[bool, str]:
    """Tell whether the run came back as it was to, with a verdict in one line.

    Args:
        course: of the run after the drill.
        but: a fault though it came back, as the end of a sentence; empty if there was none.
    """
    last = course.others[-1].text if course.others else ""
    if course.resumed is not None:
        steps = _lost_text(course, course.resumed)
        also = f"; not the drill alone was at work: {last}" if last else ""
        buts = "".join(f"; but {one}" for one in (course.unsaved, but) if one)
        return not buts, f"the run came back{steps}{buts}{also}"
    if course.ending is not None:
        how = course.ending.decision.value
        if course.ending.decision is Decision.DONE:
            return False, "the run was done before it had to come back: drill a longer one"
        return False, f"the run did not come back: it ended {how} ({course.ending.reason})"
    if course.overtaken:
        return False, f"another event came before an agent noticed the drill: {last}; try the drill again"
    if not course.noticed:
        also = f"; the run recorded another event meanwhile: {last}" if last else ""
        return False, f"no agent has noticed it: the run has no record of it{also}"
    return False, f"the run has not come back yet; the last that happened: {course.phases[-1].name}"


def _is_over(after: Sequence[Record], number: int) -> bool:
    """Tell whether a round has ended, or another one was formed since."""
    rounds = [one.entry.number for one in after if isinstance(one.entry, RoundEnded | RoundFormed)]
    return any(found >= number for found in rounds)


def _told(entry: object) -> str:
    """Return the text of a record, with the node or worker that it is about."""
    text = "the job was handed back"
    if isinstance(entry, RoundEnded):
        text = f"round {entry.number} ended: {CAUSES[entry.cause].clause}{_who(entry)}"
    elif isinstance(entry, DrainRequested):
        is_pause = entry.cause is Cause.MEMBERSHIP and entry.detail
        cause = CAUSES[entry.cause].clause
        told = f"{cause}: told by {entry.node or 'a command'}"
        text = f"pause asked for: {entry.detail}" if is_pause else told
    elif isinstance(entry, DrainExplained):
        text = f"Slurm says: {entry.detail}"
    elif isinstance(entry, NodeLeft):
        text = f"{entry.node} left: {CAUSES[entry.cause].alone}"
    elif isinstance(entry, SizeWanted):
        text = f"{count_text(entry.size, 'node')} wanted ({entry.detail})"
    elif isinstance(entry, RoundFormed):
        text = f"round {entry.number} was formed without the agent that was killed"
    elif isinstance(entry, EpochStarted):
        text = "the job started again"
    return task_stopped_text(entry) if isinstance(entry, TaskStopped) else text


def _noticed(entry: object, fault: InjectedFault) -> str:
    """Return the text of the first record of a drill; SIGTERM alone passes for a preemption."""
    if (
        Cause.REQUEUE in fault.causes
        and isinstance(entry, DrainRequested)
        and entry.cause is Cause.PREEMPTION
    ):
        return f"{entry.detail or 'a signal'}, as when Slurm preempts: told by {entry.node}"
    return _told(entry)


def _perhaps(record: Record, fault: InjectedFault) -> str:
    """Return the possible reason of a failure of another worker than the one that was killed."""
    entry = record.entry
    is_near = isinstance(entry, RoundEnded) and (entry.cause, entry.number) == (Cause.CRASH, fault.round)
    if not is_near or record.at < fault.at or fault.rank is None or Cause.CRASH not in fault.causes:
        return ""
    return f", perhaps for want of rank {fault.rank}: no record says so"


def _who(entry: RoundEnded) -> str:
    nodes = ", ".join(entry.nodes)
    failure = entry.failure or {}
    if entry.cause is not Cause.CRASH or "rank" not in failure:
        return f" ({nodes})" if nodes else ""
    code = failure.get("exitcode", 0)
    how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit code {code}"
    return f" ({nodes}; rank {failure['rank']}, {how})"


def _running(formed: RoundFormed, begun: Mapping[int, int]) -> str:
    step = _step(formed, begun)
    begins = f"from step {step}" if step or formed.checkpoint else "from the beginning"
    if is_untold(formed.number, begun):
        begins = f"newest checkpoint: {f'step {step}' if formed.checkpoint else 'none'}"
    return f"round {formed.number} on {count_text(len(formed.members), 'node')}, {begins}"


def _step(formed: RoundFormed, begun: Mapping[int, int]) -> int:
    """Return the step that a round goes on from, as far as it is known."""
    return begun.get(formed.number, formed.checkpoint.step if formed.checkpoint else 0)


class InjectedFault(NamedTuple):
    """The deed of a drill, and its target.

    Attributes:
        causes: that the run may count it as.
        node: that it was done to.
        node_id: of the agent there.
        rank: the worker that it was done to; None: to the agent, or to all of them.
        round: the round whose processes were struck.
        at: when [s since the epoch], by the clock of the node or of the login node.
        last: number of the last record before it.
        step: the last step that was completed then, if workers tell.
        is_whole: whether it was done to all nodes of the job.
        id: its name in the records.
    """

    causes: frozenset[Cause]
    node: str
    node_id: str
    rank: int | None
    round: int
    at: float
    last: int
    step: int | None = None
    is_whole: bool = False
    id: str = ""

    @property
    def kills_agent(self) -> bool:
        """Whether the agent of the node is gone."""
        return Cause.NODE_LOSS in self.causes


def is_trace(entry: object, fault: InjectedFault, rest: Sequence[Record]) -> bool:
    """Tell whether a record is the first that tells of a drill."""
    if isinstance(entry, RoundEnded):
        return entry.number >= fault.round and _is_end(entry, fault, rest)
    if isinstance(entry, DrainRequested | NodeLeft):
        joins_again = fault.kills_agent and entry.cause is Cause.MEMBERSHIP and entry.node == fault.node
        return joins_again or (entry.cause in fault.causes and (fault.is_whole or entry.node == fault.node))
    if isinstance(entry, Drained | Requeued):
        return entry.cause in fault.causes
    if isinstance(entry, RoundFormed):
        ids = [member.node_id for member in entry.members]
        return fault.kills_agent and entry.number > fault.round and fault.node_id not in ids
    # without an agent srun may end, and the job is started again
    return isinstance(entry, EpochStarted) and (fault.kills_agent or Cause.REQUEUE in fault.causes)


def _is_end(entry: RoundEnded, fault: InjectedFault, rest: Sequence[Record]) -> bool:
    if (
        fault.kills_agent and entry.cause is Cause.CRASH
    ):  # workers of the others fail first, for want of a peer
        formed = next((one.entry for one in rest if isinstance(one.entry, RoundFormed)), None)
        return formed is not None and fault.node in formed.lost
    if entry.cause not in fault.causes:
        return False
    if fault.rank is None:
        return fault.is_whole or fault.node in entry.nodes
    failure = entry.failure or {}
    if entry.number != fault.round:
        return False
    if entry.cause is Cause.CRASH:
        return failure.get("rank") == fault.rank and failure.get("exitcode") in _KILLED
    return fault.node in entry.nodes or failure.get("rank") == fault.rank


def is_undecided(entry: object, fault: InjectedFault) -> bool:
    """Tell whether only the next round will show the subject of a record, as long as none tells of the drill.

    When an agent is killed, workers of the others may fail before anybody misses it.
    """
    return fault.kills_agent and isinstance(entry, RoundEnded) and entry.cause is Cause.CRASH


def is_trace_after(entry: object, notice: object, fault: InjectedFault) -> bool:
    """Tell whether a record follows from a drill that was noticed, by its cause.

    Args:
        entry: of the record.
        notice: the entry that was the first to tell of the drill.
        fault: the drill.
    """
    if isinstance(entry, EpochStarted | RoundFormed | RunEnded):
        return True
    cause = getattr(entry, "cause", None)
    node = getattr(entry, "node", fault.node)
    if isinstance(entry, NodeLeft | DrainRequested) and not fault.is_whole and node != fault.node:
        return False
    if isinstance(entry, DrainExplained) and cause is not Cause.LAUNCH_FAILURE:
        return cause in fault.causes
    return cause in fault.causes or cause is getattr(notice, "cause", None)


def is_stop_of_task(entry: object, fault: InjectedFault) -> bool:
    """Tell whether a record says that all workers have stopped of the one task that a signal has asked for.

    Its agent leaves when they have, or ends the round if those of the others have stopped by then.
    """
    if fault.is_whole or fault.rank is not None or fault.kills_agent:
        return False
    if isinstance(entry, NodeLeft):
        return entry.node_id == fault.node_id
    if not isinstance(entry, RoundEnded) or entry.number != fault.round:
        return False
    return entry.cause in fault.causes and entry.nodes == (fault.node,)


class Judgement(NamedTuple):
    """The verdict of a drill on the time to save.

    Attributes:
        text: the times, for people.
        but: the fault, as the end of a sentence; empty if the time suffices.
    """

    text: str
    but: str = ""


def judge(course: Course, site: Site, given_s: float | None = None) -> Judgement | None:
    """Compare the time that workers took with that of a preemption; None while they take it.

    Args:
        course: of the run after the drill.
        site: the times that Slurm grants the job.
        given_s: ``--stop-timeout`` of the run, which precedes Slurm's times [s]; None: not given.
    """
    names = (_SAVED, _STOPPED) if course.agreed else (_STOPPED,)
    done = [phase for phase in course.phases if phase.name in names]
    if not done and course.resumed is None:
        return None
    limit_s = site.grace_s + (site.kill_wait_s if given_s is not None else stop_s(site))
    own_s = DrainTimes().stop if given_s is None else given_s
    leaves = f"a preemption leaves {limit_s:g} s to save ({_of_what(site, given_s)})"
    if not done or course.had_nothing_to_save:
        return _shows_nothing(leaves, course)
    first = min(done, key=lambda phase: phase.after_s)
    took = f"{leaves}; {first.name} after {first.after_s:.1f} s"
    if first.after_s > limit_s:
        late = "a preemption would have ended its workers before they had saved"
        return Judgement(f"{took}: TOO LATE", late)
    if first.after_s < own_s:
        return Judgement(f"{took}: in time")
    if given_s is not None:
        by_flag = f"--stop-timeout {given_s:g} has ended its workers, as it would in a preemption"
        return Judgement(f"{took}: TOO LATE for --stop-timeout {given_s:g}", by_flag)
    return Judgement(
        f"{took}: NOT KNOWN, as this drill leaves {own_s:g} s only",
        f"its workers were ended after {own_s:g} s, before it was known whether they save in time",
    )


def _shows_nothing(leaves: str, course: Course) -> Judgement:
    """Say why this drill does not tell how long a save takes."""
    if course.had_nothing_to_save:
        nothing = "the workers had completed no step since the last checkpoint"
        return Judgement(f"{leaves}; {nothing}", f"{nothing}: drill again when they have, to see them save")
    unknown = "when the workers had stopped is not on record"
    return Judgement(f"{leaves}; {unknown}", f"{unknown}, so it has not shown that they save in time")


def _of_what(site: Site, given_s: float | None) -> str:
    grace = f"GraceTime {site.grace_s:g} s and " if site.grace_s else ""
    granted = f"{grace}KillWait {site.kill_wait_s:g} s"
    if given_s is not None:
        return granted
    return f"{granted}, less {margin_s(site.kill_wait_s):g} s for the end of the agents"
