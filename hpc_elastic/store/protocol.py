"""The interface of a store for all shared state; all implementations pass `tests/store/contract.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Store(Protocol):
    """Numbered records, one-writer files and facts told by names.

    A *log* and a *directory* are names of one purpose each, for example ``journal`` or ``members``.
    """

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` of a log exclusively; numbers start at 1 and leave no gap.

        Returns:
            False if another writer has that number. Records never change afterwards.

        Raises:
            StoreError: the shared directory refused.
        """
        ...

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`, in order and without a gap.

        Raises:
            StoreError: the shared directory could not be read.
        """
        ...

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a file that has one writer; readers see the old or the new value."""
        ...

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None if there is none."""
        ...

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file that never changes, complete or not at all; an absent directory is made.

        Returns:
            False if the name is taken; the old value stays.

        Raises:
            StoreError: the shared directory refused. After a lost reply the file may exist.
        """
        ...

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> list[str]:
        """Return the names in a directory, sorted, as soon as they differ from the known ones.

        Args:
            directory: the directory; it may be absent, which is as good as empty.
            known: the names of an earlier listing, sorted.
            timeout: how long to wait [s]; then the listing is returned although nothing differs.

        Does not guarantee that every change is seen: a name that came and went in between is missed.

        Raises:
            StoreError: the shared directory could not be read.
        """
        ...

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Publish a fact as a name; one writer, which may replace its own earlier name."""
        ...

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away; it may be gone already."""
        ...
