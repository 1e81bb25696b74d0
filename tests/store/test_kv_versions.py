"""Writers of the same key agree, also when one of them stands still, and when operations fail."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError, StoreTimeoutError
from hpc_elastic.store.kv import versions as kv_format
from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.kv.versions import KEPT_VERSIONS
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.faulty_store import (
    Fault,
    FaultyStore,
    LoseReply,
    Meanwhile,
    Plan,
    RandomFaults,
    Refuse,
    Script,
    Stale,
)

DIRECTORY = "kv/scope"
CROWD = 30  # so many writers does a record remember here


@pytest.fixture(autouse=True)
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_format, "KEPT_WRITERS", CROWD)


def client(store: object) -> KeyValueStore:
    """Return a client of the keys."""
    return KeyValueStore(store, DIRECTORY, timeout=20)  # type: ignore[arg-type]


def frozen_at(store: MemoryStore, happens: Callable[[], object], *, before: bool = True) -> KeyValueStore:
    """Return a client in whose first creation something else happens before it is done, or after."""
    return client(FaultyStore(store, Script(("create", Meanwhile(happens, before=before)))))


def add_often(store: MemoryStore, times: int) -> None:
    """Count up by many others."""
    for _ in range(times):
        client(store).add("n", 1)


OVERTAKING = [1, KEPT_VERSIONS - 1, KEPT_VERSIONS, KEPT_VERSIONS + 1, 20, CROWD - 1]


@pytest.mark.parametrize("others", OVERTAKING)
@pytest.mark.parametrize("start", [0, 1, 30])
def test_a_writer_that_was_overtaken_counts_once(memory_store: MemoryStore, start: int, others: int) -> None:
    """A writer that stops before it creates its version, also one long taken away, adds exactly once."""
    add_often(memory_store, start)
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, others))
    assert start + others + 1 == frozen.add("n", 1)
    assert start + others + 2 == client(memory_store).add("n", 1)


@pytest.mark.parametrize("others", [1, KEPT_VERSIONS, KEPT_VERSIONS + 1, CROWD - 1])
@pytest.mark.parametrize("start", [0, 1, 30])
def test_a_writer_that_stops_afterwards_counts_once(
    memory_store: MemoryStore, start: int, others: int
) -> None:
    """A writer that stops between creating its version and looking again adds exactly once."""
    add_often(memory_store, start)
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, others), before=False)
    assert start + 1 == frozen.add("n", 1)
    assert b"%d" % (start + others + 1) == client(memory_store).get("n")


def test_one_busy_writer_is_no_crowd(memory_store: MemoryStore) -> None:
    """However often one other writer writes meanwhile, the answer is known."""
    busy = client(memory_store)

    def much() -> None:
        for _ in range(3 * CROWD):
            busy.add("n", 1)

    assert 1 == frozen_at(memory_store, much, before=False).add("n", 1)
    assert 3 * CROWD + 1 == int(busy.get("n"))


@pytest.mark.parametrize(("others", "before"), [(2 * CROWD, True), (CROWD + 1, True), (CROWD, False)])
def test_what_cannot_be_known_is_an_error(memory_store: MemoryStore, others: int, before: bool) -> None:
    """A writer that more writers have overtaken than a record remembers gets an error, no guess."""
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, others), before=before)
    with pytest.raises(StoreError, match="cannot tell whether writing key 'n' took effect"):
        frozen.add("n", 1)


def test_as_many_writers_as_are_remembered_are_no_crowd(memory_store: MemoryStore) -> None:
    """One that was overtaken by just so many adds once."""
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, CROWD))
    assert CROWD + 1 == frozen.add("n", 1)


def test_a_listing_that_never_shows_what_was_written_is_an_error(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for during four seconds, more and more rarely."""
    slept: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: slept.append(seconds))
    blind = _EmptyWhenStale(memory_store, lambda operation, _: Stale() if operation == "list" else None)
    blind._remember("list", DIRECTORY, None, [])
    with pytest.raises(StoreError, match=r"n\+00000001 was written but is not listed"):
        client(blind).add("n", 1)
    assert 0.001 == slept[0]
    assert 3.5 < sum(slept) < 4.5
    assert [0.5] * 11 == [pause / following for pause, following in pairwise(slept)]


def test_what_is_known_is_not_read_again(memory_store: MemoryStore) -> None:
    """A look at a key costs a listing; its file is opened once for each version, unless it is large."""
    asked: list[str] = []
    kv = client(FaultyStore(memory_store, noting(asked)))
    other = client(memory_store)
    for size, costs in ((1, ["list"]), (1 << 16, ["list"]), ((1 << 16) + 1, ["list", "get"])):
        other.set("n", bytes(size))
        for expected in (["list", "get"], costs):
            asked.clear()
            assert size == len(kv.get("n"))
            assert expected == asked


def test_keys_are_listed_without_a_look_into_their_files(memory_store: MemoryStore) -> None:
    """Their names tell them, but for one that is too long for a name."""
    asked: list[str] = []
    kv = client(FaultyStore(memory_store, noting(asked)))
    other = client(memory_store)
    other.set("short", "1")
    assert (["short"], ["list"]) == (kv.list_keys(), asked)
    long = "k" * 1000
    other.set(long, "1")
    asked.clear()
    assert ([long, "short"], ["list", "get"]) == (sorted(kv.list_keys()), asked)


@pytest.mark.parametrize("others", OVERTAKING)
def test_an_overtaken_comparison_sees_what_is_there(memory_store: MemoryStore, others: int) -> None:
    """A comparison that was right before the writer stopped is made again."""
    client(memory_store).set("n", "0")
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, others))
    assert b"%d" % others == frozen.compare_set("n", "0", "mine")
    assert b"%d" % others == client(memory_store).get("n")


@pytest.mark.parametrize("others", OVERTAKING)
def test_an_overtaken_value_is_set(memory_store: MemoryStore, others: int) -> None:
    """Setting a key sets it, however late."""
    frozen = frozen_at(memory_store, lambda: add_often(memory_store, others))
    frozen.set("n", "mine")
    assert b"mine" == client(memory_store).get("n")


@pytest.mark.parametrize("rebirths", [0, 1, 5, 14])
def test_an_overtaken_writer_meets_a_deletion(memory_store: MemoryStore, rebirths: int) -> None:
    """A writer that stops while the key is deleted, and perhaps made anew, adds to what is there then."""
    client(memory_store).add("n", 100)

    def change() -> None:
        for _ in range(rebirths):
            client(memory_store).delete_key("n")
            client(memory_store).add("n", 1)
        client(memory_store).delete_key("n")

    assert 1 == frozen_at(memory_store, change).add("n", 1)


def test_of_two_deletions_one_did_it(memory_store: MemoryStore) -> None:
    """Whoever finds the key deleted meanwhile has not deleted it."""
    client(memory_store).set("a", "1")
    second = frozen_at(memory_store, lambda: client(memory_store).delete_key("a"))
    assert not second.delete_key("a")


def test_old_versions_go(memory_store: MemoryStore) -> None:
    """A key that is written often has few files, one that is deleted has two, others are left alone."""
    kv = client(memory_store)
    kv.set("n%2B", "another key")
    kv.set("n+1", "another key")
    for number in range(50):
        kv.set("n", str(number))
    versions = [f"n+{number:08d}" for number in range(51 - KEPT_VERSIONS, 51)]
    others = ["n%252B+00000001", "n%2B1+00000001"]
    assert sorted(versions + others) == memory_store.list(DIRECTORY)
    kv.delete_key("n")
    assert sorted(["n+00000051", "n+deleted", *others]) == memory_store.list(DIRECTORY)


def test_what_others_put_there_is_no_key(memory_store: MemoryStore) -> None:
    """Names that no key has are left alone."""
    for name in ("README", "a+", "a+x", "+", "a+1x", "%", "+deleted"):
        memory_store.mark(DIRECTORY, name)
    kv = client(memory_store)
    assert [] == kv.list_keys()
    assert 1 == kv.add("a", 1)
    assert ["a"] == kv.list_keys()


def test_a_reader_is_overtaken(memory_store: MemoryStore) -> None:
    """A version that is taken away between listing and opening is looked for again."""
    add_often(memory_store, 1)
    script = Script(("get", Meanwhile(lambda: add_often(memory_store, 20))))
    assert b"21" == client(FaultyStore(memory_store, script)).get("n")


def test_a_client_never_goes_back(memory_store: MemoryStore) -> None:
    """Whatever an old listing says, a client reads nothing older than it has read or written."""
    store = FaultyStore(memory_store, Script())
    kv = client(store)
    assert not kv.check(["n"])
    add_often(memory_store, 1)
    assert kv.check(["n"])
    assert b"1" == kv.get("n")
    add_often(memory_store, 20)
    assert b"21" == kv.get("n")
    show_old(store, ["n+00000001"])
    assert b"21" == kv.get("n")
    assert kv.check(["n"])
    assert 22 == kv.add("n", 1)
    client(memory_store).delete_key("n")
    assert not kv.check(["n"])
    show_old(store, ["n+00000022"])
    assert not kv.check(["n"])
    assert [] == kv.list_keys()


def test_an_old_listing_is_not_written_upon(memory_store: MemoryStore) -> None:
    """A writer whose listing lacks what others wrote is told by its lost race, and goes on from there."""
    add_often(memory_store, 1)
    store = FaultyStore(memory_store)
    show_old(store, ["n+00000001"])
    kv = client(store)
    add_often(memory_store, 1)
    assert 3 == kv.add("n", 1)


def test_a_late_writer_trusts_no_old_listing(memory_store: MemoryStore) -> None:
    """A writer that was overtaken looks until it sees its own version, and then sees the others'."""
    store = _EmptyWhenStale(memory_store)
    looks = iter((None, Stale(), Stale(), None))

    def plan(operation: str, _: str) -> Fault | None:
        if operation == "create":
            return Meanwhile(lambda: add_often(memory_store, 20))
        return next(looks, None) if operation == "list" else None

    store.plan = once_only(plan, "create")
    kv = client(store)
    assert 21 == kv.add("n", 1)


class _EmptyWhenStale(FaultyStore):
    """Its stale listings are empty, whatever was written."""

    def _remember(self, operation: str, place: str, key: object, result: object) -> None:
        super()._remember(operation, place, key, result)
        self._seen["list", DIRECTORY, None] = []


def noting(asked: list[str]) -> Plan:
    """Return a plan without faults that notes what is asked of a store."""

    def note(operation: str, _: str) -> None:
        asked.append(operation)

    return note


def once_only(plan: Plan, operation: str) -> Plan:
    """Return a plan that is silent about an operation after its first use."""
    used: list[str] = []

    def choose(asked: str, place: str) -> Fault | None:
        used.append(asked)
        return None if asked == operation and used.count(operation) > 1 else plan(asked, place)

    return choose


def show_old(store: FaultyStore, names: list[str]) -> None:
    """Let a store list these names until it writes something."""
    store._seen["list", DIRECTORY, None] = names
    store.plan = lambda operation, _: Stale() if operation == "list" else None


def test_a_damaged_record_is_named(memory_store: MemoryStore) -> None:
    """A record that is cut off, or none at all, is an error that names its file."""
    for content in (b"", b"{}\n", b"nonsense", b'{"format":1,"key":"a","deleted":false,"length":9}\n42'):
        memory_store.put(DIRECTORY, "a+00000001", content)
        with pytest.raises(StoreError, match=r"kv/scope/a\+00000001 is damaged"):
            client(memory_store).get("a")


def test_a_record_of_another_version_is_damaged(memory_store: MemoryStore) -> None:
    """Whoever put it there."""
    client(memory_store).set("a", "1")
    memory_store.put(DIRECTORY, "a+00000002", memory_store.get(DIRECTORY, "a+00000001") or b"")
    with pytest.raises(StoreError, match=r"a\+00000002 is damaged: it holds version 1"):
        client(memory_store).get("a")


def test_a_turn_is_waited_for_in_vain(memory_store: MemoryStore) -> None:
    """A writer whom others always overtake gives up when the timeout is over, and says why."""
    rival = Meanwhile(lambda: add_often(memory_store, 1))
    store = FaultyStore(memory_store, lambda operation, _: rival if operation == "create" else None)
    kv = KeyValueStore(store, DIRECTORY, timeout=0.01)
    with pytest.raises(StoreTimeoutError, match="a turn to write key 'n', which others keep changing"):
        kv.add("n", 1)


def test_a_turn_comes_when_the_others_pause(memory_store: MemoryStore) -> None:
    """Losing some races is no reason to give up before the time is over."""
    rivals = [Meanwhile(lambda: add_often(memory_store, 1)) for _ in range(3)]
    store = FaultyStore(
        memory_store, lambda operation, _: rivals.pop() if operation == "create" and rivals else None
    )
    assert 4 == KeyValueStore(store, DIRECTORY, timeout=50).add("n", 1)


@pytest.mark.parametrize("operation", ["list", "create", "get"])
def test_errors_reach_the_caller(memory_store: MemoryStore, operation: str) -> None:
    """What the shared directory refuses is told, and the store can be used afterwards."""
    client(memory_store).set("a", "1")
    kv = client(FaultyStore(memory_store, Script((operation, Refuse(errno.EDQUOT)))))
    with pytest.raises(StoreError) as caught:
        kv.append("a", "2")
    assert errno.EDQUOT == caught.value.errno
    kv.append("a", "3")
    assert b"13" == client(memory_store).get("a")


def test_what_is_left_over_harms_nobody(memory_store: MemoryStore) -> None:
    """A writer that cannot take old versions away has written all the same."""
    kv = client(FaultyStore(memory_store, Script(("unmark", Refuse(errno.EACCES)))))
    assert [*range(1, 21)] == [kv.add("n", 1) for _ in range(20)]
    assert KEPT_VERSIONS == len(memory_store.list(DIRECTORY))


def test_a_lost_reply_leaves_both_open(memory_store: MemoryStore) -> None:
    """After an error a write may have taken place; the store goes on from what is there."""
    kv = client(FaultyStore(memory_store, Script(("create", LoseReply()))))
    with pytest.raises(StoreError):
        kv.add("n", 1)
    assert 2 == kv.add("n", 1)


@pytest.mark.parametrize("seed", range(20))
def test_random_faults_lose_nothing(memory_store: MemoryStore, seed: int) -> None:
    """Threads with failing, late and old operations: every add that was confirmed counts, no other twice."""
    confirmed, unclear = [0] * 3, [0] * 3

    def work(number: int) -> None:
        kv = client(FaultyStore(memory_store, RandomFaults(100 * seed + number, 0.1)))
        for _ in range(30):
            try:
                kv.add("n", 1)
                confirmed[number] += 1
            except StoreError:
                unclear[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(confirmed) <= int(client(memory_store).get("n")) <= sum(confirmed) + sum(unclear)
    assert sum(confirmed) > sum(unclear)


def test_a_record_stays_small(memory_store: MemoryStore) -> None:
    """However many have written a key, a record remembers a bounded number of them."""
    add_often(memory_store, 3 * CROWD)
    data = memory_store.get(DIRECTORY, f"n+{3 * CROWD:08d}")
    assert data is not None
    record = kv_format.decode_record(data, "n")
    assert (CROWD, 2 * CROWD) == (len(record.writers), record.forgotten)
    assert len(data) < 200 + 20 * CROWD
