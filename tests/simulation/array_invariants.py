"""What must hold besides in array mode, where nodes leave and come back one by one."""

from __future__ import annotations

from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, NodeLeft, RoundEnded, RoundFormed, parse
from tests.simulation.agent import SimulatedAgent
from tests.simulation.broken import BrokenError
from tests.simulation.invariants import Invariants
from tests.simulation.mount import Mount
from tests.simulation.world import World

GAP_S = 3.0  # from the end of a round that somebody left to the next round of the others [s]
REPLACED_S = 20.0  # until a newer start of a task has the place of an older one that runs [s]


class ArrayInvariants(Invariants):
    """Watches a run in array mode.

    Args:
        world: where it happens.
        sizes: the least and the most members of a round.
        settings: heartbeat interval and lease.
    """

    def __init__(self, world: World, sizes: tuple[int, int], settings: MeetingSettings) -> None:
        super().__init__(world, sizes, settings)
        self.is_calm = False  # nothing happens but that nodes leave
        self.disturbed_at = -1.0  # when something happened last [s]
        self.left: set[str] = set()  # ids of agents that have said that they leave
        self._ended_at = float("inf")  # when the newest round ended [s]
        self._members: list[SimulatedAgent] = []  # those that were in it
        self._formed_at = float("-inf")

    def appended(self, mount: Mount, number: int, value: bytes) -> None:
        """Check a record that was just written."""
        running = self.account.open_round
        super().appended(mount, number, value)
        entry = parse(number, value).entry
        writer = self.mounts.get(mount)
        if isinstance(entry, NodeLeft):
            self.left.add(entry.node_id)
        elif isinstance(entry, RoundFormed):
            self._check_formed(entry, writer)
        elif isinstance(entry, RoundEnded) and running is not None:
            self._ended(entry, running)
        crashes = self.account.state.crashes
        if crashes > self._world.counts["worker crash"]:
            raise BrokenError("a leave costs no restart", f"{crashes} crashes are counted")

    def _check_formed(self, formed: RoundFormed, writer: SimulatedAgent | None) -> None:
        now, ids = self._world.now, {member.node_id for member in formed.members}
        if ids & self.left:
            raise BrokenError("a node that has left is out", f"{sorted(ids & self.left)} in {formed}")
        gone = {node_id.rpartition(".")[0] for node_id in self.left}
        here = {agent.node.name for agent in self.agents.values() if agent.node_id not in self.left}
        blamed = set(formed.lost) & (gone - here)
        if blamed:
            raise BrokenError("a node that has left is not lost", f"{sorted(blamed)} in {formed}")
        old = ids & self._outdated(writer) if writer is not None else set()
        if old:
            raise BrokenError("one start of a task", f"{sorted(old)} began anew: {formed}")
        staying = [one for one in self._members if one.node_id not in self.left and not one.outcome]
        is_quiet = self.is_calm and self.disturbed_at < self._ended_at
        if is_quiet and len(staying) >= self._settings.min_nodes and now - self._ended_at > GAP_S:
            gap = now - self._ended_at
            raise BrokenError("no node waits for a node that has left", f"{gap:.1f} s before {formed}")
        self._formed_at = now

    def _outdated(self, observer: SimulatedAgent) -> set[str]:
        """Return the ids of agents whose task has a newer start, by the names that an agent has seen."""
        starts = {name: self.agents[name].start.task for name in observer.shared.membership.roster}
        newest: dict[str, TaskStart] = {}
        for start in starts.values():
            if start is not None:
                newest[start.task] = max(start, newest.get(start.task, start))
        return {name for name, start in starts.items() if start is not None and start < newest[start.task]}

    def _ended(self, entry: RoundEnded, formed: RoundFormed) -> None:
        if entry.cause is Cause.NODE_LOSS:
            lost = [member.node_id for member in formed.members if member.node in entry.nodes]
            if lost and self.left.issuperset(lost):
                raise BrokenError(
                    "a node that has left is not lost", f"{lost} have said that they leave: {entry}"
                )
        self._ended_at = self._world.now
        self._members = [self.agents[member.node_id] for member in formed.members]

    def check_turn(self, agent: SimulatedAgent) -> None:
        """Check an agent after its turn."""
        super().check_turn(agent)
        formed, start = self.account.open_round, agent.start.task
        if formed is None or start is None or agent.outcome or agent.formed == formed:
            return
        if agent.start.epoch != self.account.epoch or self.account.ending is not None:
            return
        members = [self.agents[member.node_id] for member in formed.members]
        older = [
            one
            for one in members
            if one.start.task and one.start.task[0] == start.task and one.start.task < start
        ]
        times = [one.node.disturbed_until for one in (*members, agent)]
        since = max(*times, self._formed_at, agent.began_at, self.disturbed_at)
        dead = any(one.node.is_killed for one in members)
        if older and not dead and self._world.now > since + REPLACED_S:
            raise BrokenError("one start of a task", f"{agent.name} waits beside {older[0].name}")
