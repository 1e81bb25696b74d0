"""The key-value store does what torch's does, wherever it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.store.kv.store import KeyValueStore, PrefixStore, open_store
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.faulty_store import Delay, FaultyStore, RandomFaults
from tests.store.kv_contract import KeyValueContract

TIMEOUT = timedelta(seconds=20)
_WITH_THREADS = {"test_getting_waits", "test_waiting_for_all", "test_a_queue_is_waited_for", "test_barriers"}
_QUEUES = ("test_queues", "test_an_empty_queue", "test_a_queue_is_waited_for")


class TestInMemory(KeyValueContract):
    """The store over `MemoryStore`."""

    @pytest.fixture
    def kv(self, memory_store: MemoryStore) -> KeyValueStore:
        """Return an empty store."""
        return KeyValueStore(memory_store, "kv", timeout=TIMEOUT)

    @pytest.fixture
    def other(self, kv: KeyValueStore) -> KeyValueStore:
        """Return another client of it."""
        return kv.clone()


class TestInSharedDir(KeyValueContract):
    """The store in a directory, each client opened on its own."""

    @pytest.fixture
    def kv(self, tmp_path: Path) -> KeyValueStore:
        """Return an empty store."""
        return open_store(str(tmp_path), "scope", timeout=TIMEOUT)

    @pytest.fixture
    def other(self, tmp_path: Path) -> KeyValueStore:
        """Return another client of it."""
        return open_store(str(tmp_path), "scope", timeout=TIMEOUT, lock=False)


@pytest.mark.usefixtures("kv")
class TestSlow(TestInMemory):
    """Another client whose operations are delayed."""

    @pytest.fixture
    def other(self, memory_store: MemoryStore) -> KeyValueStore:
        """Return another client."""
        plan = RandomFaults(1, 0.3, kinds=(Delay,))
        return KeyValueStore(FaultyStore(memory_store, plan), "kv", timeout=TIMEOUT)


class TestBelowAPrefix(KeyValueContract):
    """A part of a store in a directory that also has other keys."""

    own_keys = 1

    @pytest.fixture
    def kv(self, tmp_path: Path) -> PrefixStore:
        """Return an empty part."""
        store = open_store(str(tmp_path), "scope", timeout=TIMEOUT)
        store.set("partly", "another key")
        return PrefixStore("part", store)

    @pytest.fixture
    def other(self, tmp_path: Path) -> PrefixStore:
        """Return another client of it."""
        return PrefixStore("part", open_store(str(tmp_path), "scope", timeout=TIMEOUT))


class TestBelowTwoPrefixes(TestBelowAPrefix):
    """A part of a part."""

    own_keys = 0

    @pytest.fixture
    def kv(self, tmp_path: Path) -> PrefixStore:
        """Return an empty part."""
        return PrefixStore("b", PrefixStore("a", open_store(str(tmp_path), "scope", timeout=TIMEOUT)))

    @pytest.fixture
    def other(self, tmp_path: Path) -> PrefixStore:
        """Return another client: the same prefix in one piece."""
        return PrefixStore("a/b", open_store(str(tmp_path), "scope", timeout=TIMEOUT))


class _TorchContract(KeyValueContract):
    """torch's stores, to see that the contract is theirs."""

    differs: Mapping[str, str] = {}  # tests that torch's store is known to fail, and why
    lacks: Mapping[str, str] = {}  # tests of what it has not

    @pytest.fixture(autouse=True)
    def _differences(self, request: pytest.FixtureRequest) -> None:
        for name in (request.node.name, request.node.originalname):
            if name in self.differs:
                request.applymarker(pytest.mark.xfail(reason=self.differs[name], strict=True))
            if name in self.lacks:
                request.applymarker(pytest.mark.xfail(reason=self.lacks[name], run=False))

    @pytest.fixture
    def other(self, kv: Any) -> Any:
        """Return another client."""
        return kv.clone()


@pytest.mark.torch
class TestTorchHashStore(_TorchContract):
    """torch's store in memory."""

    @pytest.fixture
    def kv(self) -> Any:
        """Return an empty store."""
        return _with_timeout(pytest.importorskip("torch.distributed").HashStore())


@pytest.mark.torch
@pytest.mark.slow
class TestTorchTCPStore(_TorchContract):
    """torch's store in a server."""

    differs: Mapping[str, str] = {
        "test_nothing_is_added_to_a_word": "the server closes the connection",
        "test_adding_starts_from_what_was_set": "the server closes the connection: '' is no number",
        "test_any_key[kkkkkkkkkkkk]": "the server closes the connection: a key has at most 8192 bytes",
        "test_keys_are_listed": "a key has at most 8192 bytes",
    }

    @pytest.fixture
    def kv(self) -> Any:
        """Return an empty store on a port of its own."""
        tcp_store = pytest.importorskip("torch.distributed").TCPStore
        return tcp_store("127.0.0.1", 0, 1, is_master=True, timeout=TIMEOUT, wait_for_workers=False)

    @pytest.fixture
    def other(self, kv: Any, request: pytest.FixtureRequest) -> Any:
        """Return the same client, as `set` is not acknowledged; one that waits keeps others out, though."""
        is_waiting = request.node.originalname in _WITH_THREADS
        return kv.clone() if is_waiting else kv


@pytest.mark.torch
@pytest.mark.slow
class TestTorchFileStore(_TorchContract):
    """torch's store in a file."""

    differs: Mapping[str, str] = {
        "test_any_key": "it cannot list its keys",
        "test_keys_are_listed": "it cannot list its keys",
        "test_deleting": "deleting what is absent says that it was there",
        "test_the_extended_interface_is_there": "it has them, but says that it has not",
    }
    lacks: Mapping[str, str] = dict.fromkeys(_QUEUES, "it has no queues")

    @pytest.fixture
    def kv(self, tmp_path: Path) -> Any:
        """Return an empty store."""
        file_store = pytest.importorskip("torch.distributed").FileStore
        return _with_timeout(file_store(str(tmp_path / "file"), 1))


@pytest.mark.torch
class TestOursBelowTorchsPrefix(_TorchContract):
    """Our prefix store over a store of torch's."""

    @pytest.fixture
    def kv(self) -> Any:
        """Return an empty part."""
        return PrefixStore("a", _with_timeout(pytest.importorskip("torch.distributed").HashStore()))


def _with_timeout(store: Any) -> Any:
    store.set_timeout(TIMEOUT)
    return store
