"""The key-value store in memory and the one in a directory cannot be told apart, by two clients each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hpc_elastic.store.kv.store import KeyValueStore, open_store
from hpc_elastic.store.memory import MemoryStore

KEYS = st.sampled_from(("a", "b/c", "", "k" * 300))
VALUES = st.one_of(st.binary(max_size=4), st.sampled_from((b"", b"7", b"x")))
CLIENTS = st.integers(0, 1)


class BothStores(RuleBasedStateMachine):
    """Does the same to both stores and compares every answer with a dictionary's."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.mkdtemp(prefix="hpc_elastic-kv-")
        memory = MemoryStore()
        self._clients = [
            (open_store(self._root, "scope", timeout=0), KeyValueStore(memory, "scope", timeout=0))
            for _ in range(2)
        ]
        self._model: dict[str, bytes] = {}

    def _ask(self, client: int, question: Callable[[KeyValueStore], object]) -> object:
        first, second = (_answer(question, store) for store in self._clients[client])
        assert first == second
        return first

    @rule(client=CLIENTS, key=KEYS, value=VALUES)
    def set(self, client: int, key: str, value: bytes) -> None:
        """Set a key."""
        self._ask(client, lambda kv: kv.set(key, value))
        self._model[key] = value

    @rule(client=CLIENTS, key=KEYS)
    def get(self, client: int, key: str) -> None:
        """Get a key."""
        assert self._model.get(key, TimeoutError) == self._ask(client, lambda kv: kv.get(key))

    @rule(client=CLIENTS, key=KEYS, value=st.integers(-3, 3))
    def add(self, client: int, key: str, value: int) -> None:
        """Add to a key."""
        answer = self._ask(client, lambda kv: kv.add(key, value))
        try:
            total = int(self._model.get(key) or b"0") + value
        except ValueError:
            assert answer is ValueError
        else:
            assert answer == total
            self._model[key] = b"%d" % total

    @rule(client=CLIENTS, key=KEYS, value=VALUES)
    def append(self, client: int, key: str, value: bytes) -> None:
        """Append to a key."""
        self._ask(client, lambda kv: kv.append(key, value))
        self._model[key] = self._model.get(key, b"") + value

    @rule(client=CLIENTS, key=KEYS, expected=VALUES, desired=VALUES)
    def compare_set(self, client: int, key: str, expected: bytes, desired: bytes) -> None:
        """Compare and set a key."""
        answer = self._ask(client, lambda kv: kv.compare_set(key, expected, desired))
        before = self._model.get(key)
        if before == expected or (before is None and not expected):
            self._model[key] = desired
        assert answer == self._model.get(key, expected)

    @rule(client=CLIENTS, key=KEYS)
    def delete(self, client: int, key: str) -> None:
        """Delete a key."""
        was_there = self._model.pop(key, None) is not None
        assert was_there == self._ask(client, lambda kv: kv.delete_key(key))

    @rule(client=CLIENTS, keys=st.lists(KEYS, max_size=3))
    def check(self, client: int, keys: list[str]) -> None:
        """Check keys."""
        assert all(key in self._model for key in keys) == self._ask(client, lambda kv: kv.check(keys))

    @invariant()
    def keys_agree(self) -> None:
        """List the keys."""
        assert sorted(self._model) == self._ask(0, lambda kv: sorted(kv.list_keys()))

    def teardown(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._root)


def _answer(question: Callable[[KeyValueStore], object], store: KeyValueStore) -> object:
    try:
        return question(store)
    except (TimeoutError, ValueError) as error:
        return TimeoutError if isinstance(error, TimeoutError) else ValueError


TestKeyValueAgreement = BothStores.TestCase
TestKeyValueAgreement.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
