"""What whole agents do beside their loop: timers, state D, the health check."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.interface import free_port
from hpc_elastic.node.listeners.node_services import NodeServices
from hpc_elastic.node.listeners.telemetry_hooks import Services, Surroundings
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.workers.stuck_in_kernel import UninterruptibleWatch
from hpc_elastic.record.journal import Cause, Decision, Drained, RoundEnded
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.start.agent import base_env_for, services_for
from hpc_elastic.testing.clock import FakeClock
from tests.node.agents import SLEEP, MakeAgents, gone, is_running, slurm, wait_for
from tests.node.stuck import STUCK

TIMED = """
import time
from hpc_elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
if os.environ["HPC_ELASTIC_ROUND"] in rounds and os.environ["RANK"] == "3":
    with timer.expires(after=0.1, scope="the step"):
        time.sleep(600)
elif os.environ["HPC_ELASTIC_ROUND"] in rounds:
    time.sleep(600)
"""
ENABLED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
QUICK_VERDICT = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"}


def stuck(rank: str) -> str:
    """Return a worker of which one rank hangs in the first round."""
    return f"""
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    if os.environ["RANK"] == "{rank}":
{"".join(f"        {line}{chr(10)}" for line in STUCK.splitlines())}
    {SLEEP}
"""


def surroundings(environ: dict[str, str], scratch: Path, said: list[str], loop: EventLoop) -> Surroundings:
    """Return an agent's surroundings."""
    return Surroundings(
        environ,
        "run",
        str(scratch),
        "n1",
        AgentSettings(max_restarts=3),
        str(scratch),
        loop,
        SystemClock(),
        said.append,
    )


def test_a_worker_that_overstays_costs_one_restart(make: MakeAgents) -> None:
    """Its agent lives, all workers start again, and each agent has its own pipe."""
    agents = make("rounds = '1'.split()" + TIMED)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1", env=ENABLED)
    outputs = [agents.output(node) for node in (0, 1)]
    assert [0, 0] == [agents.code(node) for node in (0, 1)]
    assert "the timer of the step has expired" in outputs[1]
    assert "most recent call first" in outputs[1]
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.CRASH, 3, -9) == (ended.cause, ended.failure["rank"], ended.failure["exitcode"])
    assert "killed by the agent: the timer of the step has expired" == ended.failure["message"]
    pipes = [worker["TORCHELASTIC_TIMER_FILE"] for worker in agents.workers(1)]
    assert 2 == len(set(pipes))
    assert not any(os.path.exists(pipe) for pipe in pipes)


def test_an_expired_timer_is_the_root_cause_everywhere(make: MakeAgents) -> None:
    """Out of restarts both agents end with 128 + 9 and say why."""
    agents = make("rounds = '1'.split()" + TIMED)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", env=ENABLED)
    for node in (0, 1):
        assert "error     : killed by the agent: the timer of the step has expired" in agents.output(node)
        assert 128 + 9 == agents.code(node)


def test_workers_hear_of_a_pipe_only_if_somebody_reads_there(make: MakeAgents) -> None:
    """An inherited name without a server is kept from them."""
    agents = make("")
    agents.start(0, env={"TORCHELASTIC_TIMER_FILE": "/nowhere/timers"})
    assert 0 == agents.code(0)
    assert all("TORCHELASTIC_TIMER_FILE" not in worker for worker in agents.workers(1))


def test_a_wedged_node_leaves_and_the_others_go_on(make: MakeAgents) -> None:
    """It ends with a code of its own, names itself and the process, and says so in the journal."""
    agents = make(stuck("3"))
    for node in (0, 1):
        agents.start(node, "--nnodes", "1:2", "--last-call-timeout", "20", env=QUICK_VERDICT)
    output = agents.output(1)
    assert (ExitCode.WEDGED, 0) == (agents.code(1), agents.code(0))
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.AGENT_ERROR, 3) == (ended.cause, ended.failure["rank"])
    pid = agents.workers(1)[3]["pid"]
    assert f"rank 3 (pid {pid}) on {ended.nodes[0]}: in uninterruptible sleep (state D)" in output
    assert {"2"} == {worker["WORLD_SIZE"] for worker in agents.workers(2)}
    wait_for(lambda: gone(agents.workers(1)), "the first round's workers to end")


SLOW_TO_KILL = f"""
import signal, time
if os.environ["HPC_ELASTIC_ROUND"] == "2":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ["RANK"] == "3" else signal.SIG_DFL)
    if os.environ["RANK"] == "3":
{"".join(f"        {line}{chr(10)}" for line in STUCK.splitlines())}
    {SLEEP}
"""


@pytest.mark.slow
def test_what_the_others_have_begun_goes_on(make: MakeAgents, tmp_path: Path) -> None:
    """They need not wait until the wedged node's workers are given up."""
    agents = make(SLOW_TO_KILL)
    for node in (0, 1):
        flags = ("--nnodes", "1:2", "--last-call-timeout", "0.5")
        agents.start(node, *flags, env=QUICK_VERDICT, args=(str(tmp_path / "end"),))
    assert ExitCode.WEDGED == agents.code(1)
    assert 2 == len(agents.rounds())
    assert agents.state().ending is None
    (tmp_path / "end").touch()
    assert 0 == agents.code(0)


FREEZER = Path("/sys/fs/cgroup/freezer")
FROZEN = """
import time
if os.environ["RANK"] == "1":
    print("going to stay", file=sys.stderr, flush=True)
    open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write(str(os.getpid()))
    open(os.path.join(sys.argv[1], "freezer.state"), "w").write("FROZEN")
time.sleep(600)
"""


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A group of processes which, while it is frozen, takes no signal, SIGKILL included."""
    group = FREEZER / f"test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs root and the freezer of cgroups v1")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "the frozen process to end")
    group.rmdir()


@pytest.mark.slow
def test_a_worker_that_sigkill_does_not_end(make: MakeAgents, freezer: Path) -> None:
    """The agent gives it up in bounded time, names it, and ends with the code of a wedge."""
    agents = make(FROZEN)
    agent = agents.start(0, "--redirects", "3", env=QUICK_VERDICT, args=(str(freezer),))
    output = agents.output(0)
    assert ExitCode.WEDGED == agent.returncode
    pid = agents.workers(1)[1]["pid"]
    assert is_running(pid)
    assert f"cannot be killed: local rank 1: pid {pid} (python" in output
    ending = agents.state().ending
    assert ending is not None
    assert ending.failure is not None
    assert (pid, "going to stay") == (ending.failure["pid"], ending.failure["stderr_tail"])


def test_a_wedge_of_the_only_node_ends_the_run(make: MakeAgents) -> None:
    """Restarts are left, but another worker here would want the same device."""
    agents = make(stuck("1"))
    agents.start(0, "--max-restarts", "3", env=QUICK_VERDICT)
    assert ExitCode.WEDGED == agents.code(0)
    ending = agents.state().ending
    assert ending is not None
    assert (Decision.FAILED, ExitCode.WEDGED) == (ending.decision, ending.exit_code)
    assert 1 == len(agents.rounds())


def test_below_slurm_a_wedge_hands_the_job_back(make: MakeAgents) -> None:
    """The batch script then requeues it, and Slurm may choose another node."""
    agents = make(stuck("1")).submitted("77")
    agents.start(0, env={**QUICK_VERDICT, **slurm("n0", "n0")})
    assert ExitCode.WEDGED == agents.code(0)
    (drained,) = agents.entries(Drained)
    assert Cause.AGENT_ERROR == drained.cause
    assert agents.state().ending is None


def ask(port: int) -> int:
    """Return the status of the answer of an agent, 0 when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_the_health_check_of_an_agent(make: MakeAgents) -> None:
    """It answers already while the agent waits for others, and a second agent at the port goes on without."""
    port = free_port()
    agents = make("")
    agents.start(0, "--nnodes", "2", env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
    wait_for(lambda: ask(port) == 200, "the health check")
    agents.start(1, "--nnodes", "2", env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
    assert 1 == agents.output(1).count("No health check server started")
    assert [0, 0] == [agents.code(0), agents.code(1)]


def test_a_health_check_port_that_is_no_number(make: MakeAgents) -> None:
    """The agent says so and runs."""
    agents = make("")
    agents.start(0, env={"TORCHELASTIC_HEALTH_CHECK_PORT": "http"})
    assert "Invalid healthcheck port value: 'http'" in agents.output(0)
    assert 0 == agents.code(0)


@pytest.fixture
def loop() -> Any:
    """An agent's loop."""
    made = EventLoop(SystemClock())
    yield made
    made.close()


def test_nothing_is_done_unless_it_is_asked_for(tmp_path: Path, loop: EventLoop) -> None:
    """Without the variables there is nothing to start, to look at or to wake for."""
    services = services_for(surroundings({}, tmp_path, [], loop))
    assert Services is type(services)
    assert ({}, (), float("inf"), "") == (
        services.before_workers(),
        services.stuck(lambda: [1]),
        services.wake_at(),
        services.reason(1),
    )
    assert base_env_for({"A": "1"}) is None


@pytest.mark.parametrize("value", ["soon", "-1"])
def test_a_timeout_that_is_none(tmp_path: Path, loop: EventLoop, value: str) -> None:
    """One line says that nobody looks; the run goes on."""
    said: list[str] = []
    services = services_for(
        surroundings({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": value}, tmp_path, said, loop)
    )
    services.open(services._telemetry)  # type: ignore[attr-defined]
    services.close()
    (line,) = said
    assert f"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT={value} is no time in seconds" in line


def test_a_pipe_that_cannot_be_made(tmp_path: Path, loop: EventLoop) -> None:
    """The workers are started without it and told of none; one line says so."""
    said: list[str] = []
    environ = {**ENABLED, "TORCHELASTIC_TIMER_FILE": str(tmp_path / "missing" / "timers")}
    services = services_for(surroundings(environ, tmp_path, said, loop))
    assert isinstance(services, NodeServices)
    services.open(services._telemetry)
    assert {} == services.before_workers()
    services.close()
    assert 1 == len(said)
    assert "the workers' timers are not watched" in said[0]


def test_progress_is_that_of_the_slower_one(tmp_path: Path, loop: EventLoop) -> None:
    """Neither a loop nor a watchdog that hangs is alive."""
    services = services_for(surroundings(ENABLED, tmp_path, [], loop))
    assert isinstance(services, NodeServices)
    services.open(services._telemetry)
    services.before_workers()
    now = SystemClock().wall()
    assert abs(now - services.last_progress_time()) < 2
    loop.turned_at -= 100
    assert abs(now - 100 - services.last_progress_time()) < 2
    services.close()
    assert [] == os.listdir(tmp_path)


def test_what_holds_up_the_agent_makes_nobody_stuck(tmp_path: Path) -> None:
    """A worker that waits for the same file system has its time from then on."""
    clock = FakeClock()
    loop = EventLoop(clock)
    around = surroundings({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "10"}, tmp_path, [], loop)
    services = NodeServices(around._replace(clock=clock))
    services._stuck = UninterruptibleWatch(10, clock.monotonic, lambda _pid: "D 1")
    services.state_timeout_s = 10
    assert () == services.stuck(lambda: [5])
    clock.advance(20)  # within one turn
    assert () == services.stuck(lambda: [5])
    for seconds, stuck in ((0, ()), (9, ()), (1, (5,))):
        clock.advance(seconds)
        loop.turned_at = clock.monotonic()
        assert stuck == services.stuck(lambda: [5])
    loop.close()
