"""What every rendezvous backend does; torch's own is held to the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import RendezvousConnectionError, RendezvousStateError, StoreError
from hpc_elastic.rendezvous import RendezvousParameters
from hpc_elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from hpc_elastic.rendezvous.c10d_rendezvous_backend import create_backend as create_c10d_backend
from hpc_elastic.rendezvous.dynamic_executor import RendezvousBackend
from hpc_elastic.rendezvous.shared_fs_backend import (
    KEPT_STATES,
    SharedFsRendezvousBackend,
    create_backend,
)
from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.shared_dir import SharedDirStore
from tests.rendezvous.memory_backend import MemoryRendezvousBackend

MakeBackend = Callable[[], Any]


def _memory(_place: Path) -> MakeBackend:
    backend = MemoryRendezvousBackend()
    return lambda: backend


def _shared_memory(_place: Path) -> MakeBackend:
    store = MemoryStore()
    return lambda: SharedFsRendezvousBackend(store, "run/1")


def _shared_dir(place: Path) -> MakeBackend:
    return lambda: SharedFsRendezvousBackend(SharedDirStore(str(place)), "run/1")


def _in_one_key(_place: Path) -> MakeBackend:
    store = KeyValueStore(MemoryStore(), "kv")
    return lambda: C10dRendezvousBackend(store.clone(), "run-1")


def _in_one_key_below_torchs(_place: Path) -> MakeBackend:
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415 - only where torch is installed

    store = HashStore()
    makers: tuple[MakeBackend, ...] = (_torchs(store), lambda: C10dRendezvousBackend(store, "run-1"))
    both = itertools.cycle(makers)

    def next_of_both() -> Any:
        return next(both)()

    return next_of_both


def _torchs(store: Any) -> MakeBackend:
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as theirs  # noqa: PLC0415

    return lambda: theirs.C10dRendezvousBackend(store, "run-1")


def _torch_hash(_place: Path) -> MakeBackend:
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415 - only where torch is installed

    return _torchs(HashStore())


def _torch_file(place: Path) -> MakeBackend:
    from torch._C._distributed_c10d import FileStore  # noqa: PLC0415 - only where torch is installed

    return _torchs(FileStore(str(place / "store"), 1))


_OURS = [_memory, _shared_memory, _shared_dir, _in_one_key]
_THEIRS = [
    pytest.param(make, marks=pytest.mark.torch)
    for make in (_torch_hash, _torch_file, _in_one_key_below_torchs)
]


@pytest.fixture(params=[*_OURS, *_THEIRS])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBackend:
    """Return a function that makes a node's backend; all of them share the state."""
    backend: MakeBackend = request.param(tmp_path)
    return backend


def test_at_first_there_is_no_state(make: MakeBackend) -> None:
    """Nothing comes from nothing."""
    assert make().get_state() is None


def test_a_state_is_read_by_the_others(make: MakeBackend) -> None:
    """What one node sets, all nodes read, with the same token; reading changes nothing."""
    state, token, has_set = make().set_state(b"\x00one")
    assert (b"\x00one", True) == (state, has_set)
    assert (b"\x00one", token) == make().get_state() == make().get_state()


def test_a_state_is_replaced_by_its_token(make: MakeBackend) -> None:
    """Whoever names the newest state replaces it and gets another token."""
    backend = make()
    _, first, _ = backend.set_state(b"one")
    _, second, has_set = make().set_state(b"two", first)
    assert has_set
    assert first != second
    assert (b"two", second) == backend.get_state()


def test_a_stale_token_changes_nothing(make: MakeBackend) -> None:
    """Who was not fast enough gets the state of the one who was."""
    _, first, _ = make().set_state(b"one")
    _, second, _ = make().set_state(b"two", first)
    assert (b"two", second, False) == make().set_state(b"three", first)
    assert (b"two", second) == make().get_state()


def test_without_a_token_only_the_first_state_is_set(make: MakeBackend) -> None:
    """No token means that there is nothing to replace."""
    _, token, _ = make().set_state(b"one")
    assert (b"one", token, False) == make().set_state(b"two")


@pytest.mark.parametrize("token", ["no token", 0x1234567890, object()], ids=["text", "number", "object"])
def test_a_foreign_token_changes_nothing(make: MakeBackend, token: object) -> None:
    """What never was a token replaces nothing, whether there is a state or not."""
    assert make().set_state(b"one", token) is None
    assert make().get_state() is None
    _, own, _ = make().set_state(b"one")
    assert (b"one", own, False) == make().set_state(b"two", token)


def test_one_of_many_wins(make: MakeBackend) -> None:
    """Of several nodes with the same token one replaces the state."""
    _, token, _ = make().set_state(b"start")
    backends = [make() for _ in range(4)]
    answers = [backend.set_state(b"%d" % number, token) for number, backend in enumerate(backends)]
    assert [True, False, False, False] == [has_set for _, _, has_set in answers]
    assert {b"0"} == {state for state, _, _ in answers}


# The shared directory


def test_a_run_needs_an_id() -> None:
    """Without an id nodes of different runs would meet."""
    with pytest.raises(ValueError, match=r"^The run id must be a non-empty string\.$"):
        SharedFsRendezvousBackend(MemoryStore(), "")


def test_runs_do_not_meet(memory_store: MemoryStore) -> None:
    """Several runs share a store, whatever characters their ids have."""
    ids = ("a/b", "a%2Fb", "a b", "../a", "ä" * 200)
    backends = [SharedFsRendezvousBackend(memory_store, run_id) for run_id in ids]
    for number, backend in enumerate(backends):
        backend.set_state(b"%d" % number)
    assert [b"0", b"1", b"2", b"3", b"4"] == [(backend.get_state() or (b"",))[0] for backend in backends]


def _advance(backend: RendezvousBackend, count: int) -> None:
    for number in range(count):
        found = backend.get_state()
        answer = backend.set_state(b"%d" % number, found[1] if found else None)
        assert answer is not None
        assert answer[2]


def test_old_states_are_taken_away(memory_store: MemoryStore) -> None:
    """However long the run, only some states lie in the directory."""
    backend = SharedFsRendezvousBackend(memory_store, "r")
    _advance(backend, 3 * KEPT_STATES)
    assert KEPT_STATES == len(memory_store.list("rendezvous-r"))


class _SleepyStore(MemoryStore):
    """A store whose writer can be overtaken at the worst moment."""

    def __init__(self) -> None:
        super().__init__()
        self.before_create: Callable[[], None] | None = None

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create, after others have done what they wanted to."""
        act, self.before_create = self.before_create, None
        if act is not None:
            act()
        return super().create(directory, name, value)


@pytest.mark.parametrize("meanwhile", [1, KEPT_STATES, KEPT_STATES + 1, KEPT_STATES + 2, 3 * KEPT_STATES])
def test_a_writer_who_slept_replaces_nothing(meanwhile: int) -> None:
    """A number that was taken away and is free again is not taken for a success."""
    store = _SleepyStore()
    late, other = (SharedFsRendezvousBackend(store, "r") for _ in range(2))
    _, token, _ = late.set_state(b"start") or (b"", 0, False)
    store.before_create = lambda: _advance(other, meanwhile)
    newest = b"%d" % (meanwhile - 1)
    assert (newest, 1 + meanwhile, False) == late.set_state(b"late", token)
    assert (newest, 1 + meanwhile) == SharedFsRendezvousBackend(store, "r").get_state()
    assert b"late" not in store._files.values()


class _BrokenStore(MemoryStore):
    """A store that does not answer."""

    def list(self, directory: str) -> list[str]:
        """Fail."""
        raise StoreError(f"{directory}: no answer")


def test_a_directory_that_does_not_answer_is_told() -> None:
    """Errors of the store are connection errors that name the backend."""
    backend = SharedFsRendezvousBackend(_BrokenStore(), "r")
    for call in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(RendezvousConnectionError, match=r"no answer \(rendezvous backend 'shared_fs'\)"):
            call()


def test_damage_and_silence_are_told() -> None:
    """A key that holds no state, and a store that does not answer, are errors of their own."""
    store = KeyValueStore(MemoryStore(), "kv")
    backend = C10dRendezvousBackend(store, "r")
    store.set("torch.rendezvous.r", "x")
    with pytest.raises(RendezvousStateError, match="corrupt"):
        backend.get_state()
    with pytest.raises(RendezvousConnectionError, match="C10d store has failed"):
        C10dRendezvousBackend(KeyValueStore(_BrokenStore(), "kv"), "r")


@pytest.mark.parametrize("endpoint", ["directory", "host:29400"])
def test_a_backend_in_one_key_is_made_from_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    """State and key-value store are shared by all who name the endpoint, or the run."""
    monkeypatch.chdir(tmp_path)
    place = endpoint if ":" in endpoint else str(tmp_path / endpoint)
    params = RendezvousParameters("c10d", place, "r", 1, 2, read_timeout="7")
    (first, store), (second, other) = create_c10d_backend(params), create_c10d_backend(params)
    first.set_state(b"one")
    assert b"one" == (second.get_state() or (b"",))[0]
    store.set("key", b"value")
    assert b"value" == other.get("key")
    assert ("c10d", 7.0) == (first.name, store.timeout.total_seconds())
    with pytest.raises(ValueError, match="Invalid store type"):
        create_c10d_backend(RendezvousParameters("mine", place, "r", 1, 2, store_type="redis"))


def test_a_backend_is_made_from_parameters(tmp_path: Path) -> None:
    """The endpoint is a directory; state and key-value store are shared by all who name it."""
    params = RendezvousParameters("shared_fs", str(tmp_path / "run"), "r", 1, 2)
    (first, store), (second, other) = create_backend(params), create_backend(params)
    first.set_state(b"one")
    assert (b"one", 1) == second.get_state()
    store.set("key", b"value")
    assert b"value" == other.get("key")
    assert "shared_fs" == first.name
