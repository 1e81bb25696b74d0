"""Make the same calls of one package's agent, torch's or ours, and print what came of them as JSON.

Usage: elastic_same_calls.py PACKAGE FILE
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

Found = dict[str, Any]
VARIABLES = (
    *("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
)
FIELDS = (
    *("role", "local_world_size", "entrypoint", "args", "max_restarts", "monitor_interval", "master_port"),
    *("master_addr", "local_addr", "event_log_handler", "duplicate_stdout_filters", "virtual_local_rank"),
)
DROPPED = {"hostname", "total_run_time", "duration_ms", "worker_id"}


def variables(text: str) -> Any:
    """Return what a worker finds in its environment."""
    return [text, {name: os.environ.get(name) for name in VARIABLES}]


def second_time() -> str:
    """Fail unless restarted."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    return "better"


class Calls:
    """The calls; one public method each."""

    def __init__(self, package: str) -> None:
        self.api = import_module(f"{package}.agent.server.api")
        self.local = import_module(f"{package}.agent.server.local_elastic_agent")
        self.rdzv = import_module(f"{package}.rendezvous")
        self.metrics = import_module(f"{package}.metrics")
        self.multi = import_module(f"{package}.multiprocessing")
        self.is_torch = package.startswith("torch")

    def new_store(self) -> Any:
        """Return an empty store of the package."""
        if self.is_torch:
            return import_module("torch.distributed").HashStore()
        memory = import_module("hpc_elastic.store.memory").MemoryStore()
        return import_module("hpc_elastic.store.kv.store").KeyValueStore(memory, "kv")

    def handler(self, waiting: Iterator[int] | None = None) -> Any:
        """Return a handler that gives a world of one node, each round another port."""
        calls = self

        class Handler(self.rdzv.RendezvousHandler):  # type: ignore[name-defined,misc]
            rounds = 0
            use_agent_store = False

            def get_backend(self) -> str:
                return "fake"

            def get_run_id(self) -> str:
                return "run-1"

            def next_rendezvous(self) -> Any:
                self.rounds += 1
                where = calls.rdzv.api.RendezvousStoreInfo("host", 1000 + self.rounds)
                return calls.rdzv.RendezvousInfo(calls.new_store(), 0, 1, where)

            def num_nodes_waiting(self) -> int:
                return next(waiting, 0) if waiting else 0

            def is_closed(self) -> bool:
                return False

            def set_closed(self) -> None:
                """Do nothing."""

            def shutdown(self) -> bool:
                return True

        return Handler()

    def agent(self, looks: str, waiting: tuple[int, ...] = (), **spec: Any) -> Any:
        """Return an agent whose workers are as a word per look says, and that notes what it does."""
        api, multi = self.api, self.multi
        states = iter(looks.split())

        class Agent(api.SimpleElasticAgent):  # type: ignore[name-defined,misc]
            did: list[Any]

            def _start_workers(self, worker_group: Any) -> dict[int, Any]:
                self.did.append(["start", worker_group.master_port])
                return {worker.local_rank: worker.global_rank for worker in worker_group.workers}

            def _stop_workers(self, worker_group: Any) -> None:
                self.did.append(["stop", worker_group.state.value])

            def _monitor_workers(self, worker_group: Any) -> Any:
                state = api.WorkerState[next(states)]
                ranks = [worker.global_rank for worker in worker_group.workers]
                if state is api.WorkerState.SUCCEEDED:
                    return api.RunResult(state, dict.fromkeys(ranks, "value"))
                if state is api.WorkerState.FAILED:
                    return api.RunResult(state, {}, {1: multi.ProcessFailure(1, 99, 7, "")})
                return api.RunResult(state)

            def _shutdown(self, death_sig: Any = 15, timeout: float = 30) -> None:
                self.did.append(["shutdown", int(death_sig), timeout])

        values = {
            "role": "r",
            "local_world_size": 2,
            "entrypoint": "/bin/prog",
            "monitor_interval": 0.01,
            **spec,
        }
        made = Agent(api.WorkerSpec(rdzv_handler=self.handler(iter(waiting)), **values), shutdown_timeout=9)
        made.did = []
        return made

    def observed(self, act: Callable[[], Any]) -> Found:
        """Return what an act returns or raises, with its events and metrics."""
        metrics, events = [], _Lines()
        found = self.metrics

        class Handler(found.MetricHandler):  # type: ignore[name-defined,misc]
            def emit(self, metric_data: Any) -> None:
                timed = metric_data.name.endswith(".ms")
                metrics.append(
                    [metric_data.group_name, metric_data.name, None if timed else metric_data.value]
                )

        self.metrics.configure(Handler())
        logger = logging.getLogger("torchelastic-events-null")
        logger.addHandler(events)
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - compared
            result = ["raised", str(error)]
        self.metrics.configure(self.metrics.NullMetricHandler())
        logger.removeHandler(events)
        return {"result": result, "events": [_plain(line) for line in events.lines], "metrics": metrics}

    def story(self, looks: str, waiting: tuple[int, ...] = (), **spec: Any) -> Found:
        """Return all that can be seen of a run."""
        agent = self.agent(looks, waiting, **spec)

        def act() -> Any:
            result = agent.run()
            return [
                result.state.value,
                sorted(result.return_values),
                sorted(result.failures),
                result.is_failed(),
            ]

        found = self.observed(act)
        group = agent.get_worker_group()
        left = [agent._remaining_restarts, group.state.value, str(group.workers)]
        return {**found, "did": agent.did, "left": left}

    def success(self) -> Found:
        """All goes well."""
        return self.story("HEALTHY HEALTHY SUCCEEDED")

    def restarts(self) -> Found:
        """The second start succeeds."""
        return self.story("HEALTHY FAILED HEALTHY SUCCEEDED", max_restarts=2)

    def failure(self) -> Found:
        """No restart helps."""
        return self.story("FAILED FAILED", max_restarts=1)

    def membership(self) -> Found:
        """Nodes wait, twice."""
        return self.story("HEALTHY HEALTHY HEALTHY SUCCEEDED", (1, 0, 2), max_restarts=0)

    def unknown(self) -> Found:
        """The agent has lost track of its workers."""
        return self.story("UNKNOWN", max_restarts=5)

    def small_things(self) -> Found:
        """Data and their texts."""
        api = self.api
        spec = api.WorkerSpec("r", 2, None, entrypoint="/bin/prog")
        info = api._RoleInstanceInfo
        infos = [info("b", 0, 1), info("b", 2, 1), info("a", 1, 3)]
        return {
            "fields": {name: getattr(spec, name) for name in FIELDS},
            "name": spec.get_entrypoint_name(),
            "states": [state.value for state in api.WorkerState if api.WorkerState.is_running(state)],
            "worker": str(api.Worker(1, 2, 3, 4, 5)),
            "infos": [infos[0].serialize().decode(), info.find_role_boundaries(infos, "b")],
            "order": [info.compare(one, other) for one in infos for other in infos],
            "result": repr(api.RunResult(api.WorkerState.SUCCEEDED).return_values),
        }

    def refusals(self) -> Found:
        """Which bad values are an AssertionError."""
        bad = ({"local_world_size": 0}, {"monitor_interval": 0}, {"entrypoint": None})
        found = {}
        for change in bad:
            values = {"role": "r", "local_world_size": 1, "rdzv_handler": None, "entrypoint": "x", **change}
            try:
                self.api.WorkerSpec(**values)
            except AssertionError:
                found[str(change)] = "AssertionError"
        return found

    def ranks(self) -> Found:
        """Ranks of alike agents, which take no store."""
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
        agent = self.agent("")
        workers = agent._assign_worker_ranks(None, 2, 4, agent.get_worker_group().spec)
        del os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"]
        return {"ranks": str(workers)}

    def _local(self, entrypoint: Any, *args: Any, **spec: Any) -> list[Any]:
        with tempfile.TemporaryDirectory() as place:
            values = {"role": "r", "local_world_size": 2, "max_restarts": 1, **spec}
            spec_ = self.api.WorkerSpec(
                rdzv_handler=self.handler(), entrypoint=entrypoint, args=args, **values
            )
            agent = self.local.LocalElasticAgent(spec_, self.multi.DefaultLogsSpecs(place), "fork")
            result = agent.run()
            failures = {rank: failure.exitcode for rank, failure in result.failures.items()}
            return [result.state.value, result.return_values, failures, agent._remaining_restarts]

    def functions(self) -> Found:
        """What function workers get and return."""
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"
        plain = self._local(variables, "at ${local_rank}")
        virtual = self._local(variables, 7, virtual_local_rank=True)
        del os.environ["CUDA_VISIBLE_DEVICES"]
        return {"plain": plain, "virtual": virtual, "again": self._local(second_time)}

    def programs(self) -> Found:
        """What comes of programs."""
        shell = ("/bin/sh", "-c")
        return {
            "good": self._local(*shell, "exit 0"),
            "bad": self._local(*shell, "exit 7", max_restarts=0, local_world_size=1),
            "again": self._local(*shell, "exit $((1 - TORCHELASTIC_RESTART_COUNT))"),
        }


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(record.getMessage())


def _plain(line: str) -> Found:
    """Return an event without times and places, and without torch's lists of one element."""
    event = json.loads(line)
    metadata = {name: value for name, value in event["metadata"].items() if name not in DROPPED}
    if metadata["raw_error"]:
        metadata["raw_error"] = "some"
    more = json.loads(metadata["metadata"])
    metadata["metadata"] = {
        name: value[0] if isinstance(value, list) else value for name, value in more.items()
    }
    return {"name": event["name"], "source": event["source"], **metadata}


CALLS = (
    *("success", "restarts", "failure", "membership", "unknown"),
    *("small_things", "refusals", "ranks", "functions", "programs"),
)


def main() -> None:
    """Make all calls."""
    calls = Calls(sys.argv[1])
    found = {name: getattr(calls, name)() for name in CALLS}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
