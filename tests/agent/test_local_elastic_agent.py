"""The agent whose workers are processes of this machine, on one node."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import events, timer
from hpc_elastic.agent import LocalElasticAgent, RunResult, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, RendezvousConnectionError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.meet.interface import free_port
from hpc_elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from hpc_elastic.node.workers.stuck_in_kernel import UninterruptibleWatch
from hpc_elastic.timer import FileTimerClient
from tests.agent.elastic_fakes import FakeHandler
from tests.node.agents import is_running

NAMES = (
    *("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", Env.CHANNEL),
)


def rank_and(text: str) -> tuple[int, str]:
    """Return the global rank and an argument."""
    return int(os.environ["RANK"]), text


def variables() -> dict[str, str | None]:
    """Return what a worker finds in its environment."""
    return {name: os.environ.get(name) for name in NAMES}


def fail_in_round(count: str) -> str:
    """Fail until so many restarts; tell in the log which one it was."""
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    sys.stdout.write(f"restart {restarts}\n")
    if int(restarts) < int(count):
        raise ValueError(f"restart {restarts}")
    return restarts


def overstay(place: str) -> int:
    """Stay in a timed block for ever, but only in the first life; return which one it is."""
    timer.configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if life == 0:
        Path(place, "pid").write_text(str(os.getpid()))
        with timer.expires(after=0.1):
            while True:  # being asked for its stacks ends a pause
                signal.pause()
    return life


def timer_file() -> str | None:
    """Return where a worker finds the pipe for its timers."""
    return os.environ.get("TORCHELASTIC_TIMER_FILE")


def agent_of(entrypoint: Any, *args: Any, **options: Any) -> LocalElasticAgent:
    """Return an agent of two workers; options of the spec begin with ``spec_``."""
    spec = {
        name.removeprefix("spec_"): options.pop(name) for name in list(options) if name.startswith("spec_")
    }
    spec = {"local_world_size": 2, "max_restarts": 0, "role": "trainer", **spec}
    options.setdefault("start_method", "fork")
    if "log_dir" not in options:
        options.setdefault("logs_specs", DefaultLogsSpecs(os.devnull))
    handler = spec.pop("handler", None) or FakeHandler()
    return LocalElasticAgent(
        WorkerSpec(entrypoint=entrypoint, args=args, rdzv_handler=handler, **spec), **options
    )


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no variable of the agent set."""
    ours = ("TORCHELASTIC_", "TORCH_ELASTIC")
    for name in (*NAMES, *(name for name in os.environ if name.startswith(ours))):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_values_of_functions(start_method: str) -> None:
    """They are by global rank; arguments are handed over, ``${local_rank}`` filled in."""
    result = agent_of(rank_and, "at ${local_rank}", start_method=start_method).run()
    assert RunResult(WorkerState.SUCCEEDED, {0: (0, "at 0"), 1: (1, "at 1")}) == result


def test_other_arguments_stay_as_they_are() -> None:
    """Only texts are looked through."""
    result = agent_of(rank_and, 7, spec_local_world_size=1).run()
    assert {0: (0, 7)} == result.return_values


def test_programs_have_no_values() -> None:
    """Their ranks are in the result all the same."""
    assert RunResult(WorkerState.SUCCEEDED, {0: None, 1: None}) == agent_of("/bin/true").run()


def test_a_failure_is_by_global_rank() -> None:
    """Its reason is what the worker raised; what the agent ended is no failure."""
    command = 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 600'
    result = agent_of("/bin/sh", "-c", command).run()
    assert ({1: 7}, True) == ({r: f.exitcode for r, f in result.failures.items()}, result.is_failed())


def test_environment_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have torchrun's variables, and no channel: nothing that they say to an agent is heard."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    values = agent_of(variables, spec_max_restarts=5).run().return_values
    expected = {
        "LOCAL_RANK": "1",
        "RANK": "1",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1001",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": None,
        Env.CHANNEL: None,
    }
    assert expected == values[1]


def test_the_agents_own_settings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent's environment says of errors and GPUs goes before the defaults."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    values = agent_of(variables).run().return_values
    assert ("0", "4,5", "1") == tuple(values[1][name] for name in (NAMES[15], NAMES[17], NAMES[0]))
    values = agent_of(variables, spec_virtual_local_rank=True).run().return_values
    assert [("0", "4"), ("0", "5")] == [(v["LOCAL_RANK"], v["CUDA_VISIBLE_DEVICES"]) for v in values.values()]


def test_logs_of_all_restarts_are_kept(tmp_path: Path) -> None:
    """Each attempt has its directory."""
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT)
    result = agent_of(fail_in_round, "2", spec_max_restarts=2, spec_local_world_size=1, logs_specs=logs).run()
    assert {0: "2"} == result.return_values
    found = sorted((tmp_path / "logs").rglob("stdout.log"))
    assert ["restart 0\n", "restart 1\n", "restart 2\n"] == [file.read_text() for file in found]
    assert 2 == len(list((tmp_path / "logs").rglob("error.json")))


class TwoRounds(FakeHandler):
    """Wants all to start again once the first workers have written their logs."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def num_nodes_waiting(self) -> int:
        """Return 1 in the first round, when its workers are ready."""
        return int(self.count == 1 and any(file.stat().st_size for file in self._log.rglob("stdout.log")))


def test_a_change_of_membership_erases_no_log(tmp_path: Path) -> None:
    """The same attempt is started twice; what the first workers wrote is still there."""
    command = 'echo "$MASTER_PORT"; [ "$MASTER_PORT" = 1002 ] || while :; do sleep 0.05; done'
    handler = TwoRounds(tmp_path / "logs")
    agent = agent_of(
        *("/bin/sh", "-c", command),
        spec_handler=handler,
        spec_local_world_size=1,
        logs_specs=DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT),
    )
    assert not agent.run().is_failed()
    files = (tmp_path / "logs").rglob("stdout*.log")
    assert ["1001\n", "1002\n"] == sorted(file.read_text() for file in files)


def test_older_spellings(tmp_path: Path) -> None:
    """Start method, log directory and redirects may stand where they stood in older versions."""
    place = str(tmp_path / "logs")
    spec = WorkerSpec(entrypoint=fail_in_round, args=("0",), rdzv_handler=FakeHandler(), redirects=Std.OUT)
    for agent in (
        LocalElasticAgent(spec, "fork", log_dir=place),
        LocalElasticAgent(spec, start_method="fork", log_dir=place),
    ):
        assert not agent.run().is_failed()
    texts = [file.read_text() for file in (tmp_path / "logs").rglob("stdout*.log")]
    assert ["restart 0\n"] * 2 == texts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logs_specs": DefaultLogsSpecs(), "log_dir": "/x"}, "both logs_specs and log_dir"),
        ({"logs_specs": DefaultLogsSpecs(), "spec_tee": Std.OUT}, "both logs_specs and log_dir"),
        ({"logs_specs": "/logs"}, "neither a LogsSpecs nor a start method"),
        ({"shutdown_timeout": -1}, "shutdown_timeout must be non-negative"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    """One error names the thing and the way out."""
    with pytest.raises(InputError, match=words):
        agent_of("/bin/true", **options)


def test_prefix_of_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The template's names are filled in; by default the role and the local rank."""
    logs: LogsSpecs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.OUT)
    options = {
        "logs_specs": logs,
        "log_line_prefix_template": "<${role_name} ${rank}/${local_rank} ${other}> ",
    }
    agent_of("/bin/echo", "one", **options).run()
    agent_of("/bin/echo", "two", logs_specs=logs).run()
    lines = sorted(capfd.readouterr().out.splitlines())
    ours = [f"<trainer {rank}/{rank} ${{other}}> one" for rank in range(2)]
    assert [*ours, "[trainer0]:two", "[trainer1]:two"] == lines


def test_exits_are_noticed_at_once() -> None:
    """The monitor interval is only the longest time between two looks."""
    began = SystemClock().monotonic()
    assert not agent_of("/bin/true", spec_monitor_interval=3600).run().is_failed()
    assert SystemClock().monotonic() - began < 60


def test_signal_handlers_come_back() -> None:
    """They are those from before the run."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    agent_of("/bin/true").run()
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]


def test_a_worker_that_overstays_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog kills it; the agent lives and starts it again."""
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    result = agent_of(overstay, str(tmp_path), spec_max_restarts=1, spec_local_world_size=1).run()
    assert {0: 1} == result.return_values
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_worker_that_overstays_once_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure says that it was the agent's doing, and why."""
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    failure = agent_of(overstay, str(tmp_path), spec_local_world_size=1).run().failures[0]
    assert -signal.SIGKILL == failure.exitcode
    assert str(failure.message).startswith("killed by the agent: the timer of ")


def test_a_pipe_that_cannot_be_made_costs_the_timers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers run, and are told of none."""
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "missing" / "timers"))
    values = agent_of(timer_file).run().return_values
    assert {0: None, 1: None} == values


def test_a_wedged_worker_is_a_failure() -> None:
    """A worker stuck in the kernel is not waited for and not restarted; the run has failed."""
    agent = agent_of("/bin/sleep", "600", spec_max_restarts=3, uninterruptible_state_timeout=0.01)
    agent._stuck = UninterruptibleWatch(0.01, SystemClock().monotonic, read_state=lambda _pid: "D 1")
    result = agent.run()
    assert (WorkerState.FAILED, True, 0) == (result.state, result.is_failed(), agent._remaining_restarts)
    assert {0: ExitCode.WEDGED, 1: ExitCode.WEDGED} == {
        rank: failure.exitcode for rank, failure in result.failures.items()
    }
    assert "in uninterruptible sleep (state D) for 0.01 s or longer" in str(result.failures[0].message)
    assert not any(is_running(worker.id) for worker in agent.get_worker_group().workers)


def test_a_rendezvous_that_does_not_answer_makes_nobody_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for the workers may wait for, too; their time begins when it answers again."""
    handler = FakeHandler([RendezvousConnectionError("no answer")] * 3)
    agent = agent_of("/bin/sleep", "600", spec_handler=handler, uninterruptible_state_timeout=0.01)
    asked: list[tuple[int, ...]] = []

    def check(pids: Collection[int]) -> tuple[int, ...]:
        asked.append(tuple(pids))
        return tuple(pids) if len(asked) > 4 else ()

    monkeypatch.setattr(agent._stuck, "check", check)
    assert agent.run().is_failed()
    assert [2, 0, 0, 0, 2] == [len(pids) for pids in asked]


def test_lost_track_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the pids are not those that were started, nobody knows what runs."""
    agent = agent_of("/bin/sleep", "600")
    start = agent._start_workers

    def start_others(worker_group: WorkerGroup) -> dict[int, Any]:
        return {**start(worker_group), 0: -1}

    monkeypatch.setattr(agent, "_start_workers", start_others)
    with pytest.raises(RuntimeError, match="Worker group in UNKNOWN state"):
        agent.run()


def test_health_is_told_over_http(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the start of the run, through restarts, to its end."""
    port = free_port()
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
    seen: list[int] = []

    class Asking(FakeHandler):
        def next_rendezvous(self) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
                seen.append(answer.status)
            return super().next_rendezvous()

    agent = agent_of(fail_in_round, "1", spec_handler=Asking(), spec_max_restarts=1, log_dir=str(tmp_path))
    assert not agent.run().is_failed()
    assert [200, 200] == seen
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60)


class Collect(events.EventHandler):
    """Keeps the names of all events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def record(self, event: events.Event) -> None:
        """Keep one."""
        self.names.append(event.name.rpartition(".")[2])


@pytest.fixture
def collected() -> Iterator[Collect]:
    """Return what collects all events of the test."""
    handler = Collect()
    events.configure(handler)
    yield handler
    events.configure(events.NullEventHandler())


def test_events_of_a_run(collected: Collect) -> None:
    """Rounds, ranks, starts and ends are recorded, in torch's words."""
    agent_of("/bin/sh", "-c", "exit $RANK").run()
    assert ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START"] == collected.names[:4]
    assert {"TERMINATED", "FAILED"} == set(collected.names[4:])
