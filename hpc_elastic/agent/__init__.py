"""The agent of one node: rendezvous, workers, restarts, drain, exit barrier.

There are two. `node_agent` is the agent of `hpc-elastic run`: it takes part in a run in a shared
directory, hears of everything at once and drains. `SimpleElasticAgent` and `LocalElasticAgent` are the
programmable agent of torch.distributed.elastic, over any rendezvous handler.

Names load their module when first used: a command that starts an agent pays for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpc_elastic.agent.server.api import SimpleElasticAgent
    from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from hpc_elastic.node.spec import ElasticAgent, RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState

_HOMES = {
    "SimpleElasticAgent": "server.api",
    "LocalElasticAgent": "server.local_elastic_agent",
    "ElasticAgent": ".node.spec",
    "RunResult": ".node.spec",
    "Worker": ".node.spec",
    "WorkerGroup": ".node.spec",
    "WorkerSpec": ".node.spec",
    "WorkerState": ".node.spec",
}

__all__ = [
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
