"""The stores on a real shared file system keep their contracts, for one client and for two."""

from __future__ import annotations

import pytest

from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.protocol import Store
from tests.shared_fs.clients import LIMIT_S, PeerStore, RemoteStore, TwoClientStore
from tests.shared_fs.conftest import Clients
from tests.store.contract import BOUNDARY, StoreContract
from tests.store.kv_contract import KeyValueContract


class _ShorterContract(StoreContract):
    """The contract, with one long log for all of its tests of long logs: here a record takes its time."""

    def test_long_logs_have_no_gap(self, store: Store) -> None:  # type: ignore[override]
        """Wherever a reader stands, it gets all that follows, over the end of a segment."""
        last = BOUNDARY + 4
        for number in range(1, last + 1):
            assert store.append("journal", number, str(number).encode())
        for after in (0, 1, BOUNDARY - 2, BOUNDARY - 1, BOUNDARY, BOUNDARY + 1, last - 1, last):
            expected = [(number, str(number).encode()) for number in range(after + 1, last + 1)]
            assert expected == store.read_after("journal", after)

    def test_logs_grow_across_a_boundary(self, store: Store) -> None:  # type: ignore[override]
        """A reader who is up to date sees the next record, in the old segment or the new one."""
        for number in range(1, BOUNDARY - 2):
            assert store.append("journal", number, b"")
        for number in range(BOUNDARY - 2, BOUNDARY + 3):
            assert [] == store.read_after("journal", number - 1)
            assert store.append("journal", number, b"next")
            assert [(number, b"next")] == store.read_after("journal", number - 1)


class TestOneClient(_ShorterContract):
    """One client writes and reads."""

    @pytest.fixture
    def store(self, clients: Clients, run: str) -> RemoteStore:
        """Return the store of client 1 in a fresh run directory."""
        return RemoteStore(clients[0], run)


class TestTwoClients(_ShorterContract):
    """One client writes and another one reads."""

    @pytest.fixture
    def store(self, clients: Clients, run: str) -> TwoClientStore:
        """Return a store that client 1 writes and client 2 reads, in a fresh run directory."""
        return TwoClientStore(clients[0], clients[1], run)


class TestKeysAndValues(KeyValueContract):
    """Two clients use the same keys."""

    @pytest.fixture
    def kv(self, clients: Clients, run: str) -> KeyValueStore:
        """Return an empty store, as client 1 has it."""
        return KeyValueStore(PeerStore(clients[0], clients[1], run), "kv", timeout=LIMIT_S)

    @pytest.fixture
    def other(self, clients: Clients, run: str) -> KeyValueStore:
        """Return the same store as client 2 has it."""
        return KeyValueStore(PeerStore(clients[1], clients[0], run), "kv", timeout=LIMIT_S)
