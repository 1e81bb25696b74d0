"""A program: torch's own agent over one of our rendezvous handlers.

Arguments: kind of handler, shared directory, name of the node, minimum and maximum of nodes, and what
each worker runs in a shell.
"""

from __future__ import annotations

import sys
from typing import Any

from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from hpc_elastic.rendezvous.dynamic_rendezvous import create_handler
from hpc_elastic.rendezvous.shared_fs_backend import create_backend

_TIMES = {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "6", "last_call_timeout": "1"}


def _handler(kind: str, place: str, name: str, low: int, high: int) -> RendezvousHandler:
    options = {**_TIMES, "node": name} if kind == "shared_fs" else _TIMES
    params = RendezvousParameters("shared_fs", place, "r", low, high, "127.0.0.1", **options)
    if kind == "shared_fs":
        return get_rendezvous_handler(params)
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def main() -> None:
    """Run one agent to its end."""
    from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: PLC0415 - 2 s
    from torch.distributed.elastic.agent.server.api import WorkerSpec  # noqa: PLC0415 - 2 s
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415 - 2 s

    kind, place, name, low, high, command = sys.argv[1:]
    handler: Any = _handler(kind, place, name, int(low), int(high))
    spec = WorkerSpec(
        role="worker",
        local_world_size=1,
        entrypoint="/bin/sh",
        args=("-c", command),
        rdzv_handler=handler,
        max_restarts=0,
        monitor_interval=0.1,
    )
    logs = DefaultLogsSpecs(log_dir=f"{place}-logs-{name}")
    local_elastic_agent.LocalElasticAgent(spec, logs).run()


if __name__ == "__main__":
    main()
