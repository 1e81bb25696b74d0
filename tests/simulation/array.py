"""A run in array mode: each node is a job of its own that Slurm starts, ends and starts anew alone.

What `hpc_elastic.slurm.end.lifecycle` makes of an agent that has left is played in few lines: a task
that was asked to leave, or was killed, is queued again; one that began anew elsewhere is left alone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from hpc_elastic.errors import StoreError
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record.array_task import TaskStart, epoch_now
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, Entry, SizeWanted
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import NO_EPOCH, RunState
from tests.simulation.agent import Shares, SimulatedAgent, Start
from tests.simulation.array_faults import ARRAY_FAULTS
from tests.simulation.array_invariants import ArrayInvariants
from tests.simulation.faults import FAULTS, QUIET, STALLS_S, ZOMBIE_S, Victim
from tests.simulation.lock import SimulatedLock
from tests.simulation.mount import Mount
from tests.simulation.scenario import Chances, Scenario
from tests.simulation.world import Node

ARRAY, FURTHER = "17", "18"  # the array that was submitted, and the one that `scale` adds
REQUEUE_S = (1.0, 8.0)  # from the end of a start of a task to the next [s]
RELAUNCH_S = 0.5
MOST_TASKS = 6


class Place(NamedTuple):
    """Where a start of a task runs."""

    name: str  # of the node
    start: TaskStart


class ArrayScenario(Scenario):
    """A run whose nodes come and go one by one; also a `faults.Run`.

    Args:
        seed: decides everything.
        chances: how rough the world is.
        is_verbose: the story tells every operation on the store.
    """

    excused = Scenario.excused | {"left", "dismissed", "fenced"}

    def __init__(self, seed: int, chances: Chances, *, is_verbose: bool = False) -> None:
        super().__init__(seed, chances, is_verbose=is_verbose)
        self.settings: MeetingSettings = self.settings._replace(may_outgrow=True)
        most = max(chances.max_nodes, MOST_TASKS)
        self.array_invariants = ArrayInvariants(self.world, (chances.min_nodes, most), self.settings)
        self.array_invariants.is_calm = set(chances.kinds) <= {"leave", "all leave"}
        self.invariants = self.array_invariants
        self._starts: dict[str, TaskStart] = {}  # the newest one of each task
        self._parked: list[str] = []  # tasks that are not needed now
        self._nodes: dict[Node, Place] = {}
        self._numbers = 0
        self._work_s = self.world.random.uniform(*chances.work_s)

    # tasks

    def _start_job(self) -> None:
        self._restarts = 0
        self.world.counts["starts of the job"] += 1
        for index in range(self.chances.nodes):
            self._new_task(ARRAY, index)

    def _new_task(self, array: str, index: int) -> None:
        self._begin(TaskStart(f"{array}_{index}", 0, 0))

    def again(self, task: str) -> None:
        """Have Slurm start a task anew, whether its last agent is gone or not."""
        if self.invariants.account.ending is None:
            self._begin(TaskStart(task, self._starts[task].restart + 1, 0))

    def _begin(self, start: TaskStart) -> None:
        """Start the agent of a task, on the node it had before or on another one."""
        world = self.world
        self._starts[start.task] = start
        moves = world.random.random() < 0.3
        array, _, index = start.task.partition("_")
        name = f"n{array}-{index}" + (f"-{start.restart}" if moves else "")
        node = world.new_node(name)
        node.ready_at = world.now + world.random.random()
        self._nodes[node] = Place(name, start)
        world.tell(f"task {start.tag} starts on {name}")
        node.start(partial(self._run_task, node, start))

    def _run_task(self, node: Node, start: TaskStart) -> None:
        """Run an agent; like the real one it reads the journal to learn which start of the run it is."""
        mount = Mount(node, self.chances.weather, self.invariants)
        lock = SimulatedLock(self.lock, node)
        state = self._read(node, RunLog(mount, node, node.name))
        epoch = epoch_now(state, 0, start)
        agent = SimulatedAgent(
            node, Shares(mount, lock), Start(epoch, (), self.settings, self._work_s, start), self._numbers
        )
        self._numbers += 1
        self.agents.append(agent)
        victim = self._by_node[node] = Victim(agent, mount)
        self._current.append(victim)
        self.invariants.watch(agent, mount)
        agent.run()

    def _read(self, node: Node, log: RunLog) -> RunState:
        while True:
            try:
                return log.refresh()
            except StoreError:
                node.wait(1.0)

    def _remove(self, node: Node) -> None:
        """Do with a task whose agent is gone what its batch script, or Slurm, would do."""
        victim = self._by_node[node]
        if victim not in self._current:
            return
        self._current.remove(victim)
        start, outcome = self._nodes[node].start, victim.agent.outcome
        if self._starts[start.task] != start or self.invariants.account.ending is not None:
            return
        if outcome == "dismissed":
            self._parked.append(start.task)
        elif outcome == "fenced":
            again = start._replace(relaunch=start.relaunch + 1)
            self.world.at(self.world.now + RELAUNCH_S, partial(self._begin_if_newest, start, again))
        else:
            self.requeue(start)

    def requeue(self, start: TaskStart) -> None:
        """Have Slurm start a task anew after a while, unless it has done so before."""
        again = start._replace(restart=start.restart + 1, relaunch=0)
        delay = self.world.random.uniform(*REQUEUE_S)
        self.world.at(self.world.now + delay, partial(self._begin_if_newest, start, again))

    def _begin_if_newest(self, start: TaskStart, again: TaskStart) -> None:
        if self._starts[start.task] == start and self.invariants.account.ending is None:
            self._begin(again)

    def launch(self, victim: Victim) -> None:
        """Do nothing: a task that was killed is started anew by Slurm."""

    # the user

    def scale(self, size: int, spares: int | None) -> None:
        """Have a command on a login node ask for another size."""
        node = self.world.new_node("login")
        mount = Mount(node, self.chances.weather, self.invariants)
        log = RunLog(mount, node, "login", SimulatedLock(self.lock, node))
        pause = DrainRequested(Cause.MEMBERSHIP, "", AfterDrain.REJOIN, "scale")

        def ask(state: RunState) -> Entry | None:
            is_on = state.epoch > NO_EPOCH and state.ending is None
            return SizeWanted(0, size, "scale", spares) if is_on else None

        def stop(state: RunState) -> Entry | None:
            is_larger = state.running is not None and len(state.running.members) > size
            return pause if is_larger and state.ending is None else None

        def act() -> None:
            for choose in (ask, stop):
                while True:
                    try:
                        log.commit(choose)
                    except StoreError:
                        node.wait(1.0)
                    else:
                        break

        node.start(act)
        self._provide(size + (spares or 0))

    def _provide(self, tasks: int) -> None:
        """Let tasks that wait run again, and queue more of them, until there are enough."""
        while self._parked and len(self._starts) - len(self._parked) < tasks:
            self.again(self._parked.pop(0))
        for index in range(len(self._starts), min(tasks, MOST_TASKS)):
            self._new_task(FURTHER, index)

    # faults

    def _cause(self, kind: str) -> None:
        victims = self.victims()
        if not victims:
            return
        world = self.world
        victim = world.random.choice(victims)
        if kind not in QUIET:
            self.invariants.forget_loss()
        self.array_invariants.disturbed_at = world.now
        fault = ARRAY_FAULTS.get(kind)
        text = fault(self, victim) if fault is not None else FAULTS[kind](self, victim)
        world.counts[kind] += 1
        world.tell(f"{victim.agent.name}: {text}")
        self._quiet_at = max(self._quiet_at, world.now + max(*STALLS_S, *ZOMBIE_S))
