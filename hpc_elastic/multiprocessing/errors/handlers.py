"""The name of torch.distributed.elastic.multiprocessing.errors.handlers."""

from __future__ import annotations

from hpc_elastic.multiprocessing.errors.error_handler import get_error_handler

__all__ = ["get_error_handler"]
