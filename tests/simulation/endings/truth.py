"""The promises about the ends of starts, checked against what the simulation has done itself.

Nothing here shares a rule with the code: starts are counted as Slurm has begun them, and their causes are
those of the faults. Only the records are read with the real code.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.record import journal
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    DrainRequested,
    Entry,
    EpochStarted,
    NodeUnfit,
    Requeued,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.progress import BEGINNING
from tests.simulation.broken import BrokenError
from tests.simulation.endings.controller import Accounting
from tests.simulation.mount import Mount

if TYPE_CHECKING:
    from tests.simulation.endings.scenario import Endings
    from tests.simulation.endings.starts import JobStart

LOST_AGAIN = 2  # starts whose record names a node
GRACE_SEEN_S = (
    1.0  # so long after its begin a script can know of a grace [s]: longer than a question to Slurm
)
ONCE = "each start is counted once"
TRUE_CAUSE = "under its cause"
_REFUSED = "no refused job changes the run"
_GRACE = "no start begins in a grace"
WITHIN_BUDGET = "a budget of N allows N"
_CANCELLED = "a cancelled job stays away"
_WHOLE = (None, Budget.REQUEUES, Budget.STARTS_WITHOUT_SAVE)  # a release from these gives all requeues back
_LEFT_OUT = "a node that is lost again is left out"
GOES_ON = "a run that may go on does"
_STOPPED = "a run that its user stops begins no more"
BY_BUDGET = {
    Budget.NODE_LOSSES: Cause.NODE_LOSS,
    Budget.PREEMPTIONS: Cause.PREEMPTION,
    Budget.TIME_LIMITS: Cause.TIME_LIMIT,
    Budget.LAUNCH_FAILURES: Cause.LAUNCH_FAILURE,
}


class _OfStart:
    """Tells the truth of the records that the processes of one start have written."""

    def __init__(self, truth: Truth, start: JobStart) -> None:
        self._truth = truth
        self._start = start

    def appended(self, mount: Mount, number: int, value: bytes) -> None:
        """A record was created."""
        entry = journal.parse_all([(number, value)])[0].entry
        self._truth.run.world.counts[type(entry).__name__] += 1
        self._truth.run.world.tell(f"record {number} by {mount.node.name}: ", entry)
        self._truth.written(self._start, entry)

    def promised(self, number: int, value: bytes) -> None:
        """A process was told that its record was created."""


class Truth:
    """Watches one schedule.

    Args:
        run: it.
    """

    def __init__(self, run: Endings) -> None:
        self.run = run
        self.owner = ""  # the job whose agents were first
        self.ending: RunEnded | None = None
        self._lost: Counter[str] = Counter()  # nodes that the records of unwritten ends name
        self.counted: dict[tuple[int, int, int], list[Cause]] = {}  # by their place among the starts
        self._tells = False  # the program is known to mark its saves
        self._is_stopped = False  # the user has wished for it

    def observer(self, start: JobStart) -> _OfStart:
        """Return who is told of the records of one start."""
        return _OfStart(self, start)

    # the owner

    def has_run(self, start: JobStart) -> bool:
        """Tell whether the run is that of the job of a start."""
        return start.job.line == self.owner

    def commanded(self, start: JobStart, what: str, job_ref: str) -> None:
        """Note a command to Slurm that changes a job."""
        self.run.world.tell(f"{start.name}: {what} {job_ref}")
        if self.owner and start.job.line != self.owner and not self._is_over:
            raise BrokenError(_REFUSED, f"{start.name} has Slurm {what} job {job_ref}")

    @property
    def _is_over(self) -> bool:
        return self.ending is not None and self.ending.decision is not Decision.HELD

    def written(self, start: JobStart, entry: Entry) -> None:
        """Check a record."""
        if self.owner and start.job.line != self.owner and not self._is_over:
            raise BrokenError(_REFUSED, f"{start.name} writes {entry}")
        match entry:
            case EpochStarted():
                self._began(start, entry)
            case Requeued():
                self._requeued(entry)
            case RoundFormed():
                self._works(start, entry)
            case RunEnded():
                self._ended(start, entry)
            case _:
                self._noted(start, entry)

    def _noted(self, start: JobStart, entry: Entry) -> None:
        match entry:
            case StopAgreed():
                self._tells = True
            case DrainRequested(Cause.STOP):
                self._is_stopped = True
            case NodeUnfit():
                start.is_unfit = True
                self._lost[entry.node] = 0  # a kill before the job is handed back hides that
                start.causes.add(Cause.NODE_LOSS)
            case _:
                pass

    def _began(self, start: JobStart, entry: EpochStarted) -> None:
        if entry.epoch.script == start.key:
            self.ending = None
            start.is_recorded = True
        self.owner = start.job.line

    # each start is counted once, under its cause

    def _requeued(self, entry: Requeued) -> None:
        key = entry.epoch.script
        counted = self.counted.setdefault(key, [])
        counted.append(entry.cause)
        if len(counted) > 1:
            raise BrokenError(ONCE, f"start {key} is counted for {counted}")
        start = next(one for one in self.run.starts_of(self.owner) if one.key == key)
        if entry.cause not in start.causes | self._guesses(start):
            raise BrokenError(TRUE_CAUSE, f"{start.name} ended for {sorted(start.causes)}, not {entry.cause}")
        if entry.nodes and not set(entry.nodes) <= set(start.nodes):
            raise BrokenError(TRUE_CAUSE, f"{entry.nodes} were none of its nodes")
        self._lost.update(entry.nodes)

    def _guesses(self, start: JobStart) -> set[Cause]:
        """Return causes that a start may be counted for though they are wrong: nothing tells the true one."""
        site, found = self.run.site, {Cause.AGENT_ERROR, Cause.LAUNCH_FAILURE} & start.causes
        if Cause.LAUNCH_FAILURE in found:  # accounting has a script that was killed as failed
            found.add(Cause.UNKNOWN)
        if start.was_signalled:
            found |= set() if self._is_told(start) else {Cause.PREEMPTION}
        if not self._is_told(start):
            found.add(Cause.UNKNOWN)
            found |= set() if site.keeps_preempt_time else {Cause.REQUEUE}
        return found

    def _is_told(self, start: JobStart) -> bool:
        """Tell whether Slurm names the cause of the end of a start to who asks later."""
        site = self.run.site
        is_accounted = site.accounting is Accounting.WHOLE and self.run.controller.away_until < 0
        is_silent = bool({Cause.NODE_LOSS, Cause.LAUNCH_FAILURE} & start.causes)  # as to the log
        return is_accounted or (site.keeps_log and not is_silent)

    # budgets

    def _works(self, start: JobStart, entry: RoundFormed) -> None:
        if start.began_from is None:
            start.began_from = entry.checkpoint.step if entry.checkpoint is not None else BEGINNING
        if self._is_stopped:
            raise BrokenError(_STOPPED, f"{start.name} works")
        before = self.run.starts_of(start.job.line)[: start.index]
        for one in before:
            if not one.held and len(self._counted(one)) != 1 and not self._left_nothing(one):
                raise BrokenError(ONCE, f"{one.name} is not counted as start {start.index} begins")
        self._within(start, before)
        bad = [name for name in start.nodes if self._lost[name] >= LOST_AGAIN]
        if bad and self.run.controller.away_until < 0 and not self.run.chances.chain:
            raise BrokenError(_LEFT_OUT, f"{start.name} works on {bad}: {dict(self._lost)}")

    def _left_nothing(self, start: JobStart) -> bool:
        """Tell whether nothing shows that a job of a chain has run: it may have been cancelled before."""
        is_accounted = self.run.site.accounting is Accounting.WHOLE and self.run.controller.away_until < 0
        has_log = self.run.site.keeps_log and start.index > 0
        return bool(self.run.chances.chain) and not (start.is_recorded or is_accounted or has_log)

    def _counted(self, start: JobStart) -> list[Cause]:
        return self.counted.get(start.key, [])

    def _within(self, start: JobStart, before: list[JobStart]) -> None:
        """Check that a start may begin after others."""
        budgets = self.run.budgets
        if (used := self._requeues(before)) > budgets.max_requeues:
            raise BrokenError(
                WITHIN_BUDGET, f"{start.name} begins after {used} of {budgets.max_requeues} requeues"
            )
        for budget, cause in BY_BUDGET.items():
            bound = budgets.of(cause)
            own = [one for one in before if self._counted(one) == [cause] and not one.is_unfit]
            used = sum(not self._released(one, (budget, *_WHOLE)) for one in own)
            if bound is not None and used > bound[0]:
                raise BrokenError(WITHIN_BUDGET, f"{start.name} begins after {used} of {budget.value}")
        most = budgets.max_starts_without_save
        if most and (used := self._vain(start, before)) >= most:
            raise BrokenError(WITHIN_BUDGET, f"{start.name} begins after {used} starts that saved nothing")

    def _requeues(self, before: list[JobStart], *, most: bool = False) -> int:
        """Return how many starts count as requeues; a release gives those back that its budget has counted.

        Args:
            before: the starts.
            most: count those that may not be given back: the round of a lost node may have counted instead.
        """
        used = 0
        for one in before:
            causes = self._counted(one)
            own = [budget for budget, cause in BY_BUDGET.items() if [cause] == causes and not most]
            used += not (one.held or self._released(one, (*own, *_WHOLE)))
        return used

    def _released(self, start: JobStart, budgets: tuple[Budget | None, ...]) -> bool:
        """Tell whether the run was held for one of these budgets since a start began."""
        later = self.run.starts_of(start.job.line)[start.index :]
        return any(one.held and one.held_for in budgets for one in later)

    def _vain(self, start: JobStart, before: list[JobStart]) -> int:
        """Return how many starts in a row before a start have saved nothing."""
        if not self._tells:
            return 0
        held = max([one.index + 1 for one in before if one.held], default=0)
        ran = [one for one in before[held:] if one.began_from is not None]
        if not ran:
            return 0
        ends = [*(one.began_from for one in ran[1:]), start.began_from]
        count = 0
        for one, after in zip(reversed(ran), reversed(ends), strict=True):
            assert one.began_from is not None
            assert after is not None
            if after > one.began_from:
                break
            count += 1
        return count

    def _ended(self, start: JobStart, entry: RunEnded) -> None:
        self.ending = entry
        if entry.budget is not None:
            self._is_spent(start, entry.budget)
        if entry.decision is Decision.HELD:
            start.held, start.held_for = True, entry.budget
            self._lost.clear()  # its user may release it for the same nodes; so may a kill before the hold

    def _is_spent(self, start: JobStart, budget: Budget) -> None:
        """Check that a budget for which a run is held or ended is really spent."""
        before, budgets = self.run.starts_of(start.job.line)[: start.index], self.run.budgets
        if budget is Budget.REQUEUES and (used := self._requeues(before, most=True)) < budgets.max_requeues:
            raise BrokenError(WITHIN_BUDGET, f"held after {used} of {budgets.max_requeues} requeues")
        cause = BY_BUDGET.get(budget)
        bound = None if cause is None else budgets.of(cause)
        if cause is None or bound is None:
            return
        maybe = [one for one in (*before, start) if cause in one.causes | self._guesses(one)]
        most = sum(not self._released(one, (budget,)) for one in maybe)
        if most <= bound[0]:
            raise BrokenError(WITHIN_BUDGET, f"held after {most} times {cause.value}, of {bound[0]}")

    # Slurm

    def agents_begin(self, start: JobStart) -> None:
        """Check that srun may be called; while Slurm is away nothing tells of a grace."""
        job, now = start.job, self.run.world.now
        if now < self.run.controller.away_until:
            return
        if job.in_grace and job.preempt_time is not None and now - job.preempt_time > GRACE_SEEN_S:
            raise BrokenError(
                _GRACE, f"{start.name}: agents begin {now - job.preempt_time:.1f} s into a grace"
            )

    def job_begins(self, start: JobStart) -> None:
        """Check that Slurm may start a job."""
        if start.job.cancelled_at is not None:
            raise BrokenError(_CANCELLED, f"{start.name} begins")
        if self.run.budgets.max_requeues == 0 and start.restart:
            raise BrokenError(WITHIN_BUDGET, f"{start.name} begins, and it may not be requeued")

    def check_end(self) -> None:
        """Check that a run that has not ended was kept from going on."""
        jobs = [one for one in self.run.controller.jobs.values() if one.line == self.owner]
        if self._is_over or not all(one.is_over and one.cancelled_at is None for one in jobs):
            return
        for job in jobs:
            if job.word == "CANCELLED":
                raise BrokenError(GOES_ON, f"job {job.ref} was taken out of the queue")
            last = self.run.starts_of(job.line)[-1]
            if job.may_requeue and not last.is_disturbed:
                raise BrokenError(GOES_ON, f"job {job.ref} is {job.word}, and nobody was killed")
