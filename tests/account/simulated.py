"""Histories of runs from a seed: what happened by one true clock, and what the nodes wrote by theirs."""

from __future__ import annotations

import random
from typing import NamedTuple

from hpc_elastic.account.facts import Doing, WorkFact, encode_fact, parse_facts
from hpc_elastic.account.in_order import SubmitTime
from hpc_elastic.account.spans import History
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from tests.account.reference import Told

BEGAN = 1_700_000_000.0
_TICK = 0.125  # all times are multiples of it, so that no rounding of a writer changes them
_ENDS = (Decision.DONE, Decision.FAILED, Decision.HELD)


class Trouble(NamedTuple):
    """What is wrong with the writers of a history."""

    skewed: bool = False  # one node's clock is an hour ahead from the start
    steps: bool = False  # the clock of the first node is set wrong and right again while its agent lives
    torn: bool = False  # lines are torn


NO_TROUBLE = Trouble()


class Simulated:
    """One history, made from a seed; see its attributes.

    Attributes:
        told: the events on the true clock.
        failed: whether the run has failed in the end.
        nodes: the names of all nodes.
    """

    def __init__(self, seed: int, trouble: Trouble = NO_TROUBLE) -> None:
        self._random = random.Random(seed)
        self._trouble = trouble
        self.nodes = [f"n{number}" for number in range(1, self._random.randint(2, 5))]
        self.told: list[Told] = []
        self.failed = False
        self._now = BEGAN
        self._records: list[Record] = []
        self._lines: dict[str, bytes] = {}
        self._submissions: list[SubmitTime] = []
        self._ahead = dict.fromkeys(self.nodes, 0.0)
        if trouble.skewed:
            self._ahead[self._random.choice(self.nodes[1:] or self.nodes)] = 3600.0
        self._rounds = 0
        self._agents = 0
        self._step = self._saved = 0
        self._last_saving_s = 0.0  # of the newest round
        self._submit()

    @property
    def wall_s(self) -> float:
        """How long the run took by the true clock [s]."""
        return self._now - BEGAN

    def history(self) -> History:
        """Return what an account is made from."""
        facts = [fact for data in self._lines.values() for fact in parse_facts(data)]
        return History(self._records, facts, self._submissions, self._saved or None)

    # the story

    def _submit(self) -> None:
        self._submissions.append(SubmitTime(0, self._now))
        self._tell("submit")
        for restart in range(self._random.randint(1, 4)):
            self._pass(1, 600)
            ending = self._start(Epoch(0, 0, restart, 0))
            if ending is not None:
                return
        self._end(self._random.choice(_ENDS))

    def _start(self, epoch: Epoch) -> Decision | None:
        self._agents += 1
        self._tell("rdzv_start")
        self._write(EpochStarted(epoch, "7", tuple(self.nodes)), self.nodes[0])
        for _ in range(self._random.randint(1, 4)):
            how = self._round(epoch)
            if how == "done":
                return self._end(Decision.DONE, self.nodes[0], Role.AGENT)
            if how == "drain":
                self._requeue(epoch)
                return None
            if how == "vanish":
                return None
        if self._random.random() < 0.3:
            return self._end(Decision.FAILED)
        self._requeue(epoch)
        return None

    def _round(self, epoch: Epoch) -> str:
        how = self._random.choice(("crash", "crash", "loss", "drain", "vanish", "done"))
        self._pass(0.5, 30)
        self._rounds += 1
        members = self.nodes[: self._random.randint(1, len(self.nodes))]
        checkpoint = MarkedCheckpoint(self._saved, None) if self._saved else None
        crew = tuple(Member(f"{name}.{self._agents}", name, 8) for name in members)
        self._write(RoundFormed(self._rounds, epoch, crew, "n1", 1, checkpoint), members[0])
        self._tell("formed")
        for doing in (Doing.STARTED, Doing.IMPORTED):
            self._pass(0.1, 20)
            self._fact(members, doing)
        self._work(members, how)
        self._over(epoch, members, how)
        return how

    def _work(self, members: list[str], how: str) -> None:
        step_s, saving_s = max(_TICK, self._some(0.1, 8)), 0.0
        self._step = self._saved
        steps = self._random.randint(1, 40)
        for number in range(1, steps + 1):
            self._now += step_s
            self._step += 1
            self._tell("first_step" if number == 1 else "tick")
            if number in (1, steps) or self._random.random() < 0.3:
                self._fact(members, Doing.STEP, saving_s)
            if self._trouble.steps and self._random.random() < 0.1:
                self._ahead[members[0]] += self._random.choice((-3600.0, 3600.0, 30.0))
            if number < steps and self._random.random() < 0.1:
                saving_s += self._save()
        if self._trouble.steps:
            self._ahead[members[0]] = 0.0
        self._last_saving_s = saving_s
        if how == "vanish":
            self._pass(1, 300)

    def _save(self) -> float:
        began = self._now
        self._tell("ckpt_begin")
        self._pass(0.5, 10)
        self._saved = self._step
        self._tell("ckpt_end")
        return self._now - began

    def _over(self, epoch: Epoch, members: list[str], how: str) -> None:
        if how == "vanish":
            self.told.append(Told(self._now, "vanished"))
            return
        if how == "drain":
            self._write(DrainRequested(Cause.PREEMPTION, members[0], AfterDrain.LEAVE, "", epoch), members[0])
            self._tell("drain_begin")
            self._pass(0.5, 20)
            self._fact(members, Doing.GONE, self._last_saving_s)
            self._write(Drained(epoch, Cause.PREEMPTION, self._saved, ""), members[0])
            return
        if how == "done":
            self._tell("finished")
            self._pass(0.5, 5)
            return
        self._pass(0.5, 60)
        cause = Cause.CRASH if how == "crash" else Cause.NODE_LOSS
        self._write(RoundEnded(self._rounds, cause, (members[-1],), None, self._saved), members[-1])
        self._tell("failure_detected")
        self._pass(0.1, 10)
        self._fact(members, Doing.GONE, self._last_saving_s)
        self._tell("workers_stopped")

    def _requeue(self, epoch: Epoch) -> None:
        self._pass(0.1, 5)
        self._write(Requeued(epoch, Cause.PREEMPTION), "batch", Role.SCRIPT)
        self._tell("requeue")

    def _end(self, decision: Decision, by: str = "batch", role: Role = Role.SCRIPT) -> Decision:
        self.failed = decision in (Decision.FAILED, Decision.HELD)
        self._write(RunEnded(decision, 0, "", None), by, role)
        self._tell("job_end")
        return decision

    # what is written

    def _some(self, least: float, most: float) -> float:
        return round(self._random.uniform(least, most) / _TICK) * _TICK

    def _pass(self, least: float, most: float) -> None:
        self._now += max(_TICK, self._some(least, most))

    def _tell(self, kind: str) -> None:
        self.told.append(Told(self._now, kind, self._step))

    def _write(self, entry: Entry, by: str, role: Role = Role.AGENT) -> None:
        at = self._now + self._ahead.get(by, 0.0)
        self._records.append(Record(len(self._records) + 1, at, by, entry, role))

    def _fact(self, members: list[str], doing: Doing, saving_s: float = 0.0) -> None:
        for name in members[:2]:
            at, mono = self._now + self._ahead[name], self._now - BEGAN + 5000
            step = self._step if doing is Doing.STEP else None
            agent = f"{name}.{self._agents}"
            fact = WorkFact(self._rounds, doing, at, mono, agent, len(self._records), step, saving_s)
            line = encode_fact(fact)
            if self._trouble.torn and self._random.random() < 0.1:
                line = line[: self._random.randint(1, len(line) - 1)] + b"\n"
            self._lines[name] = self._lines.get(name, b"") + line
