"""One run of the simulation: nodes, faults and requeues from a seed, and what must hold throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpc_elastic.agent.decision import Group
from hpc_elastic.rendezvous import journal
from hpc_elastic.rendezvous.journal import Decision, Epoch, RoundEnded, RoundFormed, RunEnded
from hpc_elastic.rendezvous.rules import RendezvousSettings
from hpc_elastic.rendezvous.run_log import LOG
from hpc_elastic.rendezvous.state import RunState, apply
from tests.simulation.agent import SimulatedAgent, Start
from tests.simulation.world import Mount, World

STEPS = 400_000
FAULTS_END_S = 60.0
NEW_START_S = 2.0  # time from the end of one start of the job to the next [s]


class Chances(NamedTuple):
    """How rough the world is."""

    nodes: int = 4
    min_nodes: int = 1
    max_nodes: int = 4
    faults: int = 8
    stale: float = 0.1
    lost_reply: float = 0.01


class Scenario:
    """A run from its first start to its end, over all requeues.

    Args:
        seed: decides everything.
        chances: how rough the world is.
    """

    def __init__(self, seed: int, chances: Chances) -> None:
        self.world = World(seed)
        self.world.check = self._check
        self.chances = chances
        self.state = RunState()
        self.rounds: dict[int, RoundFormed] = {}
        self.agents: list[SimulatedAgent] = []
        self._names = tuple(f"n{i}" for i in range(chances.nodes))
        self._restarts = 0
        self._count = 0
        self._faults = self._plan()

    @property
    def story(self) -> str:
        """What has happened, to read when something went wrong."""
        return "\n".join(self.world.story)

    def run(self) -> None:
        """Run to the end of the run.

        Raises:
            AssertionError: something did not hold, or the run did not end.
        """
        try:
            self._start()
            for _ in range(STEPS):
                self._cause_faults()
                if not self.world.step() or self._is_over():
                    break
                self._batch_script()
            self._check_end()
        finally:
            self.world.end()

    # the job

    def _start(self) -> None:
        world, chances = self.world, self.chances
        settings = RendezvousSettings(
            min_nodes=chances.min_nodes,
            max_nodes=chances.max_nodes,
            join_timeout=60.0,
            last_call_timeout=5.0,
        )
        expected = self._names if world.random.random() < 0.7 else ()
        start = Start(self._epoch, expected, settings, world.random.uniform(2, 10))
        world.tell(f"start {start.epoch.text()}, expected: {', '.join(expected) or 'nobody knows'}")
        for name in self._names:
            self._launch(name, start)

    def _launch(self, name: str, start: Start) -> None:
        node = self.world.new_node(name)
        node.freeze(self.world.random.uniform(0, 2))
        self._count += 1
        mount = Mount(node, stale=self.chances.stale, lost_reply=self.chances.lost_reply)
        agent = SimulatedAgent(node, mount, start, self._count)
        self.agents.append(agent)
        node.start(agent.run)

    @property
    def _epoch(self) -> Epoch:
        return Epoch(0, self._restarts, 0)

    def _current(self) -> list[SimulatedAgent]:
        return [agent for agent in self.agents if agent.start.epoch == self._epoch and not agent.node.is_over]

    def _batch_script(self) -> None:
        """Start the job again when all its agents are gone, or the run was left (frozen ones stay behind)."""
        is_left = self.state.drained is not None and self.state.epoch == self._epoch
        if self.state.ending is None and (is_left or not self._current()):
            self._restarts += 1
            self.world.now += NEW_START_S
            self._start()

    def _is_over(self) -> bool:
        return self.state.ending is not None and not self._current()

    # faults

    def _plan(self) -> list[tuple[float, Callable[[SimulatedAgent], None]]]:
        dice = self.world.random
        kinds = (self._kill, self._freeze, self._crash, self._signal, self._stall, self._replace)
        times = sorted(dice.uniform(0, FAULTS_END_S) for _ in range(self.chances.faults))
        return [(at, dice.choice(kinds)) for at in times]

    def _cause_faults(self) -> None:
        while self._faults and self.world.now >= self._faults[0][0]:
            _, fault = self._faults.pop(0)
            current = self._current()
            if current:
                fault(self.world.random.choice(current))

    def _kill(self, agent: SimulatedAgent) -> None:
        if len(self._current()) > self.chances.min_nodes:
            self.world.tell(f"{agent.node.name} is killed")
            agent.node.kill()

    def _freeze(self, agent: SimulatedAgent) -> None:
        seconds = self.world.random.choice((1.0, 3.0, 10.0, 40.0))
        self.world.tell(f"{agent.node.name} freezes for {seconds} s")
        agent.node.freeze(seconds)

    def _crash(self, agent: SimulatedAgent) -> None:
        self.world.tell(f"a worker of {agent.node.name} crashes")
        agent.crash_next = True

    def _signal(self, agent: SimulatedAgent) -> None:
        self.world.tell(f"{agent.node.name} gets a signal")
        agent.node.signals.append(15)

    def _stall(self, _agent: SimulatedAgent) -> None:
        seconds = self.world.random.choice((1.0, 5.0, 20.0))
        self.world.tell(f"the store stalls for {seconds} s")
        self.world.stalled_until = self.world.now + seconds

    def _replace(self, agent: SimulatedAgent) -> None:
        self._kill(agent)
        if agent.node.is_killed:
            self._launch(agent.node.name, agent.start)

    # what must hold

    def _check(self) -> None:
        """Check everything that holds at any moment."""
        self._check_journal()
        for agent in self.agents:
            if agent.node.error is not None:
                raise AssertionError(f"{agent.node.name} failed") from agent.node.error
            if agent.group is Group.RUNNING and agent.formed is not None and not agent.node.is_over:
                assert self.rounds[agent.formed.number] == agent.formed

    def _check_journal(self) -> None:
        for number, data in self.world.shared.read_after(LOG, self.state.last):
            entry = journal.parse(number, data).entry
            self._check_entry(entry)
            self.state = apply(self.state, entry)._replace(last=number)

    def _check_entry(self, entry: journal.Entry) -> None:
        self.world.tell(f"journal: {entry}")
        if isinstance(entry, RoundFormed):
            assert entry.number not in self.rounds
            self.rounds[entry.number] = entry
            ids = [member.node_id for member in entry.members]
            assert len(set(ids)) == len(ids)
            assert self.chances.min_nodes <= len(ids) <= self.chances.max_nodes
        if isinstance(entry, RoundEnded):
            members = {member.node for member in self.rounds[entry.number].members}
            assert set(entry.nodes) <= members, f"{entry.nodes} were not in round {entry.number}"
        if isinstance(entry, RunEnded):
            assert self.state.ending is None
            self._check_success()

    def _check_success(self) -> None:
        """Check that the workers of the newest round have all ended well, on every node of it."""
        formed = self.rounds[self.state.rounds]
        agents = {agent.shared.membership.node_id: agent for agent in self.agents}
        unfinished = [member.node_id for member in formed.members if not agents[member.node_id].has_succeeded]
        assert not unfinished, f"the run is done, but {unfinished} did not finish"

    def _check_end(self) -> None:
        """Check that the run was done, and that all who are left know it."""
        ending = self.state.ending
        assert ending is not None, "the run did not end"
        assert Decision.DONE is ending.decision
        last = [agent for agent in self.agents if agent.start.epoch == self._epoch]
        survivors = [agent for agent in last if not agent.node.is_killed]
        for agent in survivors:
            # a node that stood beside the last round may have been sent away before the run was done
            was_in = agent.formed == self.rounds.get(self.state.rounds)
            allowed = {"done"} if was_in else {"done", "drained"}
            assert agent.outcome in allowed, f"{agent.node.name}: {agent.outcome}"
