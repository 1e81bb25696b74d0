"""The name of torch.distributed.elastic.multiprocessing.errors.error_handler."""

from __future__ import annotations

from hpc_elastic.multiprocessing.errors.handler import ErrorHandler

__all__ = ["ErrorHandler"]
