"""The agent as a class, with the names of torch.distributed.elastic.agent.server.

api                    the template, and the data an agent works with
local_elastic_agent    the agent whose workers are processes of this machine
health_check_server    tells over HTTP whether the agent is alive
"""

from __future__ import annotations

from hpc_elastic.agent.server.api import (
    ElasticAgent,
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from hpc_elastic.agent.server.local_elastic_agent import (
    TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_TIMER_FILE,
    LocalElasticAgent,
)
from hpc_elastic.lazy_names import lazy_names

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

__getattr__, __dir__ = lazy_names(__name__, {})
