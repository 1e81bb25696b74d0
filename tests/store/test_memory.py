"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from hpc_elastic.store.memory import MemoryStore
from tests.store.contract import StoreContract


class TestMemoryStore(StoreContract):
    """`MemoryStore` is a `Store`."""

    @pytest.fixture
    def store(self, memory_store: MemoryStore) -> MemoryStore:
        """Return an empty store."""
        return memory_store
