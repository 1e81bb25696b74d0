"""What a member of a round sees of the others, and what that costs."""

from __future__ import annotations

from functools import partial

import pytest

from hpc_elastic.errors import StoreError, TakenOverError
from hpc_elastic.meet.member_names import MemberName, Phase, Suspicion, parse_name, suspicions_in
from hpc_elastic.meet.membership import Offer
from hpc_elastic.meet.shared_fs import SharedFsRendezvous
from hpc_elastic.record.journal import AfterDrain, Cause, Decision, SizeWanted, WarningHeld
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, REQUEUED, formed
from tests.meet.one_node import MakeNode, node_maker, together


def test_a_silent_member_is_noticed(node: MakeNode, clock: FakeClock) -> None:
    """Members that go on beating lose one that does not, within the lease and a beat."""
    first, second = together(node, clock)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick()
    assert ("n2",) == first.run.lost
    state = first.run.report_lost(1, first.run.lost)
    assert state.running is None
    assert frozenset({"n2"}) == state.lost
    assert second.run.tick().running is None


def _round_of(node: MakeNode, clock: FakeClock, names: tuple[str, ...]) -> list[SharedFsRendezvous]:
    """Return the handlers of nodes that are in one round."""
    handlers = [node(name, expected=names) for name in names]
    for handler in handlers[1:]:
        handler._enter()
    with_others: list[SharedFsRendezvous] = []

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        if not with_others:
            with_others.extend(handlers[1:])
            for handler in handlers[1:]:
                handler._look_again()

    handlers[0]._waiting = handlers[0]._waiting._replace(wait=wait)
    for handler in handlers:
        assert len(names) == handler.next_rendezvous().world_size
    return handlers


def test_two_observers_agree_on_a_loss(node: MakeNode, clock: FakeClock) -> None:
    """One suspects, the second confirms; neither alone gives a third node up."""
    first, second, _ = _round_of(node, clock, ("n1", "n2", "n3"))
    for _ in range(4):
        clock.advance(1.0)
        first.run.tick()
        second.run.tick()
    clock.advance(1.0)
    first.run.tick()
    assert 1 == len(first.run.membership._store.list("members")) - 3
    assert () == first.run.lost
    second.run.tick()
    assert ("n3",) == second.run.lost


def test_one_observer_is_enough_if_nobody_answers(node: MakeNode, clock: FakeClock) -> None:
    """Who is alone in looking waits two heartbeats for another one after it has told its suspicion."""
    first, second, third = _round_of(node, clock, ("n1", "n2", "n3"))
    lost_after = None
    for beat in range(1, 10):
        clock.advance(1.0)
        first.run.tick()
        second.run.membership.beat_if_due()  # it is alive, and does not look
        if first.run.lost and lost_after is None:
            lost_after = beat
    assert (7, ("n3",)) == (lost_after, first.run.lost)
    assert third.run.lost == ()


def test_a_suspicion_is_refuted_by_whoever_has_seen_a_heartbeat(node: MakeNode, clock: FakeClock) -> None:
    """A node that sees another one beat takes away what others suspect, so that it is not given up."""
    first, second, third = _round_of(node, clock, ("n1", "n2", "n3"))
    stale = first.run.membership.roster[third.run.membership.node_id].name
    for _ in range(2):
        clock.advance(1.0)
        for handler in (first, second, third):
            handler.run.tick()
    second.run.membership.suspect(Suspicion(stale.node_id, stale.epoch, stale.counter, "n2.1"))
    assert 1 == len(suspicions_in(first.run.membership._store.list("members"), stale.epoch))
    clock.advance(1.0)
    first.run.tick()
    assert set() == suspicions_in(first.run.membership._store.list("members"), stale.epoch)


def test_an_objection_starts_the_wait_for_others_anew(node: MakeNode, clock: FakeClock) -> None:
    """While somebody keeps taking its mark away, one observer alone gives nobody up."""
    first, second, _ = _round_of(node, clock, ("n1", "n2", "n3"))
    store, epoch = first.run.membership._store, first.run.membership.epoch
    for _ in range(20):
        clock.advance(1.0)
        first.run.tick()
        second.run.membership.beat_if_due()
        for mark in suspicions_in(store.list("members"), epoch):
            store.unmark("members", mark.text())
        assert () == first.run.lost


def test_a_file_system_that_takes_no_new_name_stops_no_heartbeat(node: MakeNode, clock: FakeClock) -> None:
    """A suspicion that cannot be told keeps the observer neither from beating nor from seeing."""
    store = _NoNewNames()
    first, second, _ = _round_of(partial(node, store=store), clock, ("n1", "n2", "n3"))
    store.is_full = True
    for _ in range(8):
        clock.advance(1.0)
        before = first.run.membership._name
        first.run.tick()
        second.run.membership.beat_if_due()
        assert before != first.run.membership._name
        assert first.run.blind_since is None


class _NoNewNames(MemoryStore):
    """A store that can run out of room for new names."""

    is_full = False

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Mark, if the name takes the place of another one or there is room."""
        if self.is_full and instead_of is None:
            raise StoreError("the quota is used up")
        super().mark(directory, name, instead_of=instead_of)


def test_a_wish_for_another_size_is_not_lost(node: MakeNode, clock: FakeClock) -> None:
    """A size that is asked for while a round is being formed holds for that round."""
    store = MemoryStore()
    log = RunLog(store, clock, "login")
    first = node("n1", expected=("n1", "n2"), store=store)
    second = node("n2", expected=("n1", "n2"), store=store)
    second._enter()

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        second._look_again()

    first._waiting = first._waiting._replace(wait=wait)
    read = first._read_offers

    def read_slowly(node_ids: tuple[str, ...]) -> list[Offer] | None:
        log.commit(lambda _: SizeWanted(0, 1, "meanwhile"))
        return read(node_ids)

    first._read_offers = read_slowly  # type: ignore[method-assign]
    assert 1 == first.next_rendezvous().world_size


def test_a_late_wish_to_join_pauses_no_later_round(node: MakeNode, clock: FakeClock) -> None:
    """A newcomer that asks for a place in a round that is over meanwhile disturbs nobody."""
    first, _ = together(node, clock)
    state = first.run.state
    assert first.run.request_pause(state.rounds - 1, "n9 wants to join").drain is None
    assert first.run.request_pause(state.rounds, "n9 wants to join").drain is not None


def test_a_new_start_clears_up_after_the_last(node: MakeNode, clock: FakeClock) -> None:
    """The agent that has announced a start takes away what is left of older ones, once its workers run."""
    store = MemoryStore()
    store.mark("members", MemberName("n9.9", E0, Phase.RUNNING, 1, 7).text())
    handler = node("n1", epoch=REQUEUED, expected=("n1",), store=store)
    tidied: list[int] = []
    handler.run.deps = handler.run.deps._replace(tidy=tidied.append)
    handler.next_rendezvous()
    assert [] == tidied
    clock.advance(1.0)
    handler.run.tick()
    assert [1] == tidied
    assert [REQUEUED] == [name.epoch for text in store.list("members") if (name := parse_name(text))]


def test_an_observer_looks_when_a_lease_runs_out(node: MakeNode, clock: FakeClock) -> None:
    """The end of a lease is not slept over until the next heartbeat."""
    first, second = together(node, clock)
    clock.advance(0.5)
    second.run.membership.tell_news()
    for _ in range(4):
        clock.advance(first.run.next_turn_at() - clock.monotonic())
        first.run.tick()
    seen_at = first.run.membership.roster[second.run.membership.node_id].changed_at
    assert seen_at + first.run.settings.lease == first.run.next_turn_at()
    clock.advance(first.run.next_turn_at() - clock.monotonic())
    first.run.tick()
    assert ("n2",) == first.run.lost


class _CountingStore(MemoryStore):
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Mark."""
        self.operations.append("mark")
        super().mark(directory, name, instead_of=instead_of)

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Read."""
        self.operations.append("read")
        return super().read_after(log, number)

    def list(self, directory: str) -> list[str]:
        """List."""
        self.operations.append("list")
        return super().list(directory)


def test_a_heartbeat_costs_two_operations(node: MakeNode, clock: FakeClock) -> None:
    """An observer reads the news in the names of the others, every fifth time in the journal instead."""
    store = _CountingStore()
    first = node("n1", expected=("n1", "n2"), store=store)
    second = node("n2", expected=("n1", "n2"), store=store)
    second._enter()

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        second._look_again()

    first._waiting = first._waiting._replace(wait=wait)
    first.next_rendezvous()
    second.next_rendezvous()
    for _ in range(5):  # the first one clears up after the last start once
        clock.advance(1.0)
        second.run.membership.beat_if_due()
        first.run.tick()
    costs = []
    asked: set[str] = set()
    for _ in range(20):
        clock.advance(1.0)
        second.run.membership.beat_if_due()
        store.operations.clear()
        first.run.tick()
        costs.append(len(store.operations))
        asked.update(store.operations)
    assert [2] * 20 == costs
    assert "read" in asked


def test_who_is_in_no_round_watches_nobody(node: MakeNode, clock: FakeClock) -> None:
    """It beats and reads the journal, before a round and beside one."""
    store = _CountingStore()
    waiting = node("n3", store=store)
    first = node("n1", expected=("n1",), store=store)
    waiting.run.membership.set_phase(Phase.JOINING, 1)

    def costs() -> list[str]:
        clock.advance(1.0)
        first.run.membership.beat_if_due()
        store.operations.clear()
        waiting.run.tick()
        return store.operations

    assert [["mark", "read"]] * 3 == [[*costs()] for _ in range(3)]
    first.next_rendezvous()
    assert [["mark", "read"]] * 6 == [[*costs()] for _ in range(6)]


def test_between_two_rounds_nobody_is_watched(node: MakeNode, clock: FakeClock) -> None:
    """Who waits for the next one looks when it wants to; its heartbeats read the journal."""
    store = _CountingStore()
    first = node("n1", expected=("n1",), store=store)
    first.next_rendezvous()
    for _ in range(3):
        clock.advance(1.0)
        first.run.tick()
    first.run.report_crash(1, {})

    def costs() -> list[str]:
        clock.advance(1.0)
        store.operations.clear()
        first.run.tick()
        return [*store.operations]

    assert [["mark", "read"]] * 6 == [costs() for _ in range(6)]
    first.run.commit(formed(2, ("n2",)))  # a round without it
    assert [["mark", "read"]] * 6 == [costs() for _ in range(6)]


def test_survivors_are_numbered_without_the_gone(node: MakeNode, clock: FakeClock) -> None:
    """In the order of the round; who is no member has no place."""
    first, second, third = _round_of(node, clock, ("n1", "n2", "n3"))
    beside = node("n4")
    beside.run.refresh()
    assert [0, 1, 2] == [one.run.place_among_survivors() for one in (first, second, third)]
    for _ in range(5):
        clock.advance(1.0)
        for one in (second, third):
            one.run.tick(look=True)
    assert ("n1",) == second.run.vanished()
    assert [0, 1] == [one.run.place_among_survivors() for one in (second, third)]
    assert None is beside.run.place_among_survivors()


def test_news_reaches_an_observer_with_the_next_heartbeat(node: MakeNode, clock: FakeClock) -> None:
    """A record that another member adds is told in its name, one by the user in a name of its own."""
    first, second = together(node, clock)
    clock.advance(1.0)
    first.run.tick()
    second.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM")
    clock.advance(1.0)
    state = first.run.tick()
    assert state.drain is not None


def test_who_stands_beside_a_round_cannot_drain_it(node: MakeNode, clock: FakeClock) -> None:
    """Its signal is about itself; between rounds, and as a member, it speaks for the start of the job."""
    first, second = together(node, clock)
    beside = node("n3")
    assert beside.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM").drain is None
    first.run.report_crash(1, {})
    second.run.refresh()
    assert beside.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM").drain is not None


def test_the_end_of_an_older_round_is_not_that_of_the_run(node: MakeNode, clock: FakeClock) -> None:
    """An agent that tells late that all have succeeded does not end a round that has begun since."""
    first, second = together(node, clock)
    first.run.report_crash(1, {})
    second.run.tick(look=True)
    second.run.set_phase(Phase.LEFT)
    first._waiting = first._waiting._replace(wait=clock.advance)
    info = first.next_rendezvous()
    assert info.round is not None
    assert 2 == info.round.number
    assert first.run.report_done(1, "late").ending is None
    assert first.run.report_done(2, "in time").ending is not None


def test_leaving_is_noticed_at_once(node: MakeNode, clock: FakeClock) -> None:
    """A member that leaves while the round runs is missed without waiting for its lease."""
    first, second = together(node, clock)
    assert second.shutdown()
    first.run.tick(look=True)
    assert ("n2",) == first.run.lost


def test_a_finished_member_may_leave(node: MakeNode, clock: FakeClock) -> None:
    """A member whose workers have succeeded and that left after the exit barrier is not lost."""
    first, second = together(node, clock)
    second.run.set_phase(Phase.SUCCEEDED)
    second.shutdown()
    first.run.tick(look=True)
    assert () == first.run.lost


def test_what_was_lost_in_one_round_is_not_lost_in_the_next(node: MakeNode, clock: FakeClock) -> None:
    """A spare that has seen a loss in round 1 does not blame round 2 for it."""
    first, _ = together(node, clock)
    looks: list[int] = []

    def wait(seconds: float) -> None:
        clock.advance(1.0)
        looks.append(1)
        state = first.run.tick()
        if spare.run.lost:  # at this moment the members act, before the spare does
            first.run.report_lost(1, ("n2",))
            first.run.set_phase(Phase.LEFT)
            other.next_rendezvous()
        assert len(looks) < 30
        assert state.rounds < 2 or state.running is not None

    spare = node("n3", wait=wait)
    other = node("n4")
    spare.next_rendezvous()
    assert spare.run.state.running is not None


def test_everyone_in_leaves_out_the_dead(node: MakeNode, clock: FakeClock) -> None:
    """A barrier is not held up by a member whose lease has run out."""
    first, second = together(node, clock)
    first.run.set_phase(Phase.STOPPED)
    first.run.tick(look=True)
    assert not first.run.everyone_in(Phase.STOPPED)
    second.run.set_phase(Phase.STOPPED)
    first.run.tick(look=True)
    assert first.run.everyone_in(Phase.STOPPED)
    second.run.set_phase(Phase.RUNNING)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick(look=True)
    assert first.run.everyone_in(Phase.STOPPED)


def test_before_the_first_round_nobody_is_missing(node: MakeNode) -> None:
    """There is nobody whose workers could run."""
    assert node("n1").run.everyone_in(Phase.STOPPED)


def test_who_sees_nothing_knows_of_nobody_that_has_stopped(node: MakeNode, clock: FakeClock) -> None:
    """What was concluded before is void, until it has looked through everything again."""
    first, second = together(node, clock)
    for one in (first, second):
        one.run.set_phase(Phase.STOPPED)
    first.run.membership.look()
    assert first.run.everyone_in(Phase.STOPPED)
    first.run.note_blindness()
    assert not first.run.everyone_in(Phase.STOPPED)
    first.run.look_through()
    assert first.run.everyone_in(Phase.STOPPED)


def test_whose_workers_run_has_a_step_to_tell(node: MakeNode, clock: FakeClock) -> None:
    """Whose have ended in this round has none; what was told in an earlier round does not count."""
    first, second = together(node, clock)
    formed_now = first.run.state.round
    assert formed_now is not None
    both, me = ["n1.1", "n2.1"], "n1.1"
    for phase, expected in (
        (Phase.RUNNING, both),
        (Phase.STOPPED, [me]),
        (Phase.RUNNING, both),
        (Phase.SUCCEEDED, [me]),
    ):
        second.run.set_phase(phase)
        first.run.membership.look()
        assert expected == first.run.working_members(formed_now)
    assert both == first.run.working_members(formed_now._replace(number=2))


@pytest.mark.parametrize(
    ("phase", "named"), [(Phase.RUNNING, ("n2",)), (Phase.STOPPED, ()), (Phase.LEFT, ())]
)
def test_a_node_that_vanishes_in_a_drain_is_named(
    node: MakeNode, clock: FakeClock, phase: Phase, named: tuple[str, ...]
) -> None:
    """Unless its workers had stopped before: whatever it cost, its loss did not."""
    first, second = together(node, clock)
    drained = first.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE).drain
    second.run.set_phase(phase)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick()
    state = first.run.report_asked_drained(Cause.PREEMPTION, drained)
    assert state.drained is not None
    assert named == state.drained.missing


def test_a_round_has_succeeded_when_all_its_members_have(node: MakeNode, clock: FakeClock) -> None:
    """One whose workers run or have been stopped is missing, and so is everybody before the first round."""
    assert not node("n9").run.everyone_succeeded()
    first, second = together(node, clock)
    first.run.set_phase(Phase.SUCCEEDED)
    for phase, expected in ((Phase.RUNNING, False), (Phase.STOPPED, False), (Phase.SUCCEEDED, True)):
        second.run.set_phase(phase)
        first.run.membership.look()
        assert expected is first.run.everyone_succeeded()


def test_the_place_of_the_run_is_checked_with_each_heartbeat(node: MakeNode, clock: FakeClock) -> None:
    """Not between two of them, but when the shared directory does not answer."""
    first, _ = together(node, clock)
    checked: list[float] = []
    first.run.deps = first.run.deps._replace(check_place=lambda: checked.append(clock.monotonic()))
    first.run.tick()
    expected = []
    for _ in range(3):
        clock.advance(first.run.membership.next_beat_at() - clock.monotonic())
        expected.append(clock.monotonic())
        first.run.tick()
        first.run.tick(look=True)
        assert expected == checked
    first.run.note_blindness()
    assert [*expected, clock.monotonic()] == checked


def test_another_directory_in_the_place_of_the_runs_is_told(node: MakeNode, clock: FakeClock) -> None:
    """By the heartbeat, and instead of a blindness."""

    def refuse() -> None:
        raise TakenOverError("another directory is there")

    first, _ = together(node, clock)
    first.run.deps = first.run.deps._replace(check_place=refuse)
    first.run.tick()
    clock.advance(1.0)
    for act in (first.run.tick, first.run.note_blindness, first.run.check_place):
        with pytest.raises(TakenOverError):
            act()
    assert first.run.blind_since is None


def test_who_has_been_blind_sees_what_has_changed_meanwhile(node: MakeNode, clock: FakeClock) -> None:
    """The others may have ended their workers, and none of them is lost for the time that has passed."""
    first, second = together(node, clock)
    first.run.note_blindness()
    clock.advance(100.0)
    second.run.set_phase(Phase.STOPPED)
    first.run.look_through()
    me, other = first.run.membership.node_id, second.run.membership.node_id
    assert Phase.STOPPED is first.run.membership.roster[other].name.phase
    assert () == first.run.vanished()
    formed_now = first.run.state.round
    assert formed_now is not None
    assert [me, other] == first.run.live_members(formed_now)


def test_nothing_is_cleared_up_before_workers_run(node: MakeNode, clock: FakeClock) -> None:
    """The start comes first, and who has not announced it clears nothing up."""
    store = MemoryStore()
    first, second = (node(name, expected=("n1", "n2"), store=store) for name in ("n1", "n2"))
    tidied: list[str] = []
    first.run.deps = first.run.deps._replace(tidy=lambda _: tidied.append("n1"))
    second.run.deps = second.run.deps._replace(tidy=lambda _: tidied.append("n2"))
    for handler in (first, second):
        handler.run.announce()
        clock.advance(1.0)
        handler.run.tick()
    assert [] == tidied
    first.run.commit(formed(1, ("n1", "n2")))
    for _ in range(20):  # where it has nobody to watch
        clock.advance(1.0)
        for handler in (second, first):
            handler.run.tick()
    assert ["n1"] == tidied


def test_a_blindness_begins_when_the_directory_first_did_not_answer(node: MakeNode, clock: FakeClock) -> None:
    """Until it has answered; a later one begins anew, and each holds the next heartbeat up."""
    first, _ = together(node, clock)
    began = clock.monotonic()
    for _ in range(3):
        first.run.note_blindness()
        assert began == first.run.blind_since
        assert clock.monotonic() + first.run.settings.heartbeat_interval <= first.run.next_turn_at()
        clock.advance(5.0)
    first.run.tick()
    assert first.run.blind_since is None
    first.run.note_blindness()
    assert clock.monotonic() == first.run.blind_since


def test_times_of_a_held_warning_are_told_to_a_tenth_of_a_second(node: MakeNode, clock: FakeClock) -> None:
    """Slurm knows them no better."""
    first, _ = together(node, clock)
    held = first.run.report_warning_held(1, 118.04, 30.06).held_warning
    assert WarningHeld(1, "n1", 118.0, 30.1) == held


def test_who_was_lost_in_a_round_is_not_lost_in_the_next(node: MakeNode, clock: FakeClock) -> None:
    """Before the next look, too."""
    first, _ = together(node, clock)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick()
    first.run.report_lost(1, first.run.lost)
    assert () == first.run.lost
    first.run.commit(formed(2, ("n1", "n2")))
    assert (2, ()) == (first.run.state.rounds, first.run.lost)


def test_a_node_that_sees_nothing_misses_nobody(node: MakeNode, clock: FakeClock) -> None:
    """Nobody has vanished while the shared directory does not answer."""
    first, _ = together(node, clock)
    clock.advance(5.0)
    assert ("n2",) == first.run.vanished()
    first.run.note_blindness()
    assert () == first.run.vanished()


def test_only_the_round_that_runs_can_end_the_run(node: MakeNode, clock: FakeClock) -> None:
    """It has succeeded, with exit code 0; one that has ended otherwise cannot any more."""
    first, _ = together(node, clock)
    assert None is first.run.report_done(7, "all workers succeeded").ending
    ending = first.run.report_done(1, "all workers succeeded").ending
    assert ending is not None
    assert (Decision.DONE, 0) == (ending.decision, ending.exit_code)
    other, _ = together(node_maker(MemoryStore(), clock), clock)
    other.run.report_lost(1, ("n2",))
    assert None is other.run.report_done(1, "all workers succeeded").ending


def test_workers_that_fail_as_others_did_are_told_by_one_more_node(node: MakeNode, clock: FakeClock) -> None:
    """Not by the same one, of another round or failure, and not before the round has ended."""
    first, second = together(node, clock)
    failure = {"message": "boom", "exitcode": 1}
    assert second.run.report_failed_too(1, failure).ended is None
    first.run.report_crash(1, failure)
    for run, number, told in (
        (first.run, 1, failure),
        (second.run, 2, failure),
        (second.run, 1, {"exitcode": 2}),
    ):
        ended = run.report_failed_too(number, told).ended
        assert ended is not None
        assert ("n1",) == ended.nodes
    ended = second.run.report_failed_too(1, failure).ended
    assert ended is not None
    assert ("n1", "n2") == ended.nodes


def test_the_step_after_which_all_stop_is_computed_once_all_have_told_theirs(
    node: MakeNode, clock: FakeClock
) -> None:
    """By the first nodes; before a stop is wanted there is none."""
    first, second = together(node, clock)
    assert None is first.run.common_step()
    first.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE)
    second.run.refresh()
    for one, step in ((first, 12), (second, 15)):
        one.run.membership.tell_step(1, step)
    assert None is first.run.common_step()
    for _ in range(2):
        clock.advance(1.0)
        for one in (first, second):
            one.run.tick(look=True)
    assert [15, 15] == [one.run.common_step() for one in (first, second)]
