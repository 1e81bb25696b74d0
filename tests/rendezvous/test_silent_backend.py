"""A backend of a user that never says that it has replaced the state."""

from __future__ import annotations

from hpc_elastic.rendezvous.dynamic_executor import Token
from hpc_elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend
from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.memory import MemoryStore
from tests.rendezvous.memory_backend import MemoryRendezvousBackend
from tests.rendezvous.nodes import agree, join_all


class _Silent(RendezvousBackend):
    """Answers None whatever comes of it."""

    def __init__(self) -> None:
        self._backend = MemoryRendezvousBackend()

    @property
    def name(self) -> str:
        """The name of the backend."""
        return "silent"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state."""
        return self._backend.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state, and say nothing."""
        self._backend.set_state(state, token)
        return None


def test_what_was_written_is_found_by_reading() -> None:
    """The nodes meet all the same, as torch's do: whose state is there has replaced it."""
    backend, store = _Silent(), KeyValueStore(MemoryStore(), "kv")
    handlers = [
        DynamicRendezvousHandler.from_backend("r", store, backend, 3, 3, f"n{number}") for number in range(3)
    ]
    assert agree(join_all(list(handlers)))
    assert all(handler.shutdown() for handler in handlers)
