"""One schedule of endings in array mode: tasks that end one by one or all at once, and begin anew."""

from __future__ import annotations

from functools import partial

from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record.journal import Cause
from hpc_elastic.slurm.end.choices import RequeueBudgets
from tests.simulation.endings.array_truth import ArrayTruth
from tests.simulation.endings.controller import DELAY_S, NODES, Job
from tests.simulation.endings.scenario import FAULTS, RELEASE_S, EndingChances, Endings
from tests.simulation.endings.starts import JobStart
from tests.simulation.endings.tasks import StartOfTask
from tests.simulation.mount import Weather
from tests.simulation.world import Node

ARRAY = "17"
ALL = "of all tasks: "  # before a fault that comes to all of them at once
_CLUSTER = (*NODES, "n5", "n6")
_APART_S = 0.5  # between the same fault of two tasks [s]


class ArrayEndings(Endings):
    """A run of several tasks from its submission until nothing more happens by itself.

    Args:
        seed: decides everything.
        chances: how rough the world is.
        is_verbose: as in `Scenario`; the story is always whole.
    """

    most_starts = 20
    most_s = 1500.0

    def __init__(self, seed: int, chances: EndingChances, *, is_verbose: bool = False) -> None:
        super().__init__(seed, chances, is_verbose=is_verbose)
        dice = self.world.random
        self.size, self.tasks = 1, dice.choice((2, 2, 3))
        self.least = dice.randint(1, self.tasks)
        self.work_s = dice.uniform(20.0, 40.0)
        self.numbers = 0  # of agents so far
        self.settings = MeetingSettings(
            self.least, self.tasks, join_timeout=60.0, last_call_timeout=5.0, may_outgrow=True
        )
        self.place.describe(f"{self.least}:{self.tasks}")
        self.controller.nodes, self.controller.has_own_nodes = _CLUSTER, True
        self._is_released: bool | None = None  # the user releases a held run; None: it was not held

    def _truth(self) -> ArrayTruth:
        return ArrayTruth(self)

    def _budgets(self) -> RequeueBudgets:
        return super()._budgets()._replace(max_starts_without_save=0)  # such agents tell no steps

    def _begin(self) -> None:
        world = self.world
        world.tell(f"budgets: {self.budgets}")
        world.tell(f"{self.site}, {self.least} to {self.tasks} tasks")
        may_requeue = self.budgets.max_requeues != 0
        for index in range(self.tasks):
            task = Job(f"{ARRAY}_{index}", 1, may_requeue=may_requeue)
            world.at(world.random.uniform(0.0, 1.0), partial(self.controller.submit, task))
        if world.random.random() < self.chances.away:
            self._goes_away()

    def _new_start(self, job: Job) -> JobStart:
        return StartOfTask(self, job, 0)

    def _check_turn(self, node: Node) -> None:
        super()._check_turn(node)
        if self.truth.ending is None:
            self._is_released = None

    def _held(self, job: Job) -> None:
        """Have the user release all tasks of a held run, or none."""
        start = self.starts_of(job.line)[-1]
        if start.is_seen_held:
            return
        start.is_seen_held = True
        if self._is_released is None:
            self._is_released = self.world.random.random() < 0.5
        if self._is_released:
            at = self.world.now + self.site.kill_wait_s + RELEASE_S + 2 * DELAY_S
            self.world.at(at, lambda: self.controller.release(job))

    # faults

    def _cause(self, kind: str, start: JobStart) -> None:
        if not kind.startswith(ALL):
            super()._cause(kind, start)
            return
        for line in list(self._starts.values()):
            at = self.world.now + self.world.random.uniform(0.0, _APART_S)
            self.world.at(at, partial(super()._cause, kind.removeprefix(ALL), line[-1]))

    def lose_one(self, start: JobStart) -> None:
        """Lose the only node of a task."""
        self.lose_all(start)

    def succeed(self, start: JobStart) -> None:
        """Do nothing: a run is done when the workers of all tasks are."""

    def cancel(self, start: JobStart) -> None:
        """The user takes a task away, at a moment at which no other end of it is under way."""
        if not start.causes - {Cause.STOP}:
            super().cancel(start)


_KINDS = (
    "all nodes are lost",
    "preempted",
    "a grace begins",
    "the time limit",
    "requeued by hand",
    "the agents are killed",
    "the script is killed",
    "a line of the script fails",
)
_OF_ALL = tuple(
    ALL + kind for kind in ("all nodes are lost", "preempted", "a grace begins", "the time limit")
)
assert {kind.removeprefix(ALL) for kind in (*_KINDS, *_OF_ALL)} <= set(FAULTS)
ARRAY_ENDINGS = {
    "array endings": EndingChances((*_KINDS, *_OF_ALL, "cancelled", "the user stops the run"), away=0.1),
    "array endings losses": EndingChances(
        ("all nodes are lost", ALL + "all nodes are lost", "the agents are killed"), in_finish=0.1
    ),
    "array endings preempted": EndingChances(
        ("preempted", ALL + "preempted", ALL + "a grace begins", "requeued by hand", ALL + "the time limit"),
        in_finish=0.1,
    ),
    "array endings in finish": EndingChances(
        ("all nodes are lost", "preempted", "requeued by hand", "a grace begins"), in_finish=0.9, away=0.3
    ),
    "array endings stall": EndingChances(
        ("preempted", "a grace begins", "the time limit", "the directory stalls"), further=1.0
    ),
    "array endings rough": EndingChances(
        (*_KINDS, *_OF_ALL, "cancelled", "the directory stalls"),
        away=0.2,
        weather=Weather(lost_reply=0.02, late=0.002),
    ),
}
