"""What the tests of the rendezvous share."""

from __future__ import annotations

import pytest

from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.one_node import MakeNode, node_maker


@pytest.fixture
def node(memory_store: MemoryStore, clock: FakeClock) -> MakeNode:
    """Return a function that makes the rendezvous of a node."""
    return node_maker(memory_store, clock)
