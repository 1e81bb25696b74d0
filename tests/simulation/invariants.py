"""What must hold, whatever happens: checked when a record is written and after every turn of a node.

The checks keep a small account of the run of their own, so that a fault in the real code's state
does not hide itself.
"""

from __future__ import annotations

from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.node.decision import Group
from hpc_elastic.record import journal
from hpc_elastic.record.array_task import is_newer
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    NodeLeft,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.state import NO_EPOCH, RunState, apply
from tests.simulation.agent import SimulatedAgent
from tests.simulation.broken import BrokenError
from tests.simulation.mount import OPERATION_S, STALE_S, Mount
from tests.simulation.world import World

BEATS = 3  # heartbeats a healthy node may be late with what it tells and what it sees
SLACK_S = STALE_S + 20 * OPERATION_S


class Account:
    """What the journal says, kept by simple rules of its own.

    Args:
        sizes: the least and the most members of a round.
    """

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        self.records: list[bytes] = []
        self.states = [RunState()]  # after each record
        self.rounds: dict[int, RoundFormed] = {}
        self.epoch: Epoch = NO_EPOCH
        self.open_round: RoundFormed | None = None
        self.ending: RunEnded | None = None
        self.is_draining = False
        self.left: set[str] = set()  # ids of agents that have said that they leave

    def copy(self) -> Account:
        """Return one that goes on by itself."""
        other = Account(self.sizes)
        other.records, other.states, other.rounds = [*self.records], [*self.states], {**self.rounds}
        other.epoch, other.open_round, other.ending = self.epoch, self.open_round, self.ending
        other.is_draining, other.left = self.is_draining, {*self.left}
        return other

    @property
    def state(self) -> RunState:
        """The state after the newest record."""
        return self.states[-1]

    def add(self, number: int, value: bytes, writer_epoch: Epoch) -> Entry:
        """Take in a record that was just written by an agent of an epoch."""
        if number != len(self.records) + 1:
            raise BrokenError(
                "no update lost", f"record {number} was written, the newest was {len(self.records)}"
            )
        entry = journal.parse(number, value).entry
        self._check_writer(entry, writer_epoch)
        self._check_entry(entry)
        state = apply(self.state, entry)
        if state == self.state:
            raise BrokenError("only fitting records", f"record {number} changes nothing: {entry}")
        if isinstance(entry, NodeLeft):
            self._leave(entry)
        self.is_draining = state.drain is not None
        self.records.append(value)
        self.states.append(state._replace(last=number))
        return entry

    def _check_writer(self, entry: Entry, epoch: Epoch) -> None:
        """Check that it does not come from an older start of the job."""
        if epoch < self.epoch:
            raise BrokenError("fenced", f"an agent of {epoch.text()} wrote in {self.epoch.text()}: {entry}")
        if epoch != self.epoch and not isinstance(entry, EpochStarted):
            raise BrokenError("fenced", f"{epoch.text()} is not announced: {entry}")
        of = entry.epoch if isinstance(entry, DrainRequested | RunEnded) else None
        if of not in (None, self.epoch):
            raise BrokenError("fenced", f"not of {self.epoch.text()}: {entry}")

    def _check_entry(self, entry: Entry) -> None:
        if self.ending is not None:
            raise BrokenError("one ending", f"written after the end: {entry}")
        if isinstance(entry, EpochStarted):
            if entry.epoch <= self.epoch:
                raise BrokenError("no way back", f"{entry} after {self.epoch.text()}")
            self.epoch, self.open_round = entry.epoch, None
        elif isinstance(entry, RoundFormed):
            self._check_round(entry)
            self.rounds[entry.number] = self.open_round = entry
        elif isinstance(entry, RoundEnded):
            self._check_round_end(entry)
            self.open_round = None
        elif isinstance(entry, RunEnded):
            self.ending = entry

    def _leave(self, entry: NodeLeft) -> None:
        """Take note that an agent leaves; a round is over that nobody drains, or that nobody is left in."""
        self.left.add(entry.node_id)
        members = {member.node_id for member in self.open_round.members} if self.open_round else set()
        if entry.node_id in members and (not self.is_draining or members <= self.left):
            self.open_round = None

    def _check_round_end(self, entry: RoundEnded) -> None:
        if self.open_round is None or self.open_round.number != entry.number:
            raise BrokenError("one round", f"it does not run: {entry}")
        members = {member.node for member in self.open_round.members}
        if not members.issuperset(entry.nodes):
            raise BrokenError("one membership", f"not of the round: {entry}")

    def _check_round(self, entry: RoundFormed) -> None:
        text = f"{entry} after {sorted(self.rounds)}"
        if self.open_round is not None:
            raise BrokenError("one round", f"another one runs: {text}")
        if entry.number != len(self.rounds) + 1:
            raise BrokenError("one round", f"a wrong number: {text}")
        if entry.epoch != self.epoch:
            raise BrokenError("fenced", f"another start: {text}")
        nodes = [member.node_id for member in entry.members]
        if len(set(nodes)) != len(nodes):
            raise BrokenError("one membership", f"a node twice: {text}")
        if not self.sizes[0] <= len(nodes) <= self.sizes[1]:
            raise BrokenError("one membership", f"a wrong size: {text}")


class Invariants:
    """Watches a run; also the mounts' `Observer`.

    Args:
        world: where it happens.
        sizes: the least and the most members of a round.
        settings: heartbeat interval and lease.
    """

    def __init__(self, world: World, sizes: tuple[int, int], settings: MeetingSettings) -> None:
        self.account = Account(sizes)
        self.agents: dict[str, SimulatedAgent] = {}  # by node_id
        self.mounts: dict[Mount, SimulatedAgent] = {}
        self.may_lose = True
        self.ended_at = float("inf")  # when the run ended
        self._world = world
        self._settings = settings
        self._loss: tuple[str, float, float] | None = None  # who was lost, when, acted on by when
        self._seen: dict[str, RunState] = {}  # the newest state of each agent

    def watch(self, agent: SimulatedAgent, mount: Mount) -> None:
        """Watch one more agent."""
        self.agents[agent.node_id] = agent
        self.mounts[mount] = agent
        self._seen[agent.node_id] = agent.shared.state

    # records

    def appended(self, mount: Mount, number: int, value: bytes) -> None:
        """Check a record that was just written."""
        agent = self.mounts.get(mount)  # None for a command of the user
        before = self.account.open_round
        entry = self.account.add(number, value, agent.start.epoch if agent else self.account.epoch)
        world = self._world
        world.tell(f"journal {number} by {agent.name if agent else mount.node.name}: ", entry)
        world.counts[type(entry).__name__] += 1
        if isinstance(entry, RoundEnded) and entry.cause is Cause.NODE_LOSS:
            assert before is not None
            self._check_verdict(mount, before, entry.nodes)
        if isinstance(entry, RoundFormed):
            self._check_left_out(entry)
        if isinstance(entry, Drained):
            self._check_drained()
            self._check_given_back(entry)
        if isinstance(entry, RunEnded):
            self.ended_at = world.now
        if isinstance(entry, RunEnded) and entry.decision is Decision.DONE:
            self._check_success()
        if not isinstance(entry, RoundFormed):
            self._loss = None

    def promised(self, number: int, value: bytes) -> None:
        """Check that a record whose writer was told of success stands."""
        records = self.account.records
        if number > len(records) or records[number - 1] != value:
            raise BrokenError("no update lost", f"record {number} is gone or another one")

    def _check_drained(self) -> None:
        """Check that nobody works any more, but for those that nobody could have heard of for long."""
        working = self._working_members()
        if working:
            raise BrokenError("all have stopped", f"the job is handed back, but {sorted(working)} work")

    def _living(self) -> dict[str, SimulatedAgent]:
        """Return by id the agents of this start that have been well for a lease and want a place.

        An agent whose task has been started anew has none.
        """
        since = self._world.now - self._settings.lease - SLACK_S
        return {
            agent.node_id: agent
            for agent in self.agents.values()
            if agent.start.epoch == self.account.epoch
            and agent.began_at <= since
            and agent.wants_a_place
            and _was_well(agent, since)
            and not any(is_newer(other, than=agent.node_id) for other in self.agents)
        }

    def _check_left_out(self, formed: RoundFormed) -> None:
        """Check that no round counts a node as lost that lives, or is formed without one that was there."""
        last = self.account.rounds.get(formed.number - 1)
        if last is None or last.epoch != formed.epoch:
            return
        living = self._living().keys()
        gone = {member.node for member in last.members if member.node_id not in living}
        before = {member.node for member in last.members} - gone
        lost = sorted(before.intersection(formed.lost))
        if lost:
            raise BrokenError("alive is not lost", f"{formed} counts {lost}, which were well all the time")
        out = sorted(before - {member.node for member in formed.members})
        has_room = len(formed.members) < self.account.sizes[1] and self.account.state.wanted is None
        if out and has_room:
            raise BrokenError("alive is not lost", f"{formed} has room, but not for {out}, which were well")

    def _check_given_back(self, drained: Drained) -> None:
        """Check that no start of the job is given back for want of nodes while enough of them live."""
        if drained.cause not in (Cause.NODE_LOSS, Cause.JOIN_TIMEOUT):
            return
        living = sorted({agent.node.name for agent in self._living().values()})
        if len(living) >= self.account.sizes[0]:
            raise BrokenError("enough live", f"{drained}, but {living} were well all the time")

    def _check_success(self) -> None:
        """Check that the workers of the newest round have all ended well, on every node of it."""
        account = self.account
        members = account.rounds[account.state.rounds].members
        unfinished = [m.node_id for m in members if not self.agents[m.node_id].has_succeeded]
        if unfinished:
            raise BrokenError("true success", f"the run is done, but {unfinished} did not finish")

    def check_end(self) -> None:
        """Check that all that was ever promised still stands."""
        stored = [value for _, value in self._world.content.read_after("journal", 0)]
        if stored != self.account.records:
            raise BrokenError("no update lost", "the journal is not what was written")

    # verdicts

    def _check_verdict(self, mount: Mount, formed: RoundFormed, lost: tuple[str, ...]) -> None:
        """Check that whoever gives others up could see, has looked, and that they were not well."""
        if not self.may_lose:
            raise BrokenError("a stall is no loss", f"{mount.node.name} gives up {', '.join(lost)}")
        by_name = {
            self.agents[member.node_id].node.name: self.agents[member.node_id] for member in formed.members
        }
        if all(by_name[name].outcome for name in lost):
            return  # they have said goodbye
        looked_at, settings = mount.decided_by, self._settings
        text = f"{mount.node.name} gives up {', '.join(lost)}"
        if looked_at < mount.failed_at <= mount.append_began_at:
            raise BrokenError("blind is not dead", f"{text} by what it saw before an error")
        since, until = mount.node.blind
        was_blind = until - since >= settings.lease + SLACK_S and until <= looked_at
        if was_blind and looked_at - until < settings.lease - SLACK_S:
            raise BrokenError("blind is not dead", f"{text}, but sees for {looked_at - until:.2f} s only")
        well_since = looked_at - settings.lease - SLACK_S
        for name in lost:  # a dead agent and its successor on the same node may both be members
            agents = [self.agents[member.node_id] for member in formed.members if member.node == name]
            if all(_was_well(agent, well_since) for agent in agents):
                raise BrokenError("alive is not lost", f"{text}, but {name} was well all the time")

    # nodes

    def check_turn(self, agent: SimulatedAgent) -> None:
        """Check an agent after its turn."""
        state, formed = agent.shared.state, agent.formed
        if state is not self._seen[agent.node_id]:
            self._check_state(agent, state)
        works = formed is not None and agent.group is Group.RUNNING
        if works and formed is not None and self.account.rounds.get(formed.number) != formed:
            raise BrokenError("one membership", f"{agent.name} has {formed}")
        if self._loss is not None and self._world.now > self._loss[2]:
            self._check_loss(*self._loss)

    def _check_loss(self, name: str, lost_at: float, _limit: float) -> None:
        """Check that nothing kept the others from acting on a loss in time."""
        self._loss = None
        formed = self.account.open_round
        agents = [self.agents[member.node_id] for member in formed.members] if formed else []
        if all(agent.node.disturbed_until < lost_at for agent in agents):
            raise BrokenError("loss is acted on", f"{name} was lost at {lost_at:.3f}, and its round goes on")

    def _check_state(self, agent: SimulatedAgent, state: RunState) -> None:
        """Check what an agent has newly read."""
        seen, self._seen[agent.node_id] = self._seen[agent.node_id], state
        if (state.epoch, state.rounds, state.last) < (seen.epoch, seen.rounds, seen.last):
            raise BrokenError("no way back", f"{agent.name} knew {seen}, now {state}")
        states = self.account.states
        if state.last >= len(states) or states[state.last] != state:
            raise BrokenError("one state", f"{agent.name} holds what the journal does not say: {state}")

    def expect_loss(self, agent: SimulatedAgent) -> None:
        """Expect that the others act on the loss of a node, unless something else happens."""
        formed, working = self.account.open_round, self._working_members()
        if formed is None or agent.node_id not in working or len(working) == 1:
            return
        settings, now = self._settings, self._world.now
        limit = now + settings.lease + BEATS * settings.heartbeat_interval + SLACK_S
        self._loss = (agent.name, now, limit)

    def forget_loss(self) -> None:
        """Expect nothing: something else has happened."""
        self._loss = None

    def _working_members(self) -> set[str]:
        formed, now = self.account.open_round, self._world.now
        if formed is None:
            return set()
        agents = [self.agents[member.node_id] for member in formed.members]
        well = all(
            agent.node.disturbed_until < now - self._settings.lease and not agent.node.is_killed
            for agent in agents
        )
        return {agent.node_id for agent in agents if well and agent.group is Group.RUNNING}


def _was_well(agent: SimulatedAgent, since: float) -> bool:
    """Tell whether an agent that still runs has had nothing in its way since a time [s]."""
    return not agent.node.is_killed and not agent.outcome and agent.node.disturbed_until <= since
