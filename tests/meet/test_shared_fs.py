"""The rendezvous over a shared directory, node by node."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.meet.interface import RendezvousStoreInfo
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.shared_fs import Interrupted
from hpc_elastic.record.journal import AfterDrain, Cause, Decision, MarkedCheckpoint, RoundFormed
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, NODES, REQUEUED, member
from tests.meet.one_node import SETTINGS, MakeNode, alone


def test_one_node_has_a_round_at_once(node: MakeNode, clock: FakeClock) -> None:
    """A single expected node does not wait."""
    before = clock.monotonic()
    info = node("n1", expected=("n1",)).next_rendezvous()
    assert (0, 1) == (info.rank, info.world_size)
    assert before == clock.monotonic()


def test_the_round_tells_what_workers_need(node: MakeNode) -> None:
    """Address, port and checkpoint stand in the round's record."""
    info = node("n1", expected=("n1",)).next_rendezvous()
    assert RoundFormed(1, E0, (member("n1"),), "127.0.0.1", 20_000, MarkedCheckpoint(120, "/c")) == info.round
    assert RendezvousStoreInfo("127.0.0.1", 20_000) == info.bootstrap_store_info
    assert "store of 1" == info.store


def test_last_call_is_waited_for_if_nobody_knows_who_comes(node: MakeNode, clock: FakeClock) -> None:
    """Without a list of nodes the last call passes before the round."""
    before = clock.monotonic()
    node("n1").next_rendezvous()
    assert SETTINGS.last_call_timeout <= clock.monotonic() - before < SETTINGS.last_call_timeout + 1


def test_the_join_timeout_names_the_missing(node: MakeNode) -> None:
    """Who waits in vain tells for whom."""
    settings = SETTINGS._replace(min_nodes=3)
    handler = node("n1", expected=NODES, settings=settings)
    with pytest.raises(RendezvousTimeoutError, match="1 of 3 nodes joined within 60 s; missing: n2, n3"):
        handler.next_rendezvous()


def test_a_closed_run_cannot_be_joined(node: MakeNode) -> None:
    """Once the run has ended, joining says so and why."""
    alone(node).run.end_run(Decision.FAILED, exit_code=1, reason="boom")
    late = node("n2")
    with pytest.raises(RendezvousClosedError, match="failed \\(boom\\)"):
        late.next_rendezvous()
    assert late.is_closed()


def test_closing_is_for_everybody(node: MakeNode) -> None:
    """Torch's `set_closed` ends the run for all nodes."""
    handler = alone(node)
    assert not handler.is_closed()
    handler.set_closed()
    assert node("n2").is_closed()


def test_a_node_of_an_older_start_is_sent_away(node: MakeNode) -> None:
    """After a requeue nobody of the older start joins."""
    alone(node, "n1", REQUEUED)
    with pytest.raises(RendezvousGracefulExitError, match="newer start"):
        node("n2").next_rendezvous()


def test_a_signal_interrupts_the_wait(node: MakeNode) -> None:
    """An agent that has to act gets out of the wait for others."""
    interrupted = node("n1", interrupted=lambda: True)
    assert isinstance(interrupted.join(), Interrupted)
    with pytest.raises(RendezvousGracefulExitError, match="interrupted"):
        interrupted.next_rendezvous()


def test_a_newcomer_asks_and_is_counted(node: MakeNode, clock: FakeClock) -> None:
    """A running round with room is asked to pause, and its members see somebody waiting."""
    handler = alone(node)
    asked: list[int] = []

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        asked.append(handler.num_nodes_waiting())
        if handler.run.tick().drain is not None:
            handler.run.report_paused(1)
            handler.run.set_phase(Phase.LEFT)

    info = node("n2", wait=wait).next_rendezvous()
    assert 1 in asked
    assert (2, 1) == (info.round.number if info.round else 0, info.world_size)


@pytest.mark.parametrize("cause", [Cause.MEMBERSHIP, Cause.PREEMPTION])
def test_a_pause_tells_what_was_saved_by_then(node: MakeNode, cause: Cause) -> None:
    """Else the timeline would say that nothing was, and the next round goes on from there."""
    run = alone(node).run
    run.request_drain(cause, AfterDrain.REJOIN)
    ended = run.report_paused(1).ended
    assert ended is not None
    assert (cause, 120) == (ended.cause, ended.saved)


# Fencing


def test_a_drain_asked_for_by_an_older_start_is_refused(node: MakeNode) -> None:
    """An agent that was cut off over a requeue does not stop the new start with its signal."""
    old = alone(node)
    alone(node, "n2", REQUEUED)
    assert old.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM").drain is None


def test_an_ending_written_by_an_older_start_is_refused(node: MakeNode) -> None:
    """An agent that was cut off over a requeue does not end the run of the new start."""
    old = alone(node)
    alone(node, "n2", REQUEUED)
    state = old.run.end_run(Decision.FAILED, exit_code=1, reason="gave up")
    assert state.ending is None


def test_reports_of_an_older_start_are_refused(node: MakeNode) -> None:
    """Crashes, losses, stops and drains that an older start reports late change nothing."""
    old = alone(node)
    alone(node, "n2", REQUEUED)
    before = old.run.state.last
    old.run.report_crash(1, {})
    old.run.report_lost(1, ("n1",))
    old.run.report_paused(1)
    old.run.agree_stop(1, 5)
    state = old.run.report_drained(Cause.PREEMPTION)
    assert before < state.last  # it has read what is new
    assert (None, None, 0) == (state.ended, state.drained, state.crashes)


# A shared directory that does not answer


class _StalledStore(MemoryStore):
    """A store that can stop answering."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stalled = False
        self.refusals: list[str] = []  # marks with these parts are refused once

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Mark, if the store answers."""
        refused = [part for part in self.refusals if part in name]
        if refused:
            self.refusals = [part for part in self.refusals if part not in refused]
            raise StoreError("no answer")
        super().mark(directory, name, instead_of=instead_of)

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Read, if the store answers."""
        if self.is_stalled:
            raise StoreError("no answer")
        return super().read_after(log, number)


def test_blind_is_not_dead(node: MakeNode, clock: FakeClock) -> None:
    """While the store does not answer, time is noted and nobody is given up."""
    store = _StalledStore()
    handler = node("n1", expected=("n1",), store=store)
    handler.next_rendezvous()
    store.is_stalled = True
    clock.advance(1.0)
    since = clock.monotonic()
    state = handler.run.tick()
    clock.advance(100.0)
    assert state == handler.run.tick()
    assert since == handler.run.blind_since
    assert () == handler.run.lost
    store.is_stalled = False
    handler.run.tick()
    assert handler.run.blind_since is None


def test_joining_waits_for_the_store(node: MakeNode, clock: FakeClock) -> None:
    """A store that does not answer at first costs time, not the run."""
    store = _StalledStore()
    store.is_stalled = True

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        if clock.monotonic() > 1_010:
            store.is_stalled = False

    handler = node("n1", expected=("n1",), store=store, wait=wait)
    said: list[str] = []
    handler._waiting = handler._waiting._replace(say=said.append)
    assert 1 == handler.next_rendezvous().world_size
    assert ["the run directory does not answer, trying again: no answer"] == said


def test_a_spare_survives_a_hiccup_of_the_store(node: MakeNode, clock: FakeClock) -> None:
    """A node that has stood by for long gives a store that fails once the same time as anybody."""
    store = _StalledStore()
    settings = SETTINGS._replace(max_nodes=1)
    member_handler = node("n1", expected=("n1",), store=store, settings=settings)
    member_handler.next_rendezvous()
    began = clock.monotonic()

    def wait(seconds: float) -> None:
        clock.advance(1.0)
        member_handler.run.tick()
        age = clock.monotonic() - began
        if age == 100.0:
            store.refusals = ["n2.1+0-0-0-0+joining+3"]
            member_handler.run.report_crash(1, {})
            assert 1 == member_handler.next_rendezvous().world_size
        if age >= 110.0:
            member_handler.set_closed()

    with pytest.raises(RendezvousClosedError):
        node("n2", store=store, settings=settings, wait=wait).next_rendezvous()


def test_a_place_is_taken_in_spite_of_a_hiccup(node: MakeNode) -> None:
    """A store that fails at the moment the round is there costs time, not the agent."""
    store = _StalledStore()
    store.refusals = ["+running+"]
    assert 1 == node("n1", expected=("n1",), store=store).next_rendezvous().world_size


def test_a_store_that_never_answers_is_named(node: MakeNode) -> None:
    """After the join timeout the store's own error is told."""
    store = _StalledStore()
    store.is_stalled = True
    with pytest.raises(RendezvousConnectionError, match="no answer"):
        node("n1", store=store).next_rendezvous()
