"""Several epochs of data as one iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["CyclingIterator"]

T = TypeVar("T")


class CyclingIterator(Iterator[T]):
    """Goes through the data of one epoch after the other.

    Args:
        n: the number of epochs; the last one is n - 1.
        generator_fn: returns the data of an epoch, which it is given.
        start_epoch: the first epoch.
    """

    def __init__(self, n: int, generator_fn: Callable[[int], Iterator[T]], start_epoch: int = 0) -> None:
        self._n = n
        self._epoch = start_epoch
        self._generator_fn = generator_fn
        self._iter = generator_fn(start_epoch)

    def __iter__(self) -> CyclingIterator[T]:
        return self

    def __next__(self) -> T:
        while True:  # epochs may be empty
            try:
                return next(self._iter)
            except StopIteration:
                if self._epoch >= self._n - 1:
                    raise
            self._epoch += 1
            self._iter = self._generator_fn(self._epoch)
