"""One program in a process of its own (names as in torch.distributed.elastic)."""

from __future__ import annotations

from hpc_elastic.multiprocessing.subprocess_handler.handlers import get_subprocess_handler
from hpc_elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
