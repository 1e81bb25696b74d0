"""Workers exchange data and meet through a key-value store, ours or torch's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import StoreError, StoreTimeoutError
from hpc_elastic.store.kv import util
from hpc_elastic.store.kv.store import KeyValueStore, PrefixStore, open_store
from hpc_elastic.store.kv.util import barrier, get_all, store_timeout, synchronize
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.faulty_store import Fault, FaultyStore

RANKS = 5
Together = Callable[[Callable[[Any, int], Any]], list[Any]]


def _memory(_: Path) -> Any:
    return KeyValueStore(MemoryStore(), "kv")


def _directory(tmp_path: Path) -> Any:
    return open_store(tmp_path, "scope")


def _prefix(tmp_path: Path) -> Any:
    return PrefixStore("part", open_store(tmp_path, "scope"))


def _hash(_: Path) -> Any:
    return pytest.importorskip("torch.distributed").HashStore()


def _file(tmp_path: Path) -> Any:
    return pytest.importorskip("torch.distributed").FileStore(str(tmp_path / "file"), 1)


def _tcp(_: Path) -> Any:
    return pytest.importorskip("torch.distributed").TCPStore(
        "127.0.0.1", 0, 1, True, timedelta(seconds=60), False
    )


TORCH = [pytest.param(make, marks=pytest.mark.torch, id=make.__name__) for make in (_hash, _file, _tcp)]


@pytest.fixture(params=[_memory, _directory, _prefix, *TORCH])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an empty store."""
    return request.param(tmp_path)


@pytest.fixture
def together(kv: Any) -> Together:
    """Return a function that lets every rank do something with a client of its own."""

    def run(act: Callable[[Any, int], Any]) -> list[Any]:
        with ThreadPoolExecutor(RANKS) as pool:
            futures = [pool.submit(act, kv.clone(), rank) for rank in range(RANKS)]
            return [future.result() for future in futures]

    return run


@pytest.mark.parametrize(
    ("world_size", "rank", "said"),
    [
        (3, 7, r"rank must be from 0 to 2 \(world_size 3\), not 7"),
        (3, -1, "not -1"),
        (0, None, "world_size must be at least 1, not 0"),
        (0, 0, "world_size must be at least 1, not 0"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(world_size: int, rank: int | None, said: str) -> None:
    """At once: the others would wait, and the error would name the wrong ranks."""
    kv = _memory(Path())
    with pytest.raises(ValueError, match=said):
        barrier(kv, world_size, "b", 1, rank)
    with pytest.raises(ValueError, match=said):
        synchronize(kv, b"", rank or 0, world_size, "b", 1)
    with pytest.raises(ValueError, match=said):
        get_all(kv, rank or 0, "b", world_size)
    assert [] == kv.list_keys()


def test_synchronize_gives_all_to_all(together: Together) -> None:
    """Every rank gets the data of all ranks in their order, byte for byte, an empty one, too."""
    data = [b"", b"\x00\n", b"two", b"3" * 1000, "é".encode()]
    got = together(lambda kv, rank: synchronize(kv, data[rank], rank, RANKS, "join", 30))
    assert [data] * RANKS == got


def test_synchronize_again(together: Together) -> None:
    """The same prefix can be used again; each use has its own data."""

    def act(kv: Any, rank: int) -> list[list[bytes]]:
        return [synchronize(kv, b"%d.%d" % (use, rank), rank, RANKS, "join", 30) for use in range(3)]

    expected = [[b"%d.%d" % (use, rank) for rank in range(RANKS)] for use in range(3)]
    assert [expected] * RANKS == together(act)


def test_synchronize_names_who_is_missing(kv: Any) -> None:
    """A rank that waits in vain says which ranks did not come."""
    with pytest.raises(StoreTimeoutError) as caught:
        synchronize(kv, b"", 0, 3, "join", 0.05)
    assert (
        "Timed out waiting on synchronize on rank 0, for key prefix: join "
        "(world_size=3, missing_ranks=[1, 2], timeout=0.05)"
    ) == str(caught.value)


def test_a_barrier_waits_for_all(together: Together) -> None:
    """Nobody passes a barrier before all have come, each time it is used."""
    came: Counter[int] = Counter()
    lock = threading.Lock()

    def act(kv: Any, rank: int) -> list[int]:
        seen = []
        for use in range(3):
            with lock:
                came[use] += 1
            barrier(kv, RANKS, "epoch", 30, rank)
            seen.append(came[use])
        return seen

    assert [[RANKS] * 3] * RANKS == together(act)


def test_a_barrier_without_ranks(together: Together) -> None:
    """Ranks that do not say who they are meet, too."""
    came: list[int] = []

    def act(kv: Any, rank: int) -> int:
        came.append(rank)
        barrier(kv, RANKS, "epoch", 30)
        return len(came)

    assert [RANKS] * RANKS == together(act)


def test_a_barrier_names_who_is_missing(kv: Any) -> None:
    """Every rank that waits in vain names those that did not come, as the caller calls them."""

    def wait(rank: int) -> str:
        with pytest.raises(StoreTimeoutError) as caught:
            barrier(kv.clone(), 4, "epoch", 0.3, rank, lambda other: f"node{other}")
        assert ("node1", "node3") == caught.value.missing
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(wait, (0, 2)))
    assert [
        f"Timed out waiting on barrier on rank {rank}, for key prefix: epoch "
        "(world_size=4, missing_ranks=[node1, node3], timeout=0.3)"
        for rank in (0, 2)
    ] == texts


def test_many_missing_ranks_are_cut() -> None:
    """Of a thousand missing ranks the message names sixteen."""
    with pytest.raises(StoreTimeoutError, match=r"missing_ranks=\[1, .*, 16, …\], timeout=0") as caught:
        barrier(_memory(Path()), 1000, "epoch", 0, 0)
    assert 999 == len(caught.value.missing)


def test_a_barrier_without_ranks_ends_with_an_error(kv: Any) -> None:
    """Without ranks nobody can be named, but the wait ends."""
    with pytest.raises((TimeoutError, RuntimeError)):
        barrier(kv, 2, "epoch", 0.05)


def test_a_decoder_needs_a_rank(kv: Any) -> None:
    """Naming missing ranks takes a rank."""
    with pytest.raises(ValueError, match="takes `rank`, too"):
        barrier(kv, 2, "epoch", 0, rank_tracing_decoder=str)


def test_get_all(together: Together) -> None:
    """All ranks read what all have set, in the order of ranks."""

    def act(kv: Any, rank: int) -> list[bytes]:
        kv.set(f"data{rank}", str(rank))
        return get_all(kv, rank, "data", RANKS)

    assert [[b"0", b"1", b"2", b"3", b"4"]] * RANKS == together(act)


def test_the_timeout_comes_back(kv: Any) -> None:
    """A timeout for a while ends with the block, also by an error."""
    before = kv.timeout
    with store_timeout(kv, 7.5):
        assert timedelta(seconds=7.5) == kv.timeout
    assert before == kv.timeout
    with pytest.raises(KeyError), store_timeout(kv, 7.5):
        raise KeyError
    assert before == kv.timeout


def test_much_data_is_published_in_parts() -> None:
    """Data that does not fit into one value is exchanged all the same."""
    memory = MemoryStore()
    data = [bytes((rank,)) * (7 * 2**20) for rank in range(3)]
    got: list[list[bytes]] = []

    def act(rank: int) -> None:
        got.append(synchronize(KeyValueStore(memory, "kv"), data[rank], rank, 3, "join", 30))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(act, range(3)))
    assert [data] * 3 == got


def test_what_rank_0_publishes_is_checked() -> None:
    """What is no combined data is an error, no data."""
    kv = _memory(Path())
    kv.set("join/all", "nonsense")
    with pytest.raises(StoreError, match="'join/all' does not hold the value that rank 0 publishes"):
        synchronize(kv, b"", 1, 2, "join", 1)


@pytest.mark.parametrize(("exchange", "most"), [("synchronize", 2), ("barrier", 0)])
def test_what_an_exchange_costs(exchange: str, most: int) -> None:
    """A rank opens the same few files however many ranks there are; rank 0 alone opens one of each."""
    memory = MemoryStore()
    opened: Counter[int] = Counter()
    ranks = 16

    def act(rank: int) -> None:
        def count(operation: str, _: str) -> Fault | None:
            opened[rank] += operation == "get"
            return None

        kv = KeyValueStore(FaultyStore(memory, count), "kv")
        if exchange == "barrier":
            barrier(kv, ranks, "use", 30, rank)
        else:
            synchronize(kv, b"data", rank, ranks, "use", 30)

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(act, range(ranks)))
    assert max(opened[rank] for rank in range(1, ranks)) <= most
    assert opened[0] <= ranks


class _Refuses(KeyValueStore):
    """A store whose directory goes away while somebody waits."""

    def wait_written(self, *_: Any) -> None:
        """Fail."""
        raise StoreError("the directory refuses")


def test_a_store_that_fails_is_not_a_rank_that_is_late() -> None:
    """What went wrong is told as it was; nobody is accused of not coming."""
    with pytest.raises(StoreError, match="refuses") as caught:
        barrier(_Refuses(MemoryStore(), "kv"), 3, "b", 0.1, rank=0)
    assert not isinstance(caught.value, StoreTimeoutError)


def test_a_store_of_torchs_has_keys_for_each_use() -> None:
    """It does not tell how often a key was written, so that a key is written once."""
    assert "prefix/0/name" == util._Use(object(), "barrier", 0, 1, "prefix", 1.0).key("name")
    ours = util._Use(KeyValueStore(MemoryStore(), "kv"), "barrier", 0, 1, "prefix", 1.0)
    assert "prefix/name" == ours.key("name")
