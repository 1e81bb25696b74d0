"""Programs in the manner of torchelastic's own documentation, old and new, run with another import.

They use spellings that torch has given up since: a `WorkerSpec` without a role and with `fn`, an agent
without log specs or with the start method in second place, `events.configure`, `ConsoleMetricsHandler`,
`start_processes` with `log_dir`. What is left out there (`...`) is filled in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE_HANDLER = """
from hpc_elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
def make_handler():
    return get_rendezvous_handler(RendezvousParameters("shared_fs", "run", "run", 1, 1))
"""

LAUNCHER = """
import argparse, sys
from hpc_elastic.agent.server import WorkerSpec
from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent

def parse_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc_per_node", type=int, default=2)
    parser.add_argument("--max_restarts", type=int, default=3)
    parser.add_argument("--monitor_interval", type=float, default=0.05)
    return parser.parse_args(argv)

def trainer_entrypoint_fn(greeting):
    return f"{greeting} from the trainer"

if __name__ == "__main__":
    args = parse_args(sys.argv[1:])
    rdzv_handler = make_handler()
    spec = WorkerSpec(
        local_world_size=args.nproc_per_node,
        fn=trainer_entrypoint_fn,
        args=("hello",),
        rdzv_handler=rdzv_handler,
        max_restarts=args.max_restarts,
        monitor_interval=args.monitor_interval,
    )
    agent = LocalElasticAgent(spec, start_method="spawn")
    try:
        run_result = agent.run()
        if run_result.is_failed():
            print(f"worker 0 failed with: {run_result.failures[0]}")
        else:
            print(f"worker 0 return value is: {run_result.return_values[0]}")
    except Exception as ex:
        print("no exception is expected", ex)
"""

FAILING_LAUNCHER = (
    LAUNCHER.replace('return f"{greeting} from the trainer"', "raise ValueError(greeting)")
    .replace("{run_result.failures[0]}", "{run_result.failures[0].text}")
    .replace("default=2", "default=1")
)

OWN_HANDLER = """
import os
from hpc_elastic.agent.server import LocalElasticAgent, WorkerSpec
from hpc_elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.store import open_store

os.mkdir("store") if __name__ == "__main__" else None

class MyRendezvousHandler(RendezvousHandler):
    def get_backend(self):
        return "mine"
    def next_rendezvous(self):
        return RendezvousInfo(open_store("store", "round"), 0, 1, RendezvousStoreInfo("localhost", 29500))
    def is_closed(self):
        return False
    def set_closed(self):
        pass
    def num_nodes_waiting(self):
        return 0
    def get_run_id(self):
        return "run"
    def shutdown(self):
        return True

def train():
    import os
    return os.environ["MASTER_PORT"]

if __name__ == "__main__":
    spec = WorkerSpec(
        rdzv_handler=MyRendezvousHandler(), role="trainer", local_world_size=1, entrypoint=train
    )
    elastic_agent = LocalElasticAgent(spec, start_method="spawn")
    print(elastic_agent.run(spec.role).return_values)
"""

TUPLE_HANDLER = OWN_HANDLER.replace(
    'RendezvousInfo(open_store("store", "round"), 0, 1, RendezvousStoreInfo("localhost", 29500))',
    'open_store("store", "round"), 0, 1',
).replace('os.environ["MASTER_PORT"]', 'os.environ["WORLD_SIZE"]')

METRIC_HANDLER = """
import hpc_elastic.metrics as metrics
from hpc_elastic.agent.server import LocalElasticAgent, WorkerSpec

seen = set()
class MyMetricHandler(metrics.MetricHandler):
    def emit(self, metric_data: metrics.MetricData):
        seen.add((metric_data.group_name, metric_data.name))

def train():
    pass

def main():
    metrics.configure(MyMetricHandler())
    spec = WorkerSpec(local_world_size=1, fn=train, rdzv_handler=make_handler())
    agent = LocalElasticAgent(spec)
    agent.run()
    print(("torchelastic", "run_success_no_retries") in seen)
    print(("torchelastic", "SimpleElasticAgent._rendezvous.duration.ms") in seen)

if __name__ == "__main__":
    main()
"""

EVENT_HANDLER = """
import hpc_elastic.events as events
from hpc_elastic.agent.server import LocalElasticAgent, WorkerSpec

class MyEventHandler(events.EventHandler):
    def record(self, event: events.Event):
        if event.metadata["state"] in ("START", "SUCCEEDED") and event.timestamp > 0:
            print(event.source.name, event.name)

def train():
    pass

def main():
    events.configure(MyEventHandler())
    spec = WorkerSpec(local_world_size=1, fn=train, rdzv_handler=make_handler())
    agent = LocalElasticAgent(spec)
    agent.run()

if __name__ == "__main__":
    main()
"""

TIMER = """
import multiprocessing as mp
import os
import threading
import hpc_elastic.timer as timer
import hpc_elastic.agent.server as agent

def trainer_func(message_queue):
    timer.configure(timer.LocalTimerClient(message_queue))
    with timer.expires(after=60 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 0.1):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            threading.Event().wait()
    return "done in the second attempt"

def main():
    start_method = "spawn"
    message_queue = mp.get_context(start_method).Queue()
    server = timer.LocalTimerServer(message_queue, max_interval=0.01)
    server.start()  # non-blocking
    spec = agent.WorkerSpec(
        fn=trainer_func,
        args=(message_queue,),
        role="trainer",
        local_world_size=1,
        rdzv_handler=make_handler(),
    )
    local_agent = agent.LocalElasticAgent(spec, start_method)
    print(local_agent.run().return_values)
    server.stop()

if __name__ == "__main__":
    main()
"""

METRICS = """
import time
import hpc_elastic.metrics as metrics

metrics.configure(metrics.NullMetricsHandler())
metrics.configure(metrics.ConsoleMetricsHandler(), "my_module")

def my_method():
    start = time.time()
    end = time.time()
    metrics.put_metric("calculate_latency", int(end - start), "my_module")
    metrics.put_metric("not_shown", 1, "other")

class StdoutMetricHandler(metrics.MetricHandler):
    def emit(self, metric_data):
        ts = metric_data.timestamp
        group = metric_data.group_name
        name = metric_data.name
        value = metric_data.value
        print(f"[{ts > 0}][{group}]: {name}={value}")

@metrics.prof
def foo():
    pass

class Bar:
    @metrics.prof(group="my_app")
    def baz(self):
        pass

metrics.configure(metrics.ConsoleMetricHandler(), group="torchelastic")
metrics.configure(StdoutMetricHandler(), group="my_app")
my_method()
foo()
Bar().baz()
"""

FUNCTION_AGENT = """
import multiprocessing
from hpc_elastic.agent.server.api import WorkerSpec
from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent

nproc_per_process = 2

def trainer(args) -> str:
    return "do train"

def main():
    start_method="spawn"
    shared_queue= multiprocessing.get_context(start_method).Queue()
    spec = WorkerSpec(
                role="trainer",
                local_world_size=nproc_per_process,
                entrypoint=trainer,
                args=("foobar",),
                rdzv_handler=make_handler())
    agent = LocalElasticAgent(spec, start_method)
    results = agent.run()

    if results.is_failed():
        print("trainer failed")
    else:
        print(f"rank 0 return value: {results.return_values[0]}")

if __name__ == "__main__":
    main()
"""

PROGRAM_AGENT = """
from hpc_elastic.agent.server.api import WorkerSpec
from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent

def main():
    spec = WorkerSpec(
                role="trainer",
                local_world_size=2,
                entrypoint="/bin/echo",
                args=("--trainer_args", "foobar"),
                rdzv_handler=make_handler())
    agent = LocalElasticAgent(spec, log_dir="logs")
    results = agent.run()

    if not results.is_failed():
        print("binary launches do not have return values")

if __name__ == "__main__":
    main()
"""

PROCESSES = """
from hpc_elastic.multiprocessing import Std, start_processes

def trainer(a, b, c):
    print("training", a, b, c)
    return a + b + c

if __name__ == "__main__":
    ctx = start_processes(
        name="trainer",
        entrypoint=trainer,
        args={0: (1, 2, 3), 1: (4, 5, 6)},
        envs={0: {"LOCAL_RANK": 0}, 1: {"LOCAL_RANK": 1}},
        log_dir="foobar",
        redirects=Std.ALL,
        tee={0: Std.ERR},
    )
    print(ctx.wait().return_values)
    ctx = start_processes(
        name="echo",
        entrypoint="echo",
        log_dir="foobar",
        args={0: "hello", 1: "world"},
        redirects={1: Std.OUT},
    )
    print(open(ctx.wait().stdouts[1]).read().strip())
"""

SAMPLES = {
    "launcher": (LAUNCHER, ["worker 0 return value is: hello from the trainer"]),
    "launcher of a trainer that fails": (FAILING_LAUNCHER, ["worker 0 failed with: ValueError: hello"]),
    "rendezvous handler": (OWN_HANDLER, ["{0: '29500'}"]),
    "rendezvous handler that returns a tuple": (TUPLE_HANDLER, ["{0: '1'}"]),
    "metric handler": (METRIC_HANDLER, ["True", "True"]),
    "event handler": (
        EVENT_HANDLER,
        [
            "WORKER torchelastic.worker.status.START",
            "WORKER torchelastic.worker.status.SUCCEEDED",
        ],
    ),
    "expiration timers": (TIMER, ["{0: 'done in the second attempt'}"]),
    "metrics": (
        METRICS,
        [
            "[my_module]: calculate_latency=",
            "[torchelastic]: __main__.foo.success=1",
            "[torchelastic]: __main__.foo.duration.ms=",
            "[my_app]: Bar.baz.success=1",
            "[my_app]: Bar.baz.duration.ms=",
        ],
    ),
    "agent of functions": (FUNCTION_AGENT, ["rank 0 return value: do train"]),
    "agent of programs": (PROGRAM_AGENT, ["binary launches do not have return values"]),
    "processes": (PROCESSES, ["{0: 6, 1: 15}", "world"]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_torchelastic_run(name: str, tmp_path: Path) -> None:
    """A program made for torchelastic does here what its documentation says."""
    source, expected = SAMPLES[name]
    (tmp_path / "sample.py").write_text(MAKE_HANDLER + source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "sample.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert 0 == done.returncode, done.stderr
    lines = done.stdout.splitlines()
    missing = [text for text in expected if not any(text in line for line in lines)]
    assert [] == missing, f"{done.stdout}\n{done.stderr}"
