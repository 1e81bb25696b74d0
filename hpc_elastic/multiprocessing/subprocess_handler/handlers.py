"""The name of torch.distributed.elastic.multiprocessing.subprocess_handler.handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["get_subprocess_handler"]


def get_subprocess_handler(  # noqa: PLR0913 - torch's signature
    entrypoint: str,
    args: Sequence[object],
    env: Mapping[str, str],
    stdout: str | None,
    stderr: str | None,
    local_rank_id: int,
    numa_options: object = None,
) -> SubprocessHandler:
    """Start a program; see `SubprocessHandler`."""
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
