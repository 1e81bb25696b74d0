"""The rendezvous over a shared directory: carries out the decisions of the rules.

`SharedFsRendezvous` never sleeps by itself: while it waits it hands the time to the `wait` it was
given, so the agent's loop keeps reacting to signals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
    TakenOverError,
)
from hpc_elastic.meet import rules
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.meet.join_progress import beside_text, is_due, too_few_text, waiting_text
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.membership import Offer
from hpc_elastic.meet.rules import refuse_stranger
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Decision, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.text import are_text

_T = TypeVar("_T")
_FEW = 16  # offers that are read one after the other
_READERS = 16


def _say_nothing(_text: str) -> None:
    """Keep it to oneself."""


class Waiting(NamedTuple):
    """The agent's part in the waiting of its rendezvous."""

    wait: Callable[[float], None]  # returns after so many seconds, or early when something happened
    offer_port: Callable[[], int]  # a port that is free on this node now
    interrupted: Callable[[], bool]  # True: the agent must act before the round is formed
    say: Callable[[str], None] = _say_nothing
    place: str = "the shared directory"  # where the nodes meet, for people


class TooFewError(RendezvousTimeoutError):
    """The minimum of nodes did not come."""

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class Interrupted(NamedTuple):
    """The agent must act before a round is formed: it has a signal."""

    reason: str


class OutOfReach(NamedTuple):
    """The shared directory has not answered for the whole join timeout."""

    error: StoreError


class NoRound(NamedTuple):
    """This node is in no further round of this start of the run."""

    why: rules.Refusal


JoinVerdict = rules.Joined | NoRound | Interrupted | OutOfReach


class _JoinEndsError(Exception):
    """Leaves the steps of a join with its verdict; `SharedFsRendezvous.join` returns it."""

    def __init__(self, verdict: Interrupted | OutOfReach) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class SharedFsRendezvous(RendezvousHandler):
    """Brings the agents of a run together through its run directory."""

    def __init__(self, run: SharedRun, waiting: Waiting) -> None:
        self.run = run
        self._waiting = waiting
        self._looked_at = float("-inf")
        self._offered_for = 0  # the round for which this node has published its facts
        self._told_at: float | None = None  # when the line about the missing nodes was printed [s]
        self._told_beside = ""  # the line about the round that runs without this node
        self._gathering: rules.Gathering | None = None  # the conclusions of the last turn

    @property
    def place(self) -> str:
        """Where the nodes meet."""
        return self._waiting.place

    def also_while_waiting(self, act: Callable[[], None]) -> None:
        """Have something done after each nap of this node's waits for the others."""
        nap = self._waiting.wait

        def nap_and_act(seconds: float) -> None:
            nap(seconds)
            act()

        self._waiting = self._waiting._replace(wait=nap_and_act)

    # torch's interface

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""
        return "shared_fs"

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self.run.facts.run_id

    def is_closed(self) -> bool:
        """Tell whether the run has ended."""
        return self.run.refresh().ending is not None

    def set_closed(self) -> None:
        """End the run for everybody."""
        self.run.end_run(Decision.STOPPED, exit_code=0, reason=f"closed by {self.run.node}")

    def num_nodes_waiting(self) -> int:
        """Return how many live nodes wait for the next round; beside a full round they only stand by."""
        self.run.membership.look()
        view = self._view(self.run.refresh())
        running = view.state.running
        if running is not None and len(running.members) >= view.target:
            return 0
        return len(rules.joiners(view, self.run.now()))

    def shutdown(self) -> bool:
        """Leave the run, which goes on for the others; that this node has succeeded stays known."""
        try:
            self.run.check_place()
            self.run.membership.leave(self.run.state.rounds)
        except (StoreError, TakenOverError):
            return False
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's place in it.

        Raises:
            RendezvousClosedError: the run has ended or is being left.
            RendezvousTimeoutError: too few nodes appeared; names those that did not.
            RendezvousGracefulExitError: a newer start of the run exists, or a signal interrupted.
        """
        verdict = self.join()
        if isinstance(verdict, rules.Joined):
            return self._info(verdict.round)
        raise self.error_of(verdict)

    def join(self) -> JoinVerdict:
        """Wait for the next round; return the round that this node is in, or why it is in none.

        Raises:
            InputError: the agents there belong to another job, or were started for another size.
        """
        try:
            return self._wait_for_round()
        except _JoinEndsError as end:
            return end.verdict

    def _wait_for_round(self) -> JoinVerdict:
        waited = rules.Waited(since=self.run.now())
        self._offered_for = 0
        self._told_at, self._told_beside = None, ""
        state = self._patiently(self._enter)
        while True:
            if self.run.blind_since is not None:  # earlier looks count for no verdict on a node
                state = self._patiently(self.run.look_through)
            action = rules.join(self._view(state), waited, self.run.now())
            if isinstance(action, rules.Joined):
                self._patiently(partial(self.run.take_place, action.round))
                return action
            if isinstance(action, rules.Refusal):
                return NoRound(action)
            wait_s = self._patiently(partial(self._carry_out, action, waited))
            if self._waiting.interrupted():
                return Interrupted("interrupted while waiting for other nodes")
            if wait_s:
                self._tell(waited)
                self._waiting.wait(wait_s)
            state = self._patiently(self._look_again)
            waited = rules.wait_on(self._view(state), waited, self.run.now())

    # inside

    def _tell(self, waited: rules.Waited) -> None:
        """Tell people for whom this node waits, again and again, or once beside which round."""
        now, view = self.run.now(), self._view(self.run.state)
        if not is_due(waited.since, None, now):
            return
        if view.state.running is not None:
            text = beside_text(view)
            if text and text != self._told_beside:
                self._waiting.say(text)
                self._told_beside = text
        elif is_due(waited.since, self._told_at, now):
            self._told_at = now
            text = waiting_text(view, waited, now, self._waiting.place)
            if text:
                self._waiting.say(text)

    def _view(self, state: RunState) -> rules.Joining:
        member, expected = self.run.membership, self.run.facts.expected
        first = rules.announces_at_once(self.run.node, expected, self.run.settings)
        view = rules.Joining(
            state, member.roster, member.node_id, member.epoch, self.run.settings, first, self._looked_at
        )
        now, known = self.run.now(), self._gathering
        if known is None or not known.holds_for(view, now, member.changes):
            self._gathering = known = rules.Gathering(view, now, member.changes)
        return view._replace(gathering=known)

    def _enter(self) -> RunState:
        """Show this node as one that wants to join, if this start of the run is announced already."""
        state = self.run.refresh()
        self._stand_in(state)
        if rules.may_be_first(self._view(state), self.run.facts.expected):
            self._look_at_members()
        else:  # it waits for the record of the round; everybody looking at everybody would be too much
            self._looked_at = self.run.now()
        return state

    def _stand_in(self, state: RunState) -> None:
        """Publish this node's contribution, once per round, and that it wants to be in the next one.

        Raises:
            InputError: the agents there belong to another job, or were started for another size.
        """
        member = self.run.membership
        refuse_stranger(state, member.epoch, self.run.facts.job_id, self.run.settings, self._waiting.place)
        if state.leaving or state.epoch != member.epoch or self._is_in(state):
            return
        if self._offered_for != state.rounds + 1:
            member.offer(state.rounds + 1, self._waiting.offer_port())
            self._offered_for = state.rounds + 1
        member.ensure_phase(Phase.JOINING, state.rounds + 1)

    def _is_in(self, state: RunState) -> bool:
        running, me = state.running, self.run.membership.node_id
        return running is not None and any(member.node_id == me for member in running.members)

    def _look_at_members(self) -> None:
        self.run.membership.look()
        self._looked_at = self.run.now()

    def _patiently(self, step: Callable[[], _T]) -> _T:
        """Take a step, again and again while the shared directory does not answer.

        Raises:
            _JoinEndsError: the directory has not answered for the whole join timeout, or there is a signal.
        """
        since, told = self.run.now(), False
        while True:
            try:
                return step()
            except StoreError as error:
                self.run.note_blindness()
                if not told:
                    self._waiting.say(f"the run directory does not answer, trying again: {error}")
                    told = True
                if self._waiting.interrupted():
                    raise _JoinEndsError(Interrupted("interrupted by a signal")) from error
                if self.run.now() - since >= self.run.settings.join_timeout:
                    raise _JoinEndsError(OutOfReach(error)) from error
                self._waiting.wait(self.run.settings.heartbeat_interval)
                with suppress(StoreError):  # one step that fails is no reason to fall silent
                    self.run.membership.beat_if_due()

    def _look_again(self) -> RunState:
        now = self.run.now()
        look = now - self._looked_at >= rules.look_interval(self._view(self.run.state), now)
        if look:
            self._looked_at = now
        state = self.run.tick(look=look)
        if self.run.blind_since is None:
            self._stand_in(state)
        return state

    def _carry_out(self, action: rules.JoinStep, waited: rules.Waited) -> float:
        """Carry out a step; return the time to the next look [s], 0 for at once."""
        match action:
            case rules.FormRound(node_ids):
                return 0.0 if self._form(node_ids) else 0.01
            case rules.LookFirst():
                self._look_at_members()
                return 0.0
            case rules.Announce():
                self._stand_in(self.run.announce())
                self._look_at_members()
                return 0.0 if self.run.state.epoch >= self.run.membership.epoch else 0.01
            case rules.AskToJoin() | rules.Spare():
                asks = isinstance(action, rules.AskToJoin)
                self._stand_beside(f"{self.run.node} wants to join" if asks else "")
                return self._patience(waited)
            case rules.Wait():
                return self._patience(waited)

    def error_of(self, verdict: NoRound | Interrupted | OutOfReach) -> RendezvousError:
        """Return a verdict as the error that handlers of torch's interface raise."""
        if isinstance(verdict, Interrupted):
            return RendezvousGracefulExitError(verdict.reason)
        if isinstance(verdict, OutOfReach):
            return RendezvousConnectionError(str(verdict.error))
        match verdict.why:
            case rules.TooFew() as few:
                text = too_few_text(few, self.run.settings, self._waiting.place, self.run.state.unfit)
                return TooFewError(text, few.missing)
            case rules.Dismissed(wanted):
                return RendezvousGracefulExitError(f"no more than {are_text(wanted, 'node')} wanted")
            case rules.Fenced():
                return RendezvousGracefulExitError("a newer start of this run exists")
            case rules.LeaveRun():
                return RendezvousClosedError(_closed_text(self.run.state, self._waiting.place))

    def _stand_beside(self, request: str) -> None:
        """Ask the members of the running round for a place; end it if members have vanished.

        Members that have all succeeded may have died before they could end the run.
        """
        running = self.run.state.running
        if running is not None and self.run.everyone_succeeded():
            if self.run.deps.success_ends:
                self.run.report_done(running.number, "all workers succeeded")
            else:  # its members have left; nodes that come now begin a round of their own
                self.run.report_paused(running.number)
        elif running is not None and self.run.lost:
            self.run.report_lost(running.number, self.run.lost)
        elif running is not None and request:
            self.run.request_pause(running.number, request)

    def _patience(self, waited: rules.Waited) -> float:
        """Return the time between two looks: short at first, up to the heartbeat interval [s].

        The number of nodes sets the floor, so that all looks together stay affordable.
        """
        age = self.run.now() - waited.since
        view = self._view(self.run.state)
        forms = rules.is_among_the_first(view, self.run.now())
        floor = 0.01 if forms else 0.01 + 0.001 * rules.nodes_known(view)
        return min(max(floor, age / 10), self.run.settings.heartbeat_interval)

    def _form(self, node_ids: tuple[str, ...]) -> bool:
        """Publish the next round; False if a chosen node's offer cannot be read yet."""
        offers = self._read_offers(node_ids)
        if offers is None:
            return False
        first = offers[0]
        one_machine = all(offer.host == first.host for offer in offers)
        formed = RoundFormed(
            number=self.run.state.rounds + 1,
            epoch=self.run.membership.epoch,
            members=tuple(offer.member for offer in offers),
            # workers of one machine need no name resolution to find each other
            master_addr="127.0.0.1" if one_machine else first.addr,
            master_port=first.port,
            checkpoint=self.run.deps.latest_checkpoint(),
            lost=self.run.vanished(),
        )
        self.run.publish_round(formed)
        return True

    def _read_offers(self, node_ids: tuple[str, ...]) -> list[Offer] | None:
        """Return the contributions of the nodes, None if one cannot be read yet.

        A file system on the network answers many questions in the time of one.
        """
        read = partial(self.run.membership.read_offer, round_number=self.run.state.rounds + 1)
        if len(node_ids) <= _FEW:
            found = [read(node_id) for node_id in node_ids]
        else:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for large rounds only

            with ThreadPoolExecutor(_READERS) as pool:
                found = list(pool.map(read, node_ids))
        offers = [offer for offer in found if offer is not None]
        return offers if len(offers) == len(found) else None

    def _info(self, formed: RoundFormed) -> RendezvousInfo:
        rank = self.run.rank_in(formed)
        open_store = self.run.deps.open_store
        return RendezvousInfo(
            store=None,
            rank=rank,
            world_size=len(formed.members),
            bootstrap_store_info=RendezvousStoreInfo(formed.master_addr, formed.master_port),
            round=formed,
            open_store=partial(open_store, formed.number) if open_store else None,
        )


def _closed_text(state: RunState, place: str) -> str:
    if state.ending is not None:
        how = f"{state.ending.decision.value} ({state.ending.reason})"
        return f"the run has ended: {how}; a new run needs another directory than {place}"
    return "the run is being left; it goes on with the next start of the job"
