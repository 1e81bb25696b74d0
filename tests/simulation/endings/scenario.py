"""One schedule of endings: jobs of a run, their faults, and their user, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from hpc_elastic.errors import StoreError
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, Role
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.job.spec import JobSpec
from tests.simulation.broken import BrokenError
from tests.simulation.endings.controller import Accounting, Controller, Job, Site
from tests.simulation.endings.place import Place
from tests.simulation.endings.starts import JobStart
from tests.simulation.endings.threads import simulated_threads
from tests.simulation.endings.truth import Truth
from tests.simulation.lock import LockFile
from tests.simulation.mount import Weather
from tests.simulation.world import Node, World

OWN, SECOND = "7", "8"
CHAIN = (OWN, "71", "72", "73")
MOST_STARTS = 9
ALL_LOST = "all nodes are lost"
MOST_S = 900.0
RELEASE_S = 3.0
_ALL = tuple(Accounting)


class EndingChances(NamedTuple):
    """How rough the world is."""

    kinds: tuple[str, ...]  # of the faults that end a start
    further: float = 0.3  # the chance of another one soon after
    in_finish: float = 0.3  # the chance of one while finish runs
    within_s: float = 12.0  # after a start begins
    second: float = 0.0  # the chance of a second job of the same script
    chain: int = 0  # jobs of the chain; 0: there is none
    away: float = 0.0  # the chance that Slurm does not answer for a while
    accounting: tuple[Accounting, ...] = _ALL
    logs: float = 0.8  # the chance that batch logs are kept
    saves: float = 0.7  # the chance that starts save before they are asked to
    weather: Weather = Weather()
    may_requeue: bool = True


class Endings:
    """A run from its submission until nothing more happens by itself.

    Args:
        seed: decides everything.
        chances: how rough the world is.
        is_verbose: as in `Scenario`; the story is always whole.
    """

    most_starts = MOST_STARTS
    most_s = MOST_S

    def __init__(self, seed: int, chances: EndingChances, *, is_verbose: bool = False) -> None:
        self.world = World(seed, is_verbose=is_verbose)
        self.world.on_turn = self._check_turn
        self.chances = chances
        self.weather = chances.weather
        self.lock = LockFile()
        self.place = Place()
        dice = self.world.random
        self.budgets = self._budgets()
        self.site = Site(
            kill_wait_s=dice.choice((3.0, 5.0, 10.0)),
            accounting=dice.choice(chances.accounting),
            keeps_log=dice.random() < chances.logs,
            keeps_preempt_time=dice.random() < 0.7,
        )
        self.size = dice.choice((1, 1, 2))
        self.place.describe(str(self.size))
        if chances.chain:
            self.place.describe_chain(CHAIN[: chances.chain])
        saves = dice.random() < chances.saves
        self.saves_after_s = (1.0, 5.0) if saves else (1e9, 1e9)
        self.save_takes_s = dice.choice(((0.1, 1.0), (1.0, 12.0)))
        self.controller = Controller(self.world, self.site, self._write, self._make)
        self.truth = self._truth()
        self._starts: dict[str, list[JobStart]] = {}
        self._number = 0  # of all starts
        self._process_of: dict[Node, JobStart] = {}  # that of agents, by their threads

    def _truth(self) -> Truth:
        return Truth(self)

    def _budgets(self) -> RequeueBudgets:
        dice = self.world.random
        return RequeueBudgets(
            max_requeues=max(dice.choice((0, 1, 1, 2, 3, 500)), self.chances.chain - 1),
            max_node_losses=dice.choice((0, 1, 2, 100)),
            max_preemptions=dice.choice((None, None, 0, 1, 2)),
            max_launch_failures=dice.choice((1, 3)),
            max_starts_without_save=dice.choice((0, 1, 2, 3)),
            holds=dice.random() < 0.8,
        )

    @property
    def story(self) -> str:
        """What has happened, to read when something went wrong."""
        return self.world.story

    def starts_of(self, job_ref: str) -> list[JobStart]:
        """Return the starts that a job, or the chain that begins with it, has had, the oldest first."""
        return self._starts.get(job_ref, [])

    def run(self) -> None:
        """Run until nothing more happens.

        Raises:
            AssertionError: something did not hold.
        """
        with simulated_threads(self.world, self._thread_begins):
            try:
                self._begin()
                while self._goes_on() and self.world.step():
                    pass
                if self._goes_on():
                    self.truth.check_end()
            finally:
                self.world.end()

    def _thread_begins(self, maker: Node, thread: Node) -> None:
        """Have a thread end with its process."""
        start = self._process_of[maker]
        self._process_of[thread] = start
        start.threads.append(thread)

    def agents_begin(self, start: JobStart, node: Node) -> None:
        """Take note of the process of the agents of a start."""
        self._process_of[node] = start

    def _goes_on(self) -> bool:
        if self.world.now > self.most_s:
            raise BrokenError("liveness", f"the run goes on after {self.world.now:.0f} s")
        return self._number <= self.most_starts

    def _begin(self) -> None:
        world, dice = self.world, self.world.random
        world.tell(f"budgets: {self.budgets}")
        world.tell(f"{self.site}, {self.size} nodes")
        spec = _spec(self.size, self.budgets.max_requeues)
        own = Job(OWN, self.size, may_requeue=spec.requeues and not self.chances.chain)
        world.at(0.0, partial(self.controller.submit, own))
        for name in CHAIN[1 : self.chances.chain]:
            own = Job(name, self.size, may_requeue=False, after=own)
            world.at(0.0, partial(self.controller.submit, own))
        if dice.random() < self.chances.second:
            other = Job(SECOND, self.size, may_requeue=spec.requeues)
            at = dice.uniform(0.0, dice.choice((2.0, 20.0)))
            world.at(at, lambda: self.controller.submit(other))
        if dice.random() < self.chances.away:
            self._goes_away()

    def _goes_away(self) -> None:
        """Have Slurm not answer for a while."""
        dice = self.world.random
        since = dice.uniform(0.0, 30.0)
        self.world.at(since, lambda: setattr(self.controller, "away_until", since + dice.uniform(5.0, 60.0)))

    # hooks of the controller

    def _write(self, job: Job, line: str) -> None:
        self.place.write(job.ref, line)

    def _make(self, job: Job) -> JobStart:
        if not self.site.keeps_log:
            self.place.lose_log(job.ref)
        start, line = self._new_start(job), self._starts.setdefault(job.line, [])
        start.index = len(line)
        line.append(start)
        self._number += 1
        self.truth.job_begins(start)
        start.on_finish = self._finish_begins
        self._plan(start)
        return start

    def _new_start(self, job: Job) -> JobStart:
        return JobStart(self, job, 0)

    def _check_turn(self, node: Node) -> None:
        if node.error is not None:
            raise node.error
        for job in self.controller.jobs.values():
            if job.is_held and job.word == "PENDING":
                self._held(job)

    def _held(self, job: Job) -> None:
        """Have the user release a held job, or leave it."""
        start = self.starts_of(job.line)[-1]
        if not start.is_seen_held:
            start.is_seen_held = True
            if self.world.random.random() < 0.5:
                self.world.at(
                    self.world.now + self.site.kill_wait_s + RELEASE_S, lambda: self.controller.release(job)
                )

    # faults

    def _plan(self, start: JobStart) -> None:
        dice, chances = self.world.random, self.chances
        at = dice.uniform(0.0, chances.within_s)
        self._cause_at(self.world.now + at, start)
        if dice.random() < chances.further:
            self._cause_at(self.world.now + at + dice.uniform(0.0, 6.0), start)

    def _finish_begins(self, start: JobStart) -> None:
        dice = self.world.random
        if dice.random() < self.chances.in_finish:
            self._cause_at(self.world.now + dice.uniform(0.0, 2.0), start)

    def _cause_at(self, at: float, start: JobStart) -> None:
        kind = self.world.random.choice(self.chances.kinds)
        self.world.at(at, lambda: self._cause(kind, start))

    def _cause(self, kind: str, start: JobStart) -> None:
        if not start.is_current or (start.job.word != "RUNNING" and kind != ALL_LOST):
            return
        self.world.counts[kind] += 1
        self.world.tell(f"{start.name}: {kind}")
        FAULTS[kind](self, start)

    def lose_all(self, start: JobStart) -> None:
        """All nodes of the job are gone at once."""
        if start.job.word == "RUNNING":
            start.causes.add(Cause.NODE_LOSS)
        self.controller.lose_nodes(start.job)

    def preempt(self, start: JobStart) -> None:
        """Slurm takes the nodes without a grace."""
        start.causes.add(Cause.PREEMPTION)
        self.controller.end(start.job, "PREEMPTED", due_to="PREEMPTION", is_back=True)

    def warn(self, start: JobStart) -> None:
        """Slurm begins the grace of a preemption."""
        start.causes.add(Cause.PREEMPTION)
        self.controller.warn(start.job)

    def limit(self, start: JobStart) -> None:
        """The time limit is reached, and no warning has come."""
        start.causes.add(Cause.TIME_LIMIT)
        self.controller.end(start.job, "TIMEOUT", reason="TimeLimit", due_to="TIME LIMIT", is_back=False)

    def by_hand(self, start: JobStart) -> None:
        """Somebody requeues the job."""
        if start.job.may_requeue:
            start.causes.add(Cause.REQUEUE)
            self.controller.end(start.job, "REQUEUED", due_to="JOB REQUEUE", is_back=True)

    def agents_die(self, start: JobStart) -> None:
        """The agents, or srun, are killed."""
        if start.kill_agents():
            start.causes |= {Cause.AGENT_ERROR, Cause.LAUNCH_FAILURE}

    def script_dies(self, start: JobStart) -> None:
        """The batch script is killed alone, and whatever it runs."""
        if not start.script.is_over:
            start.causes.add(Cause.LAUNCH_FAILURE)
            start.kill_script()
            reason = "RaisedSignal:9(Killed)"
            self.controller.end(start.job, "FAILED", reason=reason, is_back=False)

    def line_fails(self, start: JobStart) -> None:
        """A line of the script fails."""
        start.causes.add(Cause.LAUNCH_FAILURE)
        start.bad_line = True

    def lose_one(self, start: JobStart) -> None:
        """Lose a node of two, with the batch script or without it."""
        if self.size < 2:
            self.lose_all(start)
            return
        start.causes.add(Cause.NODE_LOSS)
        start.lost_node = self.world.random.choice(start.job.nodes)
        self.controller.lose_node(start.job, start.lost_node)
        if start.lost_node == start.job.nodes[0]:
            start.kill_script()

    def cancel(self, start: JobStart) -> None:
        """The user takes the job away."""
        start.causes.add(Cause.CANCEL)
        start.job.cancelled_at = self.world.now
        self.controller.end(start.job, "CANCELLED", is_back=False)

    def stall(self, start: JobStart) -> None:
        """The shared directory answers none of the processes for a while."""
        start.stall(self.world.random.uniform(2.0, 30.0))

    def stop(self, start: JobStart) -> None:
        """The user has the run save and stop."""
        if not self.truth.has_run(start):
            return
        node = self.world.new_node("login")
        log = start.log(node, Role.SCRIPT, is_member=False)
        wish = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "stop")
        node.start(lambda: _commit(log, wish))

    def crash(self, start: JobStart) -> None:
        """A worker fails for good."""
        start.crashes = True

    def succeed(self, start: JobStart) -> None:
        """The workers succeed."""
        start.succeeds = True


@cache
def _spec(nodes: int, max_requeues: int) -> JobSpec:
    return JobSpec(command=("train.py",), nodes=str(nodes), max_requeues=max_requeues)


def _commit(log: RunLog, wish: DrainRequested) -> None:
    """Ask for a stop where a round runs, as `hpc-elastic stop` does."""
    with suppress(StoreError):
        log.commit(lambda state: wish if state.running is not None and not state.leaving else None)


FAULTS: dict[str, Callable[[Endings, JobStart], None]] = {
    ALL_LOST: Endings.lose_all,
    "preempted": Endings.preempt,
    "a grace begins": Endings.warn,
    "the time limit": Endings.limit,
    "requeued by hand": Endings.by_hand,
    "the agents are killed": Endings.agents_die,
    "the script is killed": Endings.script_dies,
    "a line of the script fails": Endings.line_fails,
    "a node is lost": Endings.lose_one,
    "cancelled": Endings.cancel,
    "the directory stalls": Endings.stall,
    "the user stops the run": Endings.stop,
    "a worker fails": Endings.crash,
    "the workers succeed": Endings.succeed,
}
_LOSSES = (ALL_LOST, ALL_LOST, "a node is lost", "the agents are killed")
_PREEMPTIONS = ("preempted", "a grace begins", "requeued by hand", "the time limit")
ENDINGS = {
    "endings": EndingChances(tuple(FAULTS), second=0.2, away=0.1),
    "endings losses": EndingChances(_LOSSES, in_finish=0.1),
    "endings preempted": EndingChances(_PREEMPTIONS, in_finish=0.1),
    "endings in finish": EndingChances(
        (ALL_LOST, "preempted", "requeued by hand", "a grace begins"),
        further=0.1,
        in_finish=0.9,
        away=0.6,
        saves=0.4,
    ),
    "endings grace": EndingChances(("a grace begins", "a grace begins", "the agents are killed")),
    "endings second job": EndingChances(
        ("the agents are killed", "preempted", ALL_LOST), second=1.0, within_s=30.0
    ),
    "endings script": EndingChances(
        ("the script is killed", "the script is killed", "the agents are killed", "the directory stalls")
    ),
    "endings stall": EndingChances(
        ("the directory stalls", "the script is killed"),
        further=1.0,
        accounting=(Accounting.LATE, Accounting.AWAY, Accounting.NONE),
    ),
    "endings chain": EndingChances(
        (
            ALL_LOST,
            ALL_LOST,
            "the time limit",
            "the user stops the run",
            "preempted",
            "a line of the script fails",
        ),
        chain=4,
        in_finish=0.2,
    ),
    "endings rough": EndingChances(
        tuple(FAULTS), second=0.2, away=0.2, weather=Weather(lost_reply=0.02, late=0.002)
    ),
}
