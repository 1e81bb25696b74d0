"""The rendezvous over a shared directory: carries out what the rules decide.

`SharedFsRendezvous` never sleeps by itself: while it waits it hands the time to the `wait` it was
given, so the agent's loop keeps reacting to signals. Torch's interface (`next_rendezvous` …) and the
agent's own (`tick`, `report_…`) are both here; both are thin over `rules` and the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.rendezvous import rules
from hpc_elastic.rendezvous.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.rendezvous.journal import (
    Cause,
    Checkpoint,
    Decision,
    DrainRequested,
    Drained,
    Entry,
    EpochStarted,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
    Then,
)
from hpc_elastic.rendezvous.membership import Membership, Offer
from hpc_elastic.rendezvous.roster import Phase, is_alive
from hpc_elastic.rendezvous.rules import RendezvousSettings
from hpc_elastic.rendezvous.run_log import RunLog
from hpc_elastic.rendezvous.state import RunState

_T = TypeVar("_T")


class RunFacts(NamedTuple):
    """What is known of this start of the run before any agent has spoken."""

    run_id: str
    job_id: str = ""
    expected: tuple[str, ...] = ()  # node names in Slurm's order; empty if nobody knows
    batch_host: str = ""  # the node that runs the batch script, if there is one


class Surroundings(NamedTuple):
    """What the rendezvous needs from its agent."""

    clock: Clock
    wait: Callable[[float], None]  # returns after so many seconds, or early when something happened
    offer_port: Callable[[], int]  # a port that is free on this node now
    latest_checkpoint: Callable[[], Checkpoint | None]
    interrupted: Callable[[], bool]  # True: the agent must act before the round is formed


class RendezvousInterruptedError(RendezvousGracefulExitError):
    """A signal asked this agent to act while it waited for others."""


class SharedFsRendezvous(RendezvousHandler):
    """Brings the agents of a run together through its run directory.

    Args:
        log: the run's journal.
        membership: this agent's mark and its view of the others.
        run: what is known of this start of the run.
        settings: sizes and timeouts.
        around: what the agent provides.
    """

    def __init__(
        self,
        log: RunLog,
        membership: Membership,
        run: RunFacts,
        settings: RendezvousSettings,
        around: Surroundings,
    ) -> None:
        self._log = log
        self.membership = membership
        self._run = run
        self.settings = settings
        self._around = around
        self._beats = 0
        self._blind_since: float | None = None
        self.lost: tuple[str, ...] = ()

    # torch's interface

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""
        return "shared_fs"

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._run.run_id

    def is_closed(self) -> bool:
        """Tell whether the run has ended."""
        return self._log.refresh().ending is not None

    def set_closed(self) -> None:
        """End the run for everybody."""
        self.end_run(Decision.STOPPED, exit_code=0, reason=f"closed by {self._node}")

    def num_nodes_waiting(self) -> int:
        """Return how many live nodes wait for the next round."""
        self.membership.look()
        return len(rules.joiners(self._view(self._log.refresh()), self._now()))

    def shutdown(self) -> bool:
        """Leave the run, which goes on for the others."""
        try:
            self.set_phase(Phase.LEFT)
        except StoreError:
            return False
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's place in it.

        Raises:
            RendezvousClosedError: the run has ended or is being left.
            RendezvousTimeoutError: too few nodes appeared; names those that did not.
            RendezvousGracefulExitError: a newer start of the run exists, or a signal interrupted.
        """
        waited = rules.Waited(since=self._now())
        state = self._patiently(self._enter, waited)
        while True:
            action = rules.join(self._view(state), waited, self._now())
            if isinstance(action, rules.Joined):
                return self._take_place(action.round)
            wait_s = self._patiently(lambda: self._carry_out(action, waited), waited)
            if self._around.interrupted():
                raise RendezvousInterruptedError("interrupted while waiting for other nodes")
            if wait_s:
                self._around.wait(wait_s)
            state = self._patiently(self._look_again, waited)
            waited = rules.wait_on(self._view(state), waited, self._now())

    # what the agent tells the others

    @property
    def state(self) -> RunState:
        """The state of the run as last read."""
        return self._log.state

    def report_crash(self, number: int, failure: dict[str, Any]) -> RunState:
        """End a round because a worker on this node failed."""
        return self._commit(RoundEnded(number, Cause.CRASH, (self._node,), failure))

    def report_lost(self, number: int, nodes: Iterable[str]) -> RunState:
        """End a round because members have vanished.

        Without its batch host a Slurm job runs on but nobody ends or requeues it, so then the others
        leave; the first of them hands the job back (`is_first_alive`).
        """
        state = self._commit(RoundEnded(number, Cause.NODE_LOSS, tuple(nodes), None))
        if self.batch_host_is_lost:
            detail = f"batch host {self._run.batch_host} lost"
            state = self.request_drain(Cause.NODE_LOSS, Then.LEAVE, detail)
        return state

    @property
    def batch_host_is_lost(self) -> bool:
        """Whether the node with the batch script is gone."""
        return self._run.batch_host in self.state.lost

    def is_first_alive(self) -> bool:
        """Tell whether this node is the first live one of the newest round."""
        formed = self.state.round
        return formed is not None and self.live_members(formed)[:1] == [self.membership.node_id]

    def report_paused(self, number: int) -> RunState:
        """End a round whose workers have all stopped so that the membership can change."""
        return self._commit(RoundEnded(number, Cause.MEMBERSHIP, (), None))

    def request_drain(self, cause: Cause, then: Then, detail: str = "") -> RunState:
        """Ask all nodes to have their workers save and stop at one agreed step."""
        return self._commit(DrainRequested(cause, self._node, then, detail))

    def agree_stop(self, number: int, step: int) -> RunState:
        """Set the step after which all ranks stop."""
        return self._commit(StopAgreed(number, step))

    def report_drained(self, cause: Cause, detail: str = "") -> RunState:
        """Tell that every worker of this job start has stopped."""
        checkpoint = self._around.latest_checkpoint()
        step = checkpoint.step if checkpoint else None
        return self._commit(Drained(self.membership.epoch, cause, step, detail))

    def end_run(
        self, decision: Decision, *, exit_code: int, reason: str, failure: dict[str, Any] | None = None
    ) -> RunState:
        """End the run for good."""
        return self._commit(RunEnded(decision, exit_code, reason, failure))

    def set_phase(self, phase: Phase) -> None:
        """Tell what this agent is doing in the newest round."""
        self.membership.ensure_phase(phase, self.state.rounds)

    # what the agent sees

    def tick(self, *, look: bool = False) -> RunState:
        """Beat if due, read what is new, watch the peers if it is this node's turn.

        A file system that does not answer costs time, not the run: errors are kept to
        `blind_since` and nobody is given up meanwhile.

        Args:
            look: look at the peers whether it is this node's turn or not.
        """
        try:
            if self._now() >= self.membership.next_beat_at():
                look = look or self._is_my_turn()
                if look:
                    self._watch()
                self.membership.beat_if_due()
            elif look:
                self._watch()
            state = self._log.refresh()
            self._blind_since = None
            return state
        except StoreError:
            if self._blind_since is None:
                self._blind_since = self._now()
            return self._log.state

    @property
    def blind_since(self) -> float | None:
        """Since when the shared directory does not answer, by this node's monotonic clock [s]."""
        return self._blind_since

    def everyone_in(self, *phases: Phase) -> bool:
        """Tell whether every member of the newest round is in one of the phases or lost."""
        formed = self.state.round
        if formed is None:
            return True
        living = self.live_members(formed)
        members = tuple(member for member in formed.members if member.node_id in living)
        return rules.all_in(
            formed._replace(members=members), self.membership.roster, frozenset((*phases, Phase.LEFT))
        )

    def live_members(self, formed: RoundFormed) -> list[str]:
        """Return the ids of the members of a round whose lease has not run out."""
        now = self._now()
        roster = self.membership.roster

        def is_gone(node_id: str) -> bool:
            seen = roster.get(node_id)
            if seen is None or seen.name.phase is Phase.SUCCEEDED or node_id == self.membership.node_id:
                return False
            return not is_alive(seen, now, self.settings.lease)

        return [member.node_id for member in formed.members if not is_gone(member.node_id)]

    # inside

    @property
    def _node(self) -> str:
        return self.membership.facts.member.node

    def _now(self) -> float:
        return self._around.clock.monotonic()

    def _view(self, state: RunState) -> rules.Joining:
        member = self.membership
        return rules.Joining(state, member.roster, member.node_id, member.epoch, self.settings)

    def _enter(self) -> RunState:
        """Announce this start of the run if nobody has, and this node as one that wants to join."""
        self.lost = ()
        epoch = self.membership.epoch
        announced = EpochStarted(epoch, self._run.job_id, self._run.expected)
        first = self._log.refresh().epoch < epoch
        state = self._commit(announced)
        if first and state.epoch == epoch:
            self.membership.remove_older()
        if not state.leaving and state.epoch == epoch:
            self._offer(state)
        self.membership.look()
        return state

    def _patiently(self, step: Callable[[], _T], waited: rules.Waited) -> _T:
        """Take a step, again and again while the shared directory does not answer.

        Raises:
            RendezvousConnectionError: it has not answered for the whole join timeout.
        """
        while True:
            try:
                return step()
            except StoreError as error:
                if self._now() - waited.since >= self.settings.join_timeout:
                    raise RendezvousConnectionError(str(error)) from error
                self._around.wait(self.settings.heartbeat_interval)

    def _offer(self, state: RunState) -> None:
        self.membership.offer(self._around.offer_port())
        self.membership.ensure_phase(Phase.JOINING, state.rounds + 1)

    def _look_again(self) -> RunState:
        state = self.tick(look=True)
        if not state.leaving and state.epoch == self.membership.epoch and self._blind_since is None:
            in_round = state.running is not None and any(
                member.node_id == self.membership.node_id for member in state.running.members
            )
            if not in_round:
                self.membership.ensure_phase(Phase.JOINING, state.rounds + 1)
        return state

    def _carry_out(self, action: rules.JoinAction, waited: rules.Waited) -> float:
        """Do what was decided; return how long to wait before looking again [s], 0 for at once."""
        match action:
            case rules.Form(node_ids):
                return 0.0 if self._form(node_ids) else 0.01
            case rules.AskToJoin():
                self._stand_beside(f"{self._node} wants to join")
                return self._patience(waited)
            case rules.Spare():
                self._stand_beside("")
                return self._patience(waited)
            case rules.Wait():
                return self._patience(waited)
            case rules.TooFew(have, missing, timed_out):
                raise RendezvousTimeoutError(self._too_few(have, missing, timed_out))
            case rules.Fenced():
                raise RendezvousGracefulExitError("a newer start of this run exists")
            case _:
                raise RendezvousClosedError(_closed_text(self.state))

    def _stand_beside(self, request: str) -> None:
        """Ask the members of the running round for a place; end it if members have vanished."""
        running = self.state.running
        if running is not None and self.lost:
            self.report_lost(running.number, self.lost)
        elif request:
            self.request_drain(Cause.MEMBERSHIP, Then.REJOIN, request)

    def _patience(self, waited: rules.Waited) -> float:
        """Return the time between two looks: short at first, up to the heartbeat interval [s].

        The number of nodes sets the floor, so that all looks together stay affordable.
        """
        age = self._now() - waited.since
        floor = 0.01 + 0.001 * len(self._run.expected)
        return min(max(floor, age / 10), self.settings.heartbeat_interval / 2)

    def _form(self, node_ids: tuple[str, ...]) -> bool:
        """Publish the next round; False if a chosen node's offer cannot be read yet."""
        offers: list[Offer] = []
        for node_id in node_ids:
            offer = self.membership.read_offer(node_id)
            if offer is None:
                return False
            offers.append(offer)
        first = offers[0]
        one_machine = all(offer.host == first.host for offer in offers)
        formed = RoundFormed(
            number=self.state.rounds + 1,
            epoch=self.membership.epoch,
            members=tuple(offer.member for offer in offers),
            # workers of one machine need no name resolution to find each other
            master_addr="127.0.0.1" if one_machine else first.addr,
            master_port=first.port,
            checkpoint=self._around.latest_checkpoint(),
        )
        self._commit(formed)
        return True

    def _take_place(self, formed: RoundFormed) -> RendezvousInfo:
        self.membership.ensure_phase(Phase.RUNNING, formed.number)
        rank = [member.node_id for member in formed.members].index(self.membership.node_id)
        self._beats = 0
        return RendezvousInfo(
            store=None,
            rank=rank,
            world_size=len(formed.members),
            bootstrap_store_info=RendezvousStoreInfo(formed.master_addr, formed.master_port),
            round=formed,
        )

    def _is_my_turn(self) -> bool:
        running = self.state.running
        if running is None:
            return True
        self._beats += 1
        ids = [member.node_id for member in running.members]
        rank = ids.index(self.membership.node_id) if self.membership.node_id in ids else 0
        return self._beats % rules.watch_every(rank) == 0

    def _watch(self) -> None:
        roster = self.membership.look()
        running = self.state.running
        if running is None:
            self.lost = ()
            return
        others = [m for m in running.members if m.node_id != self.membership.node_id]
        self.lost = tuple(
            rules.lost_members(
                running._replace(members=tuple(others)), roster, self.settings, self._now()
            )
        )

    def _commit(self, entry: Entry) -> RunState:
        return self._log.commit(lambda _state: entry)

    def _too_few(self, have: int, missing: tuple[str, ...], timed_out: bool) -> str:
        need = self.settings.min_nodes
        names = ", ".join(missing) or "unknown"
        if timed_out:
            seconds = f"{self.settings.join_timeout:g}"
            return f"{have} of {need} nodes joined within {seconds} s; missing: {names}"
        return f"{have} nodes are left, {need} are needed; lost: {names}"


def _closed_text(state: RunState) -> str:
    if state.ending is not None:
        return f"the run has ended: {state.ending.decision.value} ({state.ending.reason})"
    return "the run is being left; it goes on with the next start of the job"
