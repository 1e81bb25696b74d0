"""The promises about the ends of starts in array mode, checked against what the simulation has done itself.

A cause is counted with the round that it ends, so that tasks that end together are counted once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    DrainExplained,
    DrainRequested,
    Entry,
    EpochStarted,
    NodeLeft,
    NodeUnfit,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopKind,
    TaskStopped,
)
from tests.simulation.broken import BrokenError
from tests.simulation.endings.truth import BY_BUDGET, GOES_ON, ONCE, TRUE_CAUSE, WITHIN_BUDGET, Truth

if TYPE_CHECKING:
    from tests.simulation.endings.array import ArrayEndings
    from tests.simulation.endings.starts import JobStart

_ALONE = "finish of one task concerns that task alone"
_LEASE_S = 12.0  # after which others may have given an agent up that is out of reach [s]
_SIGNALLED = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE, Cause.CANCEL)


class ArrayTruth(Truth):
    """Watches one schedule of an array.

    Args:
        run: it.
    """

    run: ArrayEndings

    def __init__(self, run: ArrayEndings) -> None:
        super().__init__(run)
        self.used: Counter[Cause] = Counter()  # how often each cause has ended a round, or the run's start
        self.requeues = 0  # of the run as a whole
        self._round: RoundFormed | None = None  # that runs
        self._formed_at = 0.0
        self._last: Cause | None = None  # that has ended the newest round
        self._drain: Cause | None = None
        self._for_budget = False  # the drain is that of a script that has found a budget spent
        self._left: set[str] = set()
        self.given_up: set[str] = set()  # tasks

    # the records

    def has_run(self, start: JobStart) -> bool:  # noqa: ARG002 - the run is that of all tasks
        """Tell whether the run is that of the job of a start."""
        return True

    def written(self, start: JobStart, entry: Entry) -> None:
        """Check a record."""
        match entry:
            case EpochStarted():
                self._new_epoch(start)
            case NodeLeft():
                self._node_left(entry)
            case RoundEnded():
                self._round_ended(entry)
            case Requeued():
                self._whole_requeued(entry)
            case RunEnded():
                self._run_ended(entry)
            case _:
                self._told(start, entry)

    def _told(self, start: JobStart, entry: Entry) -> None:
        """Take note of a record that ends nothing."""
        match entry:
            case RoundFormed():
                self._round, self._drain, self._last = entry, None, None
                self._formed_at, self._left = self.run.world.now, set()
            case DrainRequested():
                self._drain, self._for_budget = entry.cause, entry.budget is not None
            case DrainExplained() if self._drain is Cause.PREEMPTION:
                self._drain = entry.cause
            case NodeUnfit():
                start.causes.add(Cause.NODE_LOSS)
            case TaskStopped(how=StopKind.GIVEN_UP):
                self.given_up.add(entry.task)
            case TaskStopped():
                start.held = True
            case _:
                pass

    def _new_epoch(self, start: JobStart) -> None:
        start.is_recorded = True
        held, self.ending = self.ending, None
        self._round = self._drain = self._last = None
        if held is None or held.decision is not Decision.HELD:
            return
        cause = BY_BUDGET.get(held.budget) if held.budget is not None else None
        if cause is None:
            self.requeues = 0
        else:
            self.used[cause] = 0

    def _start_of(self, node_id: str) -> JobStart | None:
        known = start_of(node_id)
        starts = [] if known is None else self.run.starts_of(known.task)
        return next((one for one in starts if known is not None and one.restart == known.restart), None)

    # each end under its cause

    def _node_left(self, entry: NodeLeft) -> None:
        start = self._start_of(entry.node_id)
        if start is None:
            return
        if entry.cause not in start.causes | self._guesses(start) | {Cause.MEMBERSHIP}:
            raise BrokenError(TRUE_CAUSE, f"{start.name} left for {sorted(start.causes)}, not {entry.cause}")
        members = set() if self._round is None else {one.node_id for one in self._round.members}
        if entry.node_id in self._left:
            raise BrokenError(ONCE, f"{start.name} has left twice")
        self._left.add(entry.node_id)
        if entry.node_id in members and (self._drain is None or members <= self._left):
            self._over(self._drain or entry.cause)

    def _guesses(self, start: JobStart) -> set[Cause]:
        """Return causes that a start may be counted for though they are wrong: nothing tells the true one."""
        found = super()._guesses(start)
        if start.was_signalled:  # the agent of a task leaves for what it has heard
            found |= {Cause.PREEMPTION}
        if Cause.PREEMPTION in start.causes and not start.job.may_requeue:
            found |= {Cause.CANCEL}  # a preemption without the grace of its partition looks so
        if found & {Cause.LAUNCH_FAILURE}:
            found |= {Cause.AGENT_ERROR}
        return found

    def _round_ended(self, entry: RoundEnded) -> None:
        formed = self._round
        if formed is None or formed.number != entry.number:
            raise BrokenError(ONCE, f"{entry} ends no round that runs")
        for name in entry.nodes:
            self._blamed(entry, name, [one.node_id for one in formed.members if one.node == name])
        self._over(entry.cause)

    def _blamed(self, entry: RoundEnded, name: str, agents: list[str]) -> None:
        """Check that a node is to blame for the end of a round; several tasks may have had it in turn."""
        starts = {agent: start for agent in agents if (start := self._start_of(agent)) is not None}
        is_lost = any(self._may_be_lost(start, agent) for agent, start in starts.items())
        if starts and entry.cause is Cause.NODE_LOSS and not is_lost:
            raise BrokenError(TRUE_CAUSE, f"{name} is not lost: {entry}")
        causes = {cause for start in starts.values() for cause in start.causes | self._guesses(start)}
        is_asked = entry.cause in _SIGNALLED and not self._for_budget
        if starts and is_asked and entry.cause not in causes:
            raise BrokenError(TRUE_CAUSE, f"{name} had {sorted(causes)}, not {entry.cause}")

    def _may_be_lost(self, start: JobStart, node_id: str) -> bool:
        """Tell whether others may take an agent of a start for lost."""
        known = start_of(node_id)
        is_gone = start.agents is None or start.agents.is_over or not start.is_current or start.has_gone
        is_gone |= known is not None and known.relaunch < start.relaunch
        if is_gone or start.agents is None:
            return True
        return max(start.stalled[1], start.agents.disturbed_until) > self.run.world.now - _LEASE_S

    def _over(self, cause: Cause) -> None:
        self.used[cause] += 1
        self._round, self._last = None, cause
        self._for_budget = False

    def _whole_requeued(self, entry: Requeued) -> None:
        self.requeues += 1
        is_counted = entry.cause is Cause.NODE_LOSS and self._last is Cause.NODE_LOSS
        self.used[entry.cause] += not is_counted

    # budgets

    def _exceeded(self) -> list[Cause]:
        bounds = ((cause, self.run.budgets.of(cause)) for cause in BY_BUDGET.values())
        return [cause for cause, bound in bounds if bound is not None and self.used[cause] > bound[0]]

    def job_begins(self, start: JobStart) -> None:
        """Check that Slurm may start a task, and note whether a budget is exceeded by now."""
        super().job_begins(start)
        start.held = self.ending is not None and self.ending.decision is Decision.HELD
        start.is_over_budget = bool(self._exceeded()) and self.ending is None  # type: ignore[attr-defined]

    def agents_begin(self, start: JobStart) -> None:
        """Check that srun may be called."""
        super().agents_begin(start)
        if not start.has_looked or self.run.controller.away_until > 0 or self.ending is not None:
            return  # agents of a run that is held, or over, begin nothing
        if start.is_over_budget and self._exceeded():  # type: ignore[attr-defined]
            raise BrokenError(
                WITHIN_BUDGET, f"{start.name} begins after more than the budget of {self._exceeded()}"
            )
        most = self.run.budgets.max_requeues + sum(one.held for one in self.run.starts_of(start.job.ref))
        if start.restart > most:
            raise BrokenError(WITHIN_BUDGET, f"{start.name} begins, and it may be requeued {most} times")
        self._is_charged(start)

    def _is_charged(self, start: JobStart) -> None:
        """Check that no round runs with an agent of an earlier start of a task that has not left."""
        if self._round is None or self._formed_at >= start.born_at:
            return
        for one in self._round.members:
            known = start_of(one.node_id)
            is_older = known is not None and known.task == start.job.ref and known.restart < start.restart
            if is_older and one.node_id not in self._left:
                raise BrokenError(ONCE, f"{start.name} begins, and the round runs with {one.node_id}")

    def _run_ended(self, entry: RunEnded) -> None:
        self.ending = entry
        cause = None if entry.budget is None else BY_BUDGET.get(entry.budget)
        bound = None if cause is None else self.run.budgets.of(cause)
        if cause is not None and bound is not None and self.used[cause] <= bound[0]:
            raise BrokenError(
                WITHIN_BUDGET, f"held after {self.used[cause]} times {cause.value}, of {bound[0]}"
            )
        if entry.budget is Budget.REQUEUES and self.requeues < self.run.budgets.max_requeues:
            raise BrokenError(WITHIN_BUDGET, f"held after {self.requeues} requeues")

    # Slurm

    def commanded(self, start: JobStart, what: str, job_ref: str) -> None:
        """Note a command to Slurm that changes a task, or all of them."""
        self.run.world.tell(f"{start.name}: {what} {job_ref}")
        if job_ref != start.job.ref and not self._is_over:
            raise BrokenError(_ALONE, f"{start.name} has Slurm {what} {job_ref}")

    def check_end(self) -> None:
        """Check that a run that has not ended was kept from going on."""
        if self._is_over:
            return
        for job in self.run.controller.jobs.values():
            last = self.run.starts_of(job.ref)[-1]
            is_left = job.is_over and job.cancelled_at is None and job.ref not in self.given_up
            if is_left and job.may_requeue and not last.is_disturbed:
                raise BrokenError(GOES_ON, f"task {job.ref} is {job.word}, and no process was killed")
