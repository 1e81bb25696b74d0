"""Waiting for other agents: through a store, while looking whether they are still there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.agent.server.api import (
    FOREIGN_SLICE_S,
    SLICE_S,
    ExitBarrier,
    MembershipWatch,
    OthersGoneError,
    RoundOverError,
    WatchedStore,
    look_at_others,
    round_of,
)
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RendezvousClosedError, RendezvousConnectionError, StoreTimeoutError
from hpc_elastic.multiprocessing.pcontext import NoTrap
from hpc_elastic.node.spec import WorkerGroup
from hpc_elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.testing.clock import FakeClock
from tests.agent.elastic_fakes import FakeHandler, NeverStore, new_store, spec_of

WHERE = RendezvousStoreInfo("host", 1)


def test_waits_are_cut_into_short_ones() -> None:
    """Between two of them the others are looked at; the error tells the whole time."""
    clock, looks = FakeClock(), []
    store = NeverStore(clock)
    watched = WatchedStore(store, lambda: looks.append(clock.monotonic()), clock)
    with pytest.raises(StoreTimeoutError, match=r"not within 2\.5 s: key k"):
        watched.wait(["k"], 2.5)
    assert [SLICE_S, SLICE_S, 0.5] == store.waits
    assert 3 == len(looks)


def test_torchs_stores_are_left_in_peace() -> None:
    """They warn whenever a wait ends in vain, so its parts are longer."""
    clock = FakeClock()
    store = NeverStore(clock, ours=False)
    with pytest.raises(StoreTimeoutError):
        WatchedStore(store, lambda: None, clock).wait(["k"], 15)
    assert [FOREIGN_SLICE_S, 5] == store.waits


class LateStore(NeverStore):
    """One that says in words of its own that a key does not come."""

    def wait(self, _keys: Sequence[str], timeout: timedelta) -> None:
        """Wait in vain."""
        try:
            super().wait(_keys, timeout)
        except StoreTimeoutError:
            raise RuntimeError("wait timeout") from None


def test_an_error_that_is_not_ours_stays_as_it_is() -> None:
    """Programs may look for the words of the store that they use."""
    clock = FakeClock()
    with pytest.raises(RuntimeError, match=r"^wait timeout$"):
        WatchedStore(LateStore(clock), lambda: None, clock).wait(["k"], 2.5)


class SilentStore(NeverStore):
    """One that does not say which of the keys are missing."""

    def wait(self, _keys: Sequence[str], timeout: timedelta) -> None:
        """Wait in vain."""
        try:
            super().wait(_keys, timeout)
        except StoreTimeoutError:
            raise StoreTimeoutError("too late") from None


@pytest.mark.parametrize(
    ("kind", "words", "missing"), [(NeverStore, "key k$", ("k",)), (SilentStore, "key k, l$", ())]
)
def test_the_missing_keys_are_named(kind: type[NeverStore], words: str, missing: tuple[str, ...]) -> None:
    """All that were waited for, where the store does not say which of them came."""
    clock = FakeClock()
    with pytest.raises(StoreTimeoutError, match=words) as caught:
        WatchedStore(kind(clock), lambda: None, clock).wait(["k", "l"], 2.5)
    assert missing == caught.value.missing


def test_reading_waits_as_long_as_the_store_does() -> None:
    """Without a timeout of its own a read takes that of the store."""
    clock = FakeClock()
    watched = WatchedStore(NeverStore(clock), lambda: None, clock)
    began = clock.monotonic()
    with pytest.raises(StoreTimeoutError):
        watched.get("k")
    assert began + 5 == clock.monotonic()


def test_a_look_can_end_a_wait() -> None:
    """What it raises comes out, long before the timeout."""
    clock = FakeClock()

    def look() -> None:
        raise RoundOverError

    with pytest.raises(RoundOverError):
        WatchedStore(NeverStore(clock), look, clock).multi_get(["k", "l"])


def test_a_broken_store_is_not_waited_for() -> None:
    """A store that fails at once is not asked again and again."""
    clock = FakeClock()
    store = NeverStore(clock, RuntimeError("connection lost"))
    with pytest.raises(RuntimeError, match="connection lost"):
        WatchedStore(store, lambda: None, clock).wait(["k"], timedelta(seconds=60))
    assert 1 == len(store.waits)


def test_everything_else_is_the_stores() -> None:
    """Values can be set and read; a simple store without waits is read as it is."""
    watched = WatchedStore(new_store(), lambda: None, SystemClock())
    watched.set("a", b"1")
    assert (b"1", [b"1"]) == (watched.get("a"), watched.multi_get(["a"]))
    assert watched.counts_writes

    class Simple:
        def get(self, key: str) -> bytes:
            return key.encode()

    assert b"k" == WatchedStore(Simple(), lambda: None, SystemClock()).get("k")


class Telling(FakeHandler):
    """A handler that tells which other nodes are at work."""

    def __init__(self, others: Sequence[str], **answers: Any) -> None:
        super().__init__(**answers)
        self._others = others

    def others_at_work(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(self._others)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (Telling([]), OthersGoneError),
        (Telling([], waiting=[1]), OthersGoneError),
        (Telling(["b"], waiting=[1]), RoundOverError),
        (Telling(["b"]), None),
        (FakeHandler(waiting=[1]), RoundOverError),
        (FakeHandler(), None),
    ],
)
def test_what_a_look_finds(handler: FakeHandler, expected: type[Exception] | None) -> None:
    """Nobody is left, or others start again."""
    if expected is None:
        look_at_others(handler)
    else:
        with pytest.raises(expected):
            look_at_others(handler)


def barrier_of(handler: FakeHandler, store: Any, rank: int = 0, world_size: int = 2) -> ExitBarrier:
    """Return an agent's exit barrier."""
    return ExitBarrier(handler, RendezvousInfo(store, rank, world_size, WHERE), SystemClock(), NoTrap())


def test_agents_wait_for_each_other() -> None:
    """Both leave when both have come; the keys can be used for another round in the same store."""
    store = new_store()
    for _ in range(2):
        found: list[str] = []

        def wait(rank: int, found: list[str] = found) -> None:
            found.append(barrier_of(FakeHandler(), store, rank).wait(120))

        threads = [threading.Thread(target=wait, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert ["Done waiting for other agents"] * 2 == found


def test_who_is_missing_is_named() -> None:
    """After the timeout the error has the ranks that have not come."""
    with pytest.raises(StoreTimeoutError, match=r"missing_ranks=\[1, 2\]"):
        barrier_of(FakeHandler(), new_store(), 0, 3).wait(0)


def test_nobody_to_wait_for() -> None:
    """It ends at the first look, and where there is no store at once."""
    gone = barrier_of(Telling([]), new_store()).wait(60)
    assert "Not waiting any more: no other agent is left" == gone
    assert "no store" in barrier_of(FakeHandler(), None).wait(60)


class TorchsError(Exception):
    """Is called as torch calls its own."""


TorchsError.__name__ = "RendezvousConnectionError"


@pytest.mark.parametrize("silent", [RendezvousConnectionError("no answer"), TorchsError("no answer")])
def test_a_silent_rendezvous_is_asked_again(silent: Exception) -> None:
    """Who does not answer may do so later; the time is bounded all the same."""
    handler = Telling(["b"], waiting=[silent] * 9)
    with pytest.raises(StoreTimeoutError):
        barrier_of(handler, new_store()).wait(0.1)


def test_a_rendezvous_that_is_broken_ends_the_wait() -> None:
    """What is no silence would be the same the next time."""
    with pytest.raises(ValueError, match="broken"):
        barrier_of(Telling(["b"], waiting=[ValueError("broken")] * 9), new_store()).wait(60)


@pytest.mark.parametrize(
    "error",
    [NotImplementedError(), RuntimeError('Tried to call pure virtual function "Store::wait"')],
    ids=["Python", "torch"],
)
def test_a_store_that_cannot_wait_is_read(error: Exception) -> None:
    """One derived from torch's may fill in no more than reading, which waits by itself."""
    clock, looks = FakeClock(), []
    store = NeverStore(clock, error)
    WatchedStore(store, lambda: looks.append("look"), clock).wait(["k"], 5)
    assert (1, []) == (len(store.waits), looks)


def test_the_round_is_what_the_rendezvous_returned() -> None:
    """An agent derived from ours may meet the others by itself; then its worker group knows."""
    store = new_store()
    met = RendezvousInfo(store, 1, 2, WHERE)
    group = WorkerGroup(spec_of(FakeHandler()))
    assert met is round_of(met, store, group)
    with pytest.raises(RuntimeError, match="no rendezvous"):
        round_of(None, store, group)
    for rank, size in ((2, None), (None, 3)):
        group.group_rank, group.group_world_size = rank, size
        with pytest.raises(RuntimeError, match="no rendezvous"):
            round_of(None, store, group)
    group.group_rank, group.group_world_size = 2, 3
    assert RendezvousStoreInfo("", 0) == round_of(None, store, group).bootstrap_store_info
    group.master_addr, group.master_port = "other", 7
    for known in (None, met):
        found = round_of(known, new_store(), group)
        assert (2, 3, RendezvousStoreInfo("other", 7)) == (
            found.rank, found.world_size, found.bootstrap_store_info
        )  # fmt: skip


def test_a_rendezvous_that_is_silent_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And once more when it answers again; as long as it answers nothing is said."""
    silent = RendezvousConnectionError("no answer")
    handler, watch = FakeHandler(waiting=[1, 2, silent, silent, 3, 4]), MembershipWatch()
    found = [(watch.nodes_waiting(handler), watch.is_out_of_touch, len(caplog.records)) for _ in range(6)]
    expected = [(1, False, 0), (2, False, 0), (0, True, 1), (0, True, 1), (3, False, 2), (4, False, 2)]
    assert expected == found


class Handler:
    """A rendezvous of somebody else's, in which two nodes wait."""

    is_over = False

    def num_nodes_waiting(self) -> int:
        """Return how many wait."""
        return 2

    def is_closed(self) -> bool:
        """Tell whether it is closed."""
        return self.is_over

    def get_run_id(self) -> str:
        """Return the run's id."""
        return "run-1"


class OwnHandler(Handler):
    """One that is closed only on purpose."""

    def others_at_work(self) -> list[str]:
        """Return the other nodes."""
        return ["n2"]


@pytest.mark.parametrize(
    ("kind", "is_over", "refused"),
    [(Handler, True, False), (Handler, False, False), (OwnHandler, False, False), (OwnHandler, True, True)],
)
def test_workers_go_on_unless_the_run_was_ended_on_purpose(
    kind: type[Handler], *, is_over: bool, refused: bool
) -> None:
    """Each node that leaves closes a rendezvous of somebody else's."""
    handler: Any = kind()
    handler.is_over = is_over
    watch = MembershipWatch()
    if refused:
        with pytest.raises(RendezvousClosedError, match="run-1"):
            watch.nodes_waiting(handler)
    else:
        assert 2 == watch.nodes_waiting(handler)


def test_a_store_without_a_timeout_is_waited_for_as_long_as_is_said() -> None:
    """In short parts, as any other."""
    clock = FakeClock()
    store: Any = SimpleNamespace(counts_writes=True, wait=NeverStore(clock).wait)
    with pytest.raises(StoreTimeoutError):
        WatchedStore(store, lambda: None, clock).wait(["k"], 2.5)
    assert 2.5 == pytest.approx(clock.monotonic() - FakeClock().monotonic())
