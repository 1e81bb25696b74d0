"""One run of the simulation: nodes, faults and requeues from a seed, and what must hold throughout."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from hpc_elastic.errors import StoreError
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record.journal import Decision, Epoch, RunEnded
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import NO_EPOCH
from tests.simulation.agent import Shares, SimulatedAgent, Start
from tests.simulation.broken import BrokenError
from tests.simulation.faults import FAULTS, QUIET, STALLS_S, USUAL, ZOMBIE_S, Victim
from tests.simulation.invariants import Invariants
from tests.simulation.lock import LockFile, SimulatedLock
from tests.simulation.mount import Mount, Weather
from tests.simulation.world import Node, World

LIVENESS_S = 300.0  # the longest a run may take when nothing happens any more
NEW_START_S = 2.0  # time from the end of one start of the job to the next [s]


class Chances(NamedTuple):
    """How rough the world is."""

    nodes: int = 4
    min_nodes: int = 1
    max_nodes: int = 4
    faults: tuple[int, int] = (0, 0)  # the least and the most of them
    within_s: float = 40.0  # all faults come within this time
    kinds: tuple[str, ...] = USUAL
    weather: Weather = Weather()
    work_s: tuple[float, float] = (2.0, 10.0)
    may_lose: bool = True  # whether a round may end because nodes are lost
    named: float = 0.7  # the chance that the nodes of a start know each other's names
    early: float = 0.0  # the chance that the workers of a node have less to do than those of the others


class Scenario:
    """A run from its first start to its end, over all requeues; also a `faults.Run`.

    Args:
        seed: decides everything.
        chances: how rough the world is.
        is_verbose: the story tells every operation on the store.
    """

    excused = frozenset({"no store", "left untold", "wedged"})  # outcomes of who could not hear of the end

    def __init__(self, seed: int, chances: Chances, *, is_verbose: bool = False) -> None:
        self.world = World(seed, is_verbose=is_verbose)
        self.world.on_turn = self._check_turn
        self.chances = chances
        self.lock = LockFile()
        self.wall_scale = 1.0
        self.settings = MeetingSettings(
            min_nodes=chances.min_nodes,
            max_nodes=chances.max_nodes,
            join_timeout=60.0,
            last_call_timeout=5.0,
        )
        sizes = (chances.min_nodes, chances.max_nodes)
        self.invariants = Invariants(self.world, sizes, self.settings)
        self.invariants.may_lose = chances.may_lose
        self.agents: list[SimulatedAgent] = []
        self._by_node: dict[Node, Victim] = {}
        self._current: list[Victim] = []
        self._restarts = -1
        self._quiet_at = chances.within_s  # when the last fault is over at the latest

    @property
    def story(self) -> str:
        """What has happened, to read when something went wrong."""
        return self.world.story

    def run(self) -> None:
        """Run to the end of the run.

        Raises:
            AssertionError: something did not hold, or the run did not end.
        """
        try:
            self._plan()
            self._start_job()
            while self._current or self.invariants.account.ending is None:
                if not self.world.step():
                    raise BrokenError("liveness", "nothing happens any more")
                if self.world.now > self._quiet_at + LIVENESS_S:
                    raise BrokenError("liveness", f"the run goes on after {self.world.now:.0f} s")
            self._check_end()
        finally:
            self.world.end()

    # the job

    def _start_job(self) -> None:
        world, chances = self.world, self.chances
        self._restarts += 1
        names = tuple(f"n{i}" for i in range(chances.nodes))
        expected = names if world.random.random() < chances.named else ()
        epoch = Epoch(0, 0, self._restarts, 0)
        work_s = world.random.uniform(*chances.work_s)
        start = Start(epoch, expected, self.settings, work_s, early=chances.early)
        world.tell(f"start {epoch.text()}, expected: {', '.join(expected) or 'nobody knows'}")
        world.counts["starts of the job"] += 1
        self._current = []
        for name in names:
            self._launch(name, start)

    def _launch(self, name: str, start: Start) -> None:
        world = self.world
        node = world.new_node(name)
        node.ready_at = world.now + world.random.random()
        mount = Mount(node, self.chances.weather, self.invariants)
        shares = Shares(mount, SimulatedLock(self.lock, node))
        agent = SimulatedAgent(node, shares, start, len(self.agents))
        self.agents.append(agent)
        self._by_node[node] = Victim(agent, mount)
        self._current.append(self._by_node[node])
        self.invariants.watch(agent, mount)
        node.start(agent.run)

    def _check_turn(self, node: Node) -> None:
        """Check the node that had a turn; start the job again when its last agent is gone."""
        if node.error is not None:
            raise node.error
        if node not in self._by_node:
            return
        agent = self._by_node[node].agent
        if not node.is_killed:
            self.invariants.check_turn(agent)
        if node.is_over:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        """Start the job again when its agents are gone, or it was left (frozen ones stay behind)."""
        self._current = [victim for victim in self._current if victim.agent.node is not node]
        state = self.invariants.account.state
        is_left = state.drained is not None and state.epoch == Epoch(0, 0, self._restarts, 0)
        if state.ending is None and (is_left or not self._current):
            self._current = []
            restarts = self._restarts
            self.world.at(self.world.now + NEW_START_S, lambda: self._start_again(restarts))

    def _start_again(self, restarts: int) -> None:
        if restarts == self._restarts:
            self._start_job()

    # faults

    def victims(self) -> list[Victim]:
        """Return the nodes of the current start that live."""
        return [victim for victim in self._current if not victim.agent.node.is_over]

    def lose(self, victim: Victim, *, is_alone: bool) -> None:
        """Kill a node; alone means that nothing else is wrong with it."""
        if is_alone:
            self.invariants.expect_loss(victim.agent)
        else:
            self.invariants.forget_loss()
        victim.agent.node.kill()
        if victim.agent.node.is_over:
            self._remove(victim.agent.node)

    def end_by_user(self) -> None:
        """Have a command on a login node end the run for good."""
        node = self.world.new_node("login")
        mount = Mount(node, self.chances.weather, self.invariants)
        log = RunLog(mount, node, "login", SimulatedLock(self.lock, node))
        ending = RunEnded(Decision.STOPPED, 0, "the user", None)

        def end() -> None:
            while True:
                try:
                    log.commit(lambda state: ending if state.epoch > NO_EPOCH else None)
                except StoreError:
                    node.wait(1.0)
                else:
                    return

        node.start(end)

    def launch(self, victim: Victim) -> None:
        """Start an agent on the same node."""
        if victim in self._current or self._current:
            self._launch(victim.agent.node.name, victim.agent.start)

    def _plan(self) -> None:
        dice, chances = self.world.random, self.chances
        number = dice.randint(*chances.faults)
        for _ in range(number):
            kind = dice.choice(chances.kinds)
            self.world.at(dice.uniform(0, chances.within_s), partial(self._cause, kind))

    def _cause(self, kind: str) -> None:
        victims = self.victims()
        if not victims:
            return
        world = self.world
        victim = world.random.choice(victims)
        if kind not in QUIET:
            self.invariants.forget_loss()
        text = FAULTS[kind](self, victim)
        world.counts[kind] += 1
        world.tell(f"{victim.agent.name}: {text}")
        self._quiet_at = max(self._quiet_at, world.now + max(*STALLS_S, *ZOMBIE_S))

    # what must hold in the end

    def _check_end(self) -> None:
        """Check that the run was done, and that all who are left know it."""
        self.invariants.check_end()
        account = self.invariants.account
        assert account.ending is not None
        if account.ending.decision is not Decision.DONE and not self.world.counts["user ends the run"]:
            raise BrokenError("one ending", f"{account.ending}")
        newest = account.rounds.get(account.state.rounds)
        for victim in self._by_node.values():
            agent = victim.agent
            if agent.node.is_killed or not agent.node.is_over or agent.start.epoch != account.epoch:
                continue
            # beside the last round it may have been sent away before the end; kept from looking until
            # its exit barrier was over, it may not have heard of it
            ended_at = self.invariants.ended_at
            was_there = agent.formed == newest and agent.left_at >= ended_at
            knows = was_there and agent.node.disturbed_until <= ended_at
            allowed = {"done"} if knows else {"done", "drained"}
            if agent.outcome not in allowed | self.excused:
                raise BrokenError("one ending", f"{agent.name} left with {agent.outcome!r}")
