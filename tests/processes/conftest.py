"""What the tests of processes share with those of their groups."""

from __future__ import annotations

from tests.multiprocessing.conftest import fifo, make_context, pipe

__all__ = ["fifo", "make_context", "pipe"]
