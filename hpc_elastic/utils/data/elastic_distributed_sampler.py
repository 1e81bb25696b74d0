"""Which samples of a data set a rank gets, from any sample on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sized

__all__ = ["ElasticDistributedSampler"]


class ElasticDistributedSampler:
    """Deals the samples of a data set out to all ranks, from any sample on.

    A sampler for torch's ``DataLoader`` in place of ``DistributedSampler``. After a restart, also one
    with another number of ranks, begin where the checkpoint says. Samples are shuffled, differently
    in each epoch and alike on all ranks, in torch's order where torch is installed. So that all ranks
    get equally many, some samples are dealt out twice.

    Args:
        dataset: has a length, which stays.
        num_replicas: number of ranks; by default that of the process group, or WORLD_SIZE.
        rank: this rank; by default that in the process group, or RANK.
        start_index: the first sample; those before it are left out.

    Raises:
        TypeError: the data set has no length.
        ValueError: there is no such rank or no such sample, or it is not known how many ranks there are.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, start_index: int = 0
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError("Dataset must be an instance of collections.abc.Sized")
        self.dataset = dataset
        self.num_replicas = _known(num_replicas, "num_replicas", "get_world_size", "WORLD_SIZE")
        self.rank = _known(rank, "rank", "get_rank", "RANK")
        self.epoch = 0
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"Invalid rank {self.rank}, rank should be in the interval [0, {self.num_replicas - 1}]"
            )
        if start_index >= len(dataset):
            raise ValueError(f"Start index {start_index} should be less than dataset size {len(dataset)}")
        if start_index < 0:
            raise ValueError(f"Start index {start_index} should be at least 0")
        self.start_index = start_index
        self.num_samples = -(-(len(dataset) - start_index) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for an epoch; call it on all ranks before each one."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        indices = [
            self.start_index + one for one in _shuffled(len(self.dataset) - self.start_index, self.epoch)
        ]
        places = range(self.rank, self.total_size, self.num_replicas)
        return iter([indices[place % len(indices)] for place in places])

    def __len__(self) -> int:
        return self.num_samples


def _known(given: int | None, name: str, of_group: str, variable: str) -> int:
    """Return a number that is given, or that of the process group, or of the environment."""
    if given is not None:
        return given
    distributed = sys.modules.get("torch.distributed")  # a program with a process group has imported it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, of_group)())
    value = os.environ.get(variable, "")  # noqa: TID251 - here a process learns its place
    if not value.isdecimal():
        raise ValueError(
            f"{name} is not given, there is no process group, and {variable} is {value!r}: "
            f"give {name}, or call torch.distributed.init_process_group first"
        )
    return int(value)


def _shuffled(count: int, seed: int) -> list[int]:
    """Return the numbers below `count` in an order that the seed decides; torch's own if it is installed."""
    try:
        import torch  # noqa: PLC0415 - the package does without
    except ImportError:
        import random  # noqa: PLC0415 - as above

        numbers = list(range(count))
        random.Random(seed).shuffle(numbers)  # noqa: S311 - no secret
        return numbers
    generator = torch.Generator()
    generator.manual_seed(seed)
    return [int(number) for number in torch.randperm(count, generator=generator).tolist()]
