"""What processes on different clients may rely on."""

from __future__ import annotations

import sys
from statistics import median

from tests.shared_fs.clients import LIMIT_S, SETTLE_S, Client, RemoteStore, TwoClientStore
from tests.shared_fs.conftest import Clients
from tests.shared_fs.file_system import FileSystem

NUMBERS = 30
LONGEST_LOOK_S = 10.0
"""A generous bound for what takes milliseconds, and on Gluster a second."""


def _tell(text: str) -> None:
    """Tell what was measured; `pytest -rP` shows it."""
    sys.stdout.write(text + "\n")


def _race(function: str, clients: Clients, run: str) -> dict[bytes, list[int]]:
    """Have two racers on each client do something at the same time; returns what each has won."""
    racers = {f"{client.number}.{place}".encode(): client for client in clients for place in (1, 2)}
    running = {name: client.start(function, run, name, NUMBERS) for name, client in racers.items()}
    return {name: result.result(LIMIT_S) for name, result in running.items()}


def test_racing_appends_have_one_winner(clients: Clients, run: str) -> None:
    """Of racers on three clients exactly one gets each number, and all clients see that one's record."""
    won = _race("race", clients, run)
    assert list(range(1, NUMBERS + 1)) == sorted(number for numbers in won.values() for number in numbers)
    winners = sorted((number, name) for name, numbers in won.items() for number in numbers)
    for reader in clients[1:]:
        assert winners == TwoClientStore(clients[0], reader, run).read_after("race", 0)


def test_racing_creates_have_one_winner(clients: Clients, run: str) -> None:
    """Of racers on three clients exactly one creates each name, and all clients see that one's value."""
    won = _race("race_for_names", clients, run)
    assert list(range(NUMBERS)) == sorted(number for numbers in won.values() for number in numbers)
    for name, numbers in won.items():
        for reader in clients[1:]:
            there = TwoClientStore(clients[0], reader, run)
            assert {name} >= {there.get("names", f"n{number}") for number in numbers}


def test_racing_makers_of_directories_all_have_them(clients: Clients, run: str) -> None:
    """Racers on three clients who make the same trees at the same moment can all use them."""
    names = [f"{client.number}.{place}" for client in clients for place in (1, 2)]
    running = [clients[int(name[0]) - 1].start("race_for_directories", run, name, NUMBERS) for name in names]
    assert [NUMBERS] * len(names) == [made.result(LIMIT_S) for made in running]
    written = sorted(f"{name}.{what}" for name in names for what in ("mark", "record", "value"))
    reader = RemoteStore(clients[0], run)
    assert [written] * NUMBERS == [reader.list(f"t{number}/journal") for number in range(NUMBERS)]


def test_a_new_record_is_seen_soon(clients: Clients, run: str, kind: str) -> None:
    """A reader on another client sees each new record within a bounded time."""
    count = 15
    answering = clients[1].start("answer_appends", run, count)
    took = clients[0].start("ask_appends", run, count).result(LIMIT_S)
    waited = answering.result(LIMIT_S)
    _tell(f"{kind}: question and answer {median(took) * 1e3:.0f} ms, longest {max(took) * 1e3:.0f} ms")
    assert max(took + waited) < LONGEST_LOOK_S


def test_a_value_is_never_torn(clients: Clients, run: str) -> None:
    """While one client replaces a file, readers on the others see the old or the new value, all of it."""
    count, size = 60, 20_000
    readers = [client.start("torn_values", run, count - 1, size) for client in clients[1:]]
    clients[0].ask("put_values", run, count, size)
    assert [[], []] == [reader.result(LIMIT_S) for reader in readers]


def test_heartbeats_are_seen(clients: Clients, run: str) -> None:
    """Another client sees a mark advance, never go back, and in the end sees the last one alone."""
    count = 60
    watchers = [client.start("watch_beats", run, "n1", count) for client in clients[1:]]
    clients[0].ask("beat", run, "n1", count)
    for watcher in watchers:
        seen = watcher.result(LIMIT_S)
        assert sorted(seen) == seen
    for reader in clients[1:]:
        names = RemoteStore(reader, run).list("members")
        assert [f"n1+{count}"] == [name for name in names if name.startswith("n1+")]


def test_waiting_hears_of_another_client(clients: Clients, run: str) -> None:
    """Who waits for names is woken by what another client creates in a directory that is there."""
    there = RemoteStore(clients[1], run)
    waiting = clients[1].start("store", run, "wait", "members", there.list("members"), LIMIT_S)
    RemoteStore(clients[0], run).create("members", "a", b"")
    assert ["a"] == waiting.result(SETTLE_S)


def test_a_lock_of_a_lost_client_holds_nobody_up(system: FileSystem, clients: Clients, run: str) -> None:
    """The lock that a client takes with it when it loses power keeps nobody from adding records."""
    holder = Client(system, 3)
    held = holder.start("hold_lock", run)
    assert ["held"] == [name for name in _names(clients[2], run) if name == "held"]
    system.command("kill", "3")
    assert held.exception(LIMIT_S) is not None
    holder.close()
    count = 10
    running = [client.start("commit", run, f"n{client.number}", count) for client in clients[:2]]
    took = [seconds for result in running for seconds in result.result(LIMIT_S)]
    _tell(f"{system.kind}: longest commit with a lost lock {max(took):.2f} s")
    assert max(took) < LONGEST_LOOK_S
    journal = TwoClientStore(clients[0], clients[1], run).read_after("journal", 0)
    assert list(range(1, 2 * count + 1)) == [number for number, _ in journal]


def _names(client: Client, run: str) -> list[str]:
    """Return the names in a run directory once the lock is held there."""
    store = RemoteStore(client, run)
    names = store.list("")
    while "held" not in names:
        names = store.wait("", names, LIMIT_S)
    return names
