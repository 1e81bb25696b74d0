"""Signs of life of a handler whose caller is busy, and values that hold while nothing answers."""

from __future__ import annotations

import gc
import threading

import pytest

from hpc_elastic.errors import (
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    StoreError,
)
from hpc_elastic.rendezvous.contact import ContactTurn, KeepAlive, LastKnown, until_lease
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until

NEVER_S = 1000.0


class _Heart:
    """Something that beats, or fails to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.beats = 0

    def beat(self) -> None:
        """Beat, or fail."""
        if self.error is not None:
            raise self.error
        self.beats += 1


def _started(heart: _Heart, clock: FakeClock, interval: float = NEVER_S) -> KeepAlive:
    keep_alive = KeepAlive(heart.beat, interval, 4.0, clock, "the run 'r'")
    keep_alive.start()
    return keep_alive


def test_a_heart_beats_by_itself(clock: FakeClock) -> None:
    """The thread beats until it is stopped."""
    heart = _Heart()
    keep_alive = _started(heart, clock, 0.001)
    wait_until(lambda: heart.beats >= 3, "three beats")
    keep_alive.check()
    keep_alive.stop()
    beats = heart.beats
    assert not keep_alive.is_running
    keep_alive.check()
    assert beats == heart.beats


def test_a_failure_is_told_after_the_lease(clock: FakeClock) -> None:
    """A beat that fails may be made up for; silence of a lease is told with the last error."""
    heart = _Heart()
    keep_alive = _started(heart, clock)
    heart.error = StoreError("disk full")
    clock.advance(3.9)
    keep_alive.beat()
    keep_alive.check()
    clock.advance(0.1)
    text = r"^no heartbeat has reached the run 'r' for 4\.0 s \(the lease is 4 s\).*last error: disk full$"
    with pytest.raises(RendezvousConnectionError, match=text):
        keep_alive.check()
    heart.error = None
    keep_alive.beat()
    keep_alive.check()
    keep_alive.stop()


def test_a_long_sleep_is_no_failure(clock: FakeClock) -> None:
    """A process that was stopped is not told of a failure that nobody has seen."""
    keep_alive = _started(_Heart(), clock)
    clock.advance(100.0)
    keep_alive.check()
    keep_alive.stop()


@pytest.mark.parametrize(
    ("error", "told"),
    [(RendezvousStateError("rubbish"), RendezvousStateError), (KeyError(1), RendezvousConnectionError)],
)
def test_what_cannot_pass_is_told_at_once(clock: FakeClock, error: Exception, told: type[Exception]) -> None:
    """Damage, and mistakes in a user's backend, do not end in a log that nobody reads."""
    heart = _Heart()
    keep_alive = _started(heart, clock)
    heart.error = error
    keep_alive.beat()
    with pytest.raises(told):
        keep_alive.check()
    keep_alive.stop()


def test_a_dead_thread_is_told(clock: FakeClock) -> None:
    """After a fork the child does not beat, and says so."""
    keep_alive = _started(_Heart(), clock)
    assert keep_alive._timer is not None
    keep_alive._timer.cancel()
    with pytest.raises(RendezvousConnectionError, match="does not send heartbeats to the run 'r'"):
        keep_alive.check()


def test_a_forgotten_handler_stops_beating(clock: FakeClock) -> None:
    """The thread does not keep a handler alive that nobody has any more."""
    hearts = [_Heart()]
    keep_alive = _started(hearts[0], clock, 0.001)
    wait_until(lambda: hearts[0].beats > 0, "a beat")
    assert keep_alive._timer is not None
    thread = keep_alive._timer._thread
    assert thread is not None
    hearts.clear()
    gc.collect()
    wait_until(lambda: not thread.is_alive(), "the thread has ended")


# Values that hold


class _Source:
    """A value that can be read, or not."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.value = 1
        self.reads = 0

    def read(self) -> int:
        """Return the value."""
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.value


def test_a_fresh_value_is_not_read_again(clock: FakeClock) -> None:
    """A monitor loop that asks often reads now and then."""
    source = _Source()
    known = LastKnown(source.read, 0, ContactTurn(clock), fresh_s=1.0, lease=4.0)
    assert [1, 1, 1] == [known.get(), known.get(), known.get()]
    source.value = 2
    clock.advance(0.9)
    assert (1, 1) == (known.get(), source.reads)
    clock.advance(0.1)
    assert 2 == known.get()
    source.value = 3
    known.forget()
    assert 3 == known.get()


@pytest.mark.parametrize("error", [StoreError("no answer"), RendezvousConnectionError("no answer")])
def test_the_last_value_holds_for_a_lease(clock: FakeClock, error: Exception) -> None:
    """An error passes, or is told after a lease; an answer starts the lease anew."""
    source = _Source()
    known = LastKnown(source.read, 0, ContactTurn(clock), fresh_s=1.0, lease=4.0)
    known.get()
    for _ in range(2):
        source.error = error
        clock.advance(10.0)
        assert 1 == known.get()
        clock.advance(3.9)
        assert 1 == known.get()
        source.error = None
        assert 1 == known.get()
    source.error = error
    clock.advance(1.0)
    known.get()
    clock.advance(4.0)
    with pytest.raises(RendezvousConnectionError, match=r"^no answer$"):
        known.get()


def test_other_errors_are_not_held_back(clock: FakeClock) -> None:
    """Damage does not pass."""
    source = _Source()
    source.error = RendezvousStateError("rubbish")
    with pytest.raises(RendezvousStateError):
        LastKnown(source.read, 0, ContactTurn(clock), fresh_s=1.0, lease=4.0).get()


def test_a_step_that_hangs_does_not_hang_the_others(clock: FakeClock) -> None:
    """Who cannot have the turn gets the last value."""
    source, turn = _Source(), ContactTurn(clock)
    known = LastKnown(source.read, 0, turn, fresh_s=1.0, lease=0.01)
    with turn.taken():
        assert (0, 0) == (known.get(), source.reads)


# Taking turns


def test_who_waits_lets_others_in(clock: FakeClock) -> None:
    """The turn is free during a wait, and taken again after it."""
    turn = ContactTurn(clock)
    waiting = threading.Event()

    def wait() -> None:
        with turn.taken():
            waiting.set()
            turn.wait(NEVER_S)
            assert not turn._taken.acquire(blocking=False)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(120)
    with turn.tried(10.0) as held:
        assert held
    turn.leave()
    thread.join(120)
    assert not thread.is_alive()
    assert turn.is_leaving
    with pytest.raises(RendezvousGracefulExitError):
        turn.insist()


def test_a_step_is_tried_again(clock: FakeClock) -> None:
    """An answer that comes within the lease is an answer."""
    turn = ContactTurn(clock)
    errors = [StoreError("no answer"), RendezvousConnectionError("no answer")]

    def step() -> str:
        clock.advance(1.0)
        if errors:
            raise errors.pop()
        return "done"

    with turn.taken():
        assert "done" == until_lease(step, turn, 4.0, 0.0)
        errors += [StoreError("gone")] * 9
        with pytest.raises(RendezvousConnectionError, match=r"^gone$"):
            until_lease(step, turn, 4.0, 0.0)
