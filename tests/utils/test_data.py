"""Going through data."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_elastic.utils.data import CyclingIterator, ElasticDistributedSampler


def _epoch(number: int) -> Iterator[str]:
    return iter([f"{number}a", f"{number}b"])


@pytest.mark.parametrize(
    ("n", "start", "expected"),
    [
        (3, 0, ["0a", "0b", "1a", "1b", "2a", "2b"]),
        (3, 2, ["2a", "2b"]),
        (1, 0, ["0a", "0b"]),
        (0, 0, ["0a", "0b"]),
        (2, 5, ["5a", "5b"]),
    ],
)
def test_epochs_follow_each_other(n: int, start: int, expected: list[str]) -> None:
    """From the first epoch to the last; the one begun with is always gone through."""
    both = CyclingIterator(n, _epoch, start)
    assert expected == list(both)
    assert [] == list(both)


def test_epochs_may_be_empty() -> None:
    """However many hold nothing, what comes later is found."""
    assert [1] == list(CyclingIterator(50_000, lambda epoch: iter([1] if epoch == 49_999 else [])))


def _dealt(size: int, ranks: int, start: int, epoch: int = 0) -> list[list[int]]:
    samplers = [ElasticDistributedSampler(range(size), ranks, rank, start) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]
    return [list(sampler) for sampler in samplers]


@settings(deadline=None)  # torch is imported where it is installed
@given(st.integers(1, 50), st.integers(1, 60), st.data())
def test_every_sample_is_dealt_out(size: int, ranks: int, data: st.DataObject) -> None:
    """All ranks get equally many, each sample comes as often as the others or once more, none from before."""
    start = data.draw(st.integers(0, size - 1))
    dealt = _dealt(size, ranks, start)
    assert 1 == len({len(share) for share in dealt})
    counts = Counter(sample for share in dealt for sample in share)
    assert set(range(start, size)) == set(counts)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_epochs_are_shuffled_alike_on_all_ranks() -> None:
    """Each epoch has an order of its own, the same whoever asks and how often."""
    orders = [_dealt(40, 1, 0, epoch)[0] for epoch in range(3)]
    assert 3 == len({tuple(order) for order in orders})
    assert orders[1] == _dealt(40, 1, 0, 1)[0]
    assert sorted(orders[1]) == list(range(40)) != orders[1]


def test_ranks_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an agent need not say who it is; others are asked to."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = ElasticDistributedSampler(range(9))
    assert (1, 3, 3) == (sampler.rank, sampler.num_replicas, len(sampler))
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="rank is not given, there is no process group, and RANK is ''"):
        ElasticDistributedSampler(range(9))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((range(5), 2, 2), r"^Invalid rank 2, rank should be in the interval \[0, 1\]$"),
        ((range(5), 2, -1), r"^Invalid rank -1, rank should be in the interval \[0, 1\]$"),
        ((range(5), 2, 0, 5), "^Start index 5 should be less than dataset size 5$"),
        ((range(5), 2, 0, -1), "^Start index -1 should be at least 0$"),
        ((range(0), 2, 0), "^Start index 0 should be less than dataset size 0$"),
    ],
)
def test_what_cannot_be_is_refused(args: tuple[Any, ...], text: str) -> None:
    """Each wrong number is named."""
    with pytest.raises(ValueError, match=text):
        ElasticDistributedSampler(*args)


def test_a_data_set_has_a_length() -> None:
    """An endless stream cannot be dealt out."""
    endless: Any = iter(int, 1)
    with pytest.raises(TypeError, match="Sized"):
        ElasticDistributedSampler(endless, 2, 0)


def test_torch_is_not_needed() -> None:
    """Without torch all ranks shuffle alike, too."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hpc_elastic.utils.data import ElasticDistributedSampler as S\n"
        "print(sorted([*S(range(6), 2, 0), *S(range(6), 2, 1)]))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "[0, 1, 2, 3, 4, 5]\n" == said


@pytest.mark.torch
@pytest.mark.parametrize(("size", "ranks", "start", "epoch"), [(10, 3, 0, 0), (10, 3, 4, 1), (64, 4, 7, 9)])
def test_the_order_is_torchs(size: int, ranks: int, start: int, epoch: int) -> None:
    """A checkpoint made with torch's sampler goes on with ours, and torch's loader takes it."""
    theirs = importlib.import_module("torch.distributed.elastic.utils.data").ElasticDistributedSampler
    samplers = [theirs(list(range(size)), ranks, rank, start) for rank in range(ranks)]
    for one in samplers:
        one.set_epoch(epoch)
    assert [list(one) for one in samplers] == _dealt(size, ranks, start, epoch)
    sampler = ElasticDistributedSampler(range(size), ranks, 1, start)
    loader = importlib.import_module("torch.utils.data").DataLoader(list(range(size)), sampler=sampler)
    assert list(sampler) == [int(batch) for batch in loader]


@pytest.mark.torch
def test_ranks_may_come_from_the_process_group() -> None:
    """Who has a process group need not say who it is."""
    code = (
        "import torch.distributed as dist; from hpc_elastic.utils.data import ElasticDistributedSampler\n"
        "dist.init_process_group('fake', store=dist.HashStore(), rank=2, world_size=5)\n"
        "found = ElasticDistributedSampler(range(9)); print(found.rank, found.num_replicas)"
    )
    code = f"import torch.testing._internal.distributed.fake_pg\n{code}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "2 5\n" == said
