"""Ranks that are threads of one process, with PyTorch's own process groups for that: a call takes no time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LIMIT_S = 100.0


def on_ranks(size: int, function: Callable[[Any, int], Any]) -> list[Any]:
    """Call a function on a number of ranks; return its values, by rank.

    Args:
        size: how many there are.
        function: called with ``torch.distributed`` and the rank; the group of all ranks is `group.WORLD`.

    Raises:
        BaseException: the error of the first rank that has one.
    """
    import torch  # noqa: PLC0415 - with the first test that asks for it
    import torch.distributed as dist  # noqa: PLC0415 - the same
    from torch.testing._internal.distributed import multi_threaded_pg as threads  # noqa: PLC0415 - the same

    threads._install_threaded_pg()
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    store, ended = dist.HashStore(), dict[int, Any]()

    def be(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=size, store=store)
            ended[rank] = True, function(dist, rank)
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            ended[rank] = False, error
            threads.ProcessLocalGroup.exception_handle(error)  # the others wait for this one

    ranks = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(size)]
    try:
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(LIMIT_S)
    finally:
        isolate(False)
        threads._uninstall_threaded_pg()
    failed = [error for is_well, error in ended.values() if not is_well and not isinstance(error, SystemExit)]
    if failed:
        raise failed[0]
    return [ended[rank][1] for rank in range(size)]
