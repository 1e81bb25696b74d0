"""The key-value store's operations that are killed and made to fail at every system call."""

from __future__ import annotations

from hpc_elastic.store.kv.store import KeyValueStore, open_scope
from tests.store.crash_operations import Operation, one_of

SCOPE = "round-1"


def _open(root: str) -> KeyValueStore:
    return open_scope(root, SCOPE, timeout=5.0)


def _seen(root: str, key: str = "key") -> bytes | None:
    store = _open(root)
    return store.get(key) if store.check([key]) else None


def _set(root: str, value: str) -> None:
    _open(root).set("key", value)


def _set_again(root: str) -> None:
    _set(root, "c")
    assert _seen(root) == b"c"


def _add(root: str, number: int) -> None:
    _open(root).add("key", number)


def _add_again(root: str) -> None:
    before = int(_seen(root) or b"0")
    assert before + 10 == _open(root).add("key", 10)


def _compare_set(root: str) -> None:
    assert _open(root).compare_set("key", "a", "b") == b"b"


def _compare_again(root: str) -> None:
    before = (_seen(root) or b"").decode()
    assert _open(root).compare_set("key", before, "c") == b"c"


def _delete(root: str) -> None:
    _open(root).delete_key("key")


def _delete_again(root: str) -> None:
    was_there = _seen(root) is not None
    assert was_there is _open(root).delete_key("key")
    assert _seen(root) is None
    _set_again(root)


def operations() -> list[Operation]:
    """Return all operations; an error leaves open whether they took place, as their documentation says."""
    found = [
        Operation("kv set, new key", _open, lambda root: _set(root, "b"),
                  lambda root: one_of(_seen(root), None, b"b"), _set_again),
        Operation("kv set", lambda root: _set(root, "a"), lambda root: _set(root, "b"),
                  lambda root: one_of(_seen(root), b"a", b"b"), _set_again),
        Operation("kv add", lambda root: _add(root, 1), lambda root: _add(root, 2),
                  lambda root: one_of(_seen(root), b"1", b"3"), _add_again),
        Operation("kv compare_set", lambda root: _set(root, "a"), _compare_set,
                  lambda root: one_of(_seen(root), b"a", b"b"), _compare_again),
        Operation("kv delete_key", lambda root: _set(root, "a"), _delete,
                  lambda root: one_of(_seen(root), b"a", None), _delete_again),
    ]  # fmt: skip
    return [operation._replace(is_sure=False) for operation in found]
