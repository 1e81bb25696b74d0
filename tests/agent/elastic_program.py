"""A program: a launcher as users write one, with `LocalElasticAgent` over one of our handlers or torch's.

Takes one argument, a JSON object with the fields of `Options`; writes what came of the run as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, NamedTuple

from hpc_elastic.agent import LocalElasticAgent, WorkerSpec
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RendezvousClosedError
from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.multiprocessing import SignalException
from hpc_elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from hpc_elastic.rendezvous.dynamic_rendezvous import create_handler
from hpc_elastic.rendezvous.shared_fs_backend import create_backend

SIGNALLED = 99
_TIMES = {"keep_alive_interval": "0.2", "keep_alive_max_attempt": "6", "last_call_timeout": "1"}


class Options(NamedTuple):
    """One agent."""

    place: str  # where the nodes meet
    node: str
    result: str  # the file for what came of it
    command: str  # what each worker runs in a shell; ${local_rank} is replaced
    min_nodes: int = 1
    max_nodes: int = 1
    workers: int = 1
    role: str = "trainer"
    max_restarts: int = 0
    kind: str = "shared_fs"
    exit_barrier_timeout: float = 60
    shutdown_timeout: float = 10


def handler_of(options: Options) -> RendezvousHandler:
    """Return the handler that the options ask for."""
    times: dict[str, Any] = {**_TIMES, "node": options.node} if options.kind == "shared_fs" else _TIMES
    sizes = (options.min_nodes, options.max_nodes)
    if options.kind == "c10d":
        handler: RendezvousHandler = _torchs_handler(options, sizes)
        return handler
    params = RendezvousParameters("shared_fs", options.place, "run-1", *sizes, "127.0.0.1", **times)
    if options.kind == "shared_fs":
        return get_rendezvous_handler(params)
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def _torchs_handler(options: Options, sizes: tuple[int, int]) -> Any:
    """Return torch's own handler; the first node runs its server, the place is host:port."""
    from torch.distributed.elastic import rendezvous  # noqa: PLC0415 - 2 s
    from torch.distributed.elastic.rendezvous import registry  # noqa: PLC0415

    more: dict[str, Any] = {"is_host": options.node == "a", "last_call_timeout": 1}
    params = rendezvous.RendezvousParameters("c10d", options.place, "run-1", *sizes, **more)
    return registry.get_rendezvous_handler(params)


def run(options: Options) -> dict[str, Any]:
    """Run the agent to its end; return what came of it."""
    handler = handler_of(options)
    spec = WorkerSpec(
        role=options.role,
        local_world_size=options.workers,
        entrypoint="/bin/sh",
        args=("-c", options.command),
        rdzv_handler=handler,
        max_restarts=options.max_restarts,
        monitor_interval=0.1,
    )
    agent = LocalElasticAgent(
        spec,
        exit_barrier_timeout=options.exit_barrier_timeout,
        shutdown_timeout=options.shutdown_timeout,
    )
    began = SystemClock().monotonic()
    try:
        result = agent.run()
    except SignalException as error:
        return {"state": f"ended by {error.sigval.name}", "took": SystemClock().monotonic() - began}
    except RendezvousClosedError as error:
        return {"state": "closed", "words": str(error)}
    finally:
        handler.shutdown()
    return {
        "state": result.state.value,
        "failures": {rank: failure.exitcode for rank, failure in result.failures.items()},
        "ranks": sorted(result.return_values),
        "remaining_restarts": agent._remaining_restarts,
        "took": SystemClock().monotonic() - began,
    }


def main() -> int:
    """Run one agent."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = Options(**json.loads(sys.argv[1]))
    found = run(options)
    with open(options.result, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return SIGNALLED if found["state"].startswith("ended by") else 0


if __name__ == "__main__":
    sys.exit(main())
