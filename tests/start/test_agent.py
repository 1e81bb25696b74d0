"""The parts of an agent, joined as its process joins them."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, RunDirError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.listeners.telemetry_hooks import Services, Surroundings, tell_nobody
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.setup.notices import LaterNotices, NoNotices
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths
from hpc_elastic.processes.guard import Guard
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import AfterDrain
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.record.run_log import open_log
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.start import agent, kept_state
from hpc_elastic.start.agent import StartContext, open_agent
from hpc_elastic.start.meeting import LaunchOptions
from hpc_elastic.start.scratch import scratch_directory
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.mount import Mount
from hpc_elastic.store.node_ledger import read_ledger
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import formed, loss, start
from tests.meet.one_node import node_maker
from tests.slurm.stand_in import FakeJob


@pytest.fixture
def options(tmp_path: Path) -> LaunchOptions:
    """Return the options of an agent with one worker, in a run directory that has been prepared."""
    paths = RunPaths(tmp_path / "run")
    prepare_run_dir(paths)
    script = tmp_path / "train.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write('done')\n")
    argv = (sys.executable, str(script), str(tmp_path / "told"))
    return LaunchOptions(
        paths,
        "run",
        MeetingSettings(heartbeat_interval=0.1, lease=5.0),
        slots=1,
        command=Command("default_role", argv, DefaultLogsSpecs(paths.logs, is_of_run=True), ""),
        title="train.py",
        settings=AgentSettings(max_restarts=0),
        times=AgentTimes(),
        signals=SignalMeanings((), (), ()),
        node="n1",
        addr="127.0.0.1",
    )


def test_workers_have_their_environment_also_with_preloaded_modules(
    options: LaunchOptions, tmp_path: Path
) -> None:
    """The process that imports modules gets that of the agent, where no pipe of timers is to be left out."""
    with open_agent(
        options._replace(settings=AgentSettings(preload=("json",))), None, owns_process=False
    ) as opened:
        assert 0 == opened.agent.run_to_end().exit_code
    assert "done" == (tmp_path / "told").read_text()


@pytest.mark.parametrize("below_slurm", [False, True])
def test_workers_hear_the_signals_of_slurm_from_the_agent_alone(
    options: LaunchOptions, *, below_slurm: bool
) -> None:
    """Elsewhere nobody signals them beside the agent, so that theirs stay as they are."""
    guard = Guard.start()
    try:
        context = StartContext(
            guard,
            "",
            below_slurm=below_slurm,
            gpus=None,
            owns_process=False,
            is_task=False,
            notices=NoNotices(),
        )
        ignored = agent._start_settings(options, context).ignore_signals
    finally:
        guard.stop()
    assert ignored == ((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if below_slurm else ())


def test_a_directory_beside_the_users_folder_has_no_states_to_take_over(
    options: LaunchOptions, tmp_path: Path
) -> None:
    """Another user may have taken the name of the folder: nothing in it is read."""
    said: list[str] = []
    log = AgentLog(SystemClock(), "n1", [])
    agent._take_over_state(options, str(tmp_path), log)
    assert [] == said == os.listdir(tmp_path / "run" / "checkpoints")


def test_states_that_the_last_start_has_left_are_taken_over_and_told(
    options: LaunchOptions, tmp_path: Path
) -> None:
    """Once: the agent that takes them over has them in its own directory."""
    log, place = open_log(options.paths, "n1"), tmp_path / "memory"
    place.mkdir()
    for entry in (start(), formed(1)):
        log.commit(lambda _, entry=entry: entry)  # type: ignore[misc]
    mine = kept_state.Mine(options.run_id, options.paths, options.node)
    with scratch_directory([str(place)]) as scratch:
        Path(scratch, "rescued-1-30-0-3-0").write_bytes(b"state")
        assert kept_state.keep(scratch, mine, SystemClock().wall(), 1000.0)
    told: list[list[str]] = []
    for _ in range(2):
        said: Any = Said()
        with scratch_directory([str(place)]) as scratch:
            agent._take_over_state(options, scratch, said)
            told.append([*said.lines, *os.listdir(scratch)])
    words = "left by the last start in this node's memory: the state of step 30"
    assert [[words, "rescued-1-30-0-3-0"], []] == told


@pytest.mark.parametrize(("is_forked", "is_started"), [(False, True), (True, False)])
def test_modules_are_imported_for_workers_that_are_new_processes(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch, *, is_forked: bool, is_started: bool
) -> None:
    """Functions that are forked from the agent have its own modules; that is told."""
    monkeypatch.setattr(agent, "has_own_path", lambda: False)
    command = options.command
    if is_forked:
        command = command._replace(argv=(), function=os.path.join, start_method="fork")
    said: Any = Said()
    with scratch_directory([str(options.paths.root)]) as scratch:
        context = around()._replace(scratch=scratch)
        made = agent._preloader(
            options._replace(command=command, settings=AgentSettings(preload=("json",))), context, said
        )
        is_there = bool(made.fds())
        made.close()
    assert is_started == is_there
    assert is_forked == any(
        "nothing is preloaded: functions are started by fork" in one for one in said.lines
    )


def test_the_first_node_that_is_left_tells_the_failure() -> None:
    """In a step whose agents share one output; an agent that is in no round tells its own."""
    store, clock = MemoryStore(), FakeClock()
    node = node_maker(store, clock)
    nodes = [node(name) for name in ("n1", "n2", "n9")]
    nodes[0].run.commit(start())
    nodes[0].run.commit(formed(1, ("n1", "n2")))
    for one in nodes:
        one.run.refresh()
    assert [0, 1, None] == [one.run.place_among_survivors() for one in nodes]
    assert [False, True, False] == [agent._another_tells(one.run) for one in nodes]


@pytest.mark.parametrize(("devices", "expected"), [(None, None), ("2,3", "2,3")])
def test_the_gpus_of_the_agent_are_known_to_workers_that_see_one(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch, devices: str | None, expected: str | None
) -> None:
    """Where its environment names them; workers that see all of them look there themselves."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    one_each = options._replace(command=options.command._replace(virtual_local_rank=True))
    assert expected == dict(agent.run_env(one_each).defaults).get("CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in dict(agent.run_env(options).defaults)


def test_the_workers_may_be_a_function(options: LaunchOptions) -> None:
    """Its result is that of the agent."""
    called = options.command._replace(argv=(), function=os.path.join, args=("a", "b"))
    with open_agent(options._replace(command=called), None, owns_process=False) as opened:
        assert {0: "a/b"} == opened.agent.run_to_end().result.return_values


SLURM = SlurmEnv("7", "7", 0, 0, True, "n1", 0, ("n1", "n2"), 2, False, None)
TASK = SLURM._replace(task=TaskStart("7_1", 0, 0))


class Said:
    """The log of an agent, as far as its lines are read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Note a line."""
        self.lines.append(line)


def around(**parts: Any) -> StartContext:
    """Return what lives as long as an agent, without what a test does not need."""
    usual: dict[str, Any] = {"below_slurm": False, "gpus": None, "owns_process": False, "is_task": False}
    guard: Any = None
    return StartContext(guard, "", **{**usual, "notices": NoNotices(), **parts})


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that says whether there is a program of this name; there is none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def be_there(is_there: bool) -> None:
        if is_there:
            (programs / "nvidia-smi").write_text("#!/bin/sh\n")
            (programs / "nvidia-smi").chmod(0o755)

    return be_there


@pytest.mark.parametrize(
    ("silence", "asked", "gpus", "is_there", "every_s"),
    [
        (0.0, 0.0, 2, True, 0.0),
        (0.0, 30.0, None, False, 30.0),
        (600.0, 0.0, None, False, 0.0),  # no GPUs here: nothing could be looked at
        (600.0, 0.0, 0, False, 0.0),
        (600.0, 7.0, None, False, 7.0),
        (600.0, 0.0, 2, True, 30.0),  # twenty looks in the limit,
        (6000.0, 0.0, None, True, 60.0),  # at least one a minute,
        (10.0, 0.0, 1, True, 1.0),  # no more than one a second
        (600.0, 10.0, 2, True, 10.0),
        (600.0, 50.0, 2, True, 30.0),
        (600.0, 0.0, 2, False, 30.0),
    ],
)
def test_gpus_are_looked_at_often_enough_for_a_limit_of_silence(  # noqa: PLR0913 - a row of the table
    options: LaunchOptions,
    nvidia_smi: Callable[[bool], None],
    silence: float,
    asked: float,
    gpus: int | None,
    *,
    is_there: bool,
    every_s: float,
) -> None:
    """Or as often as the user has asked, if that is more; without a limit as the user has asked."""
    nvidia_smi(is_there)
    log: Any = Said()
    wanted = options._replace(settings=AgentSettings(silence_timeout=silence, sample_gpus=asked))
    assert every_s == agent._between_samples_s(wanted, around(gpus=gpus), log)
    is_in_vain = bool(gpus) and not is_there and silence > 0
    assert is_in_vain == any("--silence-timeout has no effect here" in line for line in log.lines)


def test_an_agent_that_is_asked_for_nothing_starts_no_helpers(options: LaunchOptions) -> None:
    """No process that imports modules, and none that looks at GPUs."""
    log: Any = Said()
    stack: Any = None  # nothing is put on it
    context = around()
    assert context == agent._with_helpers(context, options, log, stack)


def test_a_log_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    """And the node: the log of the agent is new, and for its user alone."""
    path = tmp_path / "n1.log"
    os.close(agent._open_log(str(path)))
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    (tmp_path / "n2.log").mkdir()
    with pytest.raises(RunDirError) as refused:
        agent._open_log(str(tmp_path / "n2.log"))
    node = os.uname().nodename
    assert refused.value.message.endswith(
        f"n2.log cannot be written on {node}: it is a directory, not a plain file"
    )
    assert f"ls -ld {tmp_path}" in refused.value.fix


@pytest.mark.parametrize(("names", "lease"), [((), 5.0), (("nocto", "acdirmax=60"), 60.7)])
def test_a_lease_is_long_enough_for_the_caching_of_the_mount(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], lease: float
) -> None:
    """It is told where it is longer than asked for; nothing else is changed."""
    monkeypatch.setattr(agent, "mount_at", lambda _: Mount("/x", "nfs4", "", names))
    log: Any = Said()
    found = agent._with_safe_lease(options, log)
    expected: Any = pytest.approx(lease)
    assert (expected, lease > options.rendezvous.lease) == (
        found.rendezvous.lease,
        bool(log.lines),
    )
    assert options == found._replace(rendezvous=options.rendezvous)
    assert all("the lease is" in line and "nfs4 on /x" in line for line in log.lines)


@pytest.mark.parametrize(
    ("environ", "cpus"),
    [
        ({}, None),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_TASKS_PER_NODE": "1,2"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_TASKS_PER_NODE": "4"}, 2),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),
        ({"SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"SLURM_CPUS_ON_NODE": "many", "SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"SLURM_CPUS_ON_NODE": "0"}, None),
    ],
)
def test_the_one_task_of_a_node_has_all_its_cpus(environ: dict[str, str], cpus: int | None) -> None:
    """One of several has those of a task."""
    assert cpus == agent._slurm_cpus(environ)


def test_variables_of_the_user_stay_as_they_are(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get defaults: threads share the CPUs of the node, and output is in the log at once."""
    for name in ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHONUNBUFFERED", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(9)})
    found = agent.run_env(
        options._replace(
            slots=4, master_addr="head", master_port=29500, settings=AgentSettings(max_restarts=3)
        )
    )
    assert {"OMP_NUM_THREADS": "2", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"} == dict(
        found.defaults
    )
    assert ("run", options.paths.root, "n1", 3, "head", 29500) == found[:6]
    assert (False, False) == (found.is_slurm_task, found.names_coordinator)
    assert ("OMP_NUM_THREADS", "1") in agent.run_env(options._replace(slots=64)).defaults
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert {"TORCH_NCCL_ASYNC_ERROR_HANDLING"} == dict(agent.run_env(options).defaults).keys()


@pytest.mark.parametrize("own", [False, True])
def test_a_task_of_slurms_names_the_coordinator_of_jax(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """Unless the user has; JAX would take that of Slurm's task."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    if own:
        monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "head:1")
    found = agent.run_env(options)
    assert (True, not own) == (found.is_slurm_task, found.names_coordinator)


def test_trackers_get_names_only_if_they_are_asked_for(options: LaunchOptions) -> None:
    """One experiment over all starts of the run."""
    usual = dict(agent.run_env(options).defaults)
    tracked = dict(agent.run_env(options._replace(settings=AgentSettings(tracker_ids=True))).defaults)
    assert usual.items() < tracked.items()
    assert "WANDB_RUN_ID" in tracked


def test_the_interpreter_of_functions_is_that_of_new_processes(
    options: LaunchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program is its own; functions that are forked from the agent have none to be copied from."""
    monkeypatch.setattr(agent, "has_own_path", lambda: False)
    assert (options.command.argv, ()) == agent._interpreter(options.command)
    called = options.command._replace(argv=(), function=os.path.join, start_method="spawn")
    argv, path = agent._interpreter(called)
    assert (sys.executable, "", tuple(sys.path)) == (argv[0], argv[-1], path)
    assert ((), ()) == agent._interpreter(called._replace(start_method="fork"))
    monkeypatch.setattr(agent, "has_own_path", lambda: True)
    assert () != agent._interpreter(called._replace(start_method="fork"))[0]
    assert () == agent._interpreter(called)[1]


@pytest.mark.parametrize(
    ("slurm", "is_local", "kind", "is_alone"),
    [
        (None, False, NoNotices, None),
        (SLURM, True, NoNotices, None),
        (SLURM, False, LaterNotices, False),
        (TASK, False, LaterNotices, True),
    ],
)
def test_slurm_is_listened_to_below_slurm_alone(
    options: LaunchOptions,
    monkeypatch: pytest.MonkeyPatch,
    slurm: SlurmEnv | None,
    *,
    is_local: bool,
    kind: type,
    is_alone: bool | None,
) -> None:
    """Each task of an array for itself; of a job the first node of a round for all."""
    monkeypatch.delenv(Env.LOCAL, raising=False)
    if is_local:
        monkeypatch.setenv(Env.LOCAL, "1")
    loop: Any = None  # nothing is made before the first round
    found = agent._notices_of(options, slurm, loop)
    assert kind is type(found)
    assert is_alone == getattr(found, "_is_alone", None)


@pytest.mark.parametrize(
    ("slurm", "on_timeout", "on_signal", "has_peers", "is_first"),
    [
        (None, AfterDrain.REJOIN, AfterDrain.LEAVE, False, True),
        (SLURM, AfterDrain.LEAVE, AfterDrain.LEAVE, True, True),
        (SLURM._replace(node_names=("n0", "n1")), AfterDrain.LEAVE, AfterDrain.LEAVE, True, False),
        (TASK, AfterDrain.LEAVE, AfterDrain.REJOIN, False, True),
    ],
)
def test_an_agent_leaves_or_waits_as_its_place_in_slurm_asks(  # noqa: PLR0913 - a row of the table
    options: LaunchOptions,
    monkeypatch: pytest.MonkeyPatch,
    slurm: SlurmEnv | None,
    on_timeout: AfterDrain,
    on_signal: AfterDrain,
    *,
    has_peers: bool,
    is_first: bool,
) -> None:
    """By hand it goes on waiting; a task that is told to end leaves the others to go on."""
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    with open_agent(options, slurm, owns_process=False) as opened:
        parts = opened.agent._parts
        assert (on_timeout, on_signal) == (parts.on_timeout, parts.on_signal)
        assert has_peers == opened.shares_console
        probe: Any = parts.unfit
        place = probe._place
        assert (is_first, slurm is not None) == (place.is_first, place.below_slurm)
        assert (slurm and slurm.gpus_on_node, 1) == (place.gpus, place.workers)
        assert opened.scratch == parts.scratch == place.scratch
    assert not os.path.exists(opened.scratch)


def test_two_agents_by_hand_on_one_node_have_names_of_their_own(options: LaunchOptions) -> None:
    """In one run; Slurm starts one agent of a job on each node, whose name is Slurm's."""
    with (
        open_agent(options, None, owns_process=False) as first,
        open_agent(options, None, owns_process=False) as second,
    ):
        assert ["n1", "n1"] != [first.run.node, second.run.node]
        assert "n1" == first.run.node
    with open_agent(options, SLURM, owns_process=False) as of_slurm:
        assert "n1" == of_slurm.run.node


class Ended(NamedTuple):
    """The part of an agent that says how it has ended."""

    log: Said
    own_log: Said
    loop: Any
    run: Any
    shares_console: bool = False


class Signalled(NamedTuple):
    """The signals that have come."""

    last_signal: int | None


def goodbye(
    options: LaunchOptions, outcome: Outcome, number: int | None, place: int | None, **more: Any
) -> tuple[int, str, str]:
    """Return the exit code of an agent, and what it has told all and its own log alone."""
    run = type("Run", (), {"place_among_survivors": lambda _: place})()
    opened: Any = Ended(Said(), Said(), Signalled(number), run, **more)
    code = agent._say_goodbye(options, outcome, opened)
    return code, "\n".join(opened.log.lines), "\n".join(opened.own_log.lines)


FAILURE = {"message": "boom", "rank": 3}


@pytest.mark.parametrize(
    ("below_script", "shares", "place", "by_itself"),
    [
        (True, True, 0, False),
        (True, False, None, False),
        (False, False, 1, True),  # nobody else is in its output
        (False, True, 0, True),
        (False, True, None, True),
        (False, True, 1, False),
    ],
)
def test_one_agent_tells_the_failure_to_all(
    options: LaunchOptions,
    monkeypatch: pytest.MonkeyPatch,
    *,
    below_script: bool,
    shares: bool,
    place: int | None,
    by_itself: bool,
) -> None:
    """Below a batch script `finish` does; each agent's own log has it."""
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    if below_script:
        monkeypatch.setenv(Env.SUBMISSION, "0")
    outcome = Outcome(1, "a worker failed", FAILURE)
    code, told, own = goodbye(options, outcome, None, place, shares_console=shares)
    assert (1, True) == (code, "leaving: a worker failed" in told)
    assert (by_itself, not by_itself) == ("boom" in told, "boom" in own)


@pytest.mark.parametrize(
    ("exit_code", "number", "below_script", "expected"),
    [
        (ExitCode.REQUEUE, signal.SIGTERM, False, 128 + signal.SIGTERM),
        (ExitCode.REQUEUE, signal.SIGTERM, True, ExitCode.REQUEUE),
        (ExitCode.REQUEUE, None, False, ExitCode.REQUEUE),
        (ExitCode.OK, signal.SIGTERM, False, ExitCode.OK),
    ],
)
def test_an_agent_that_a_signal_has_ended_says_so_by_its_exit_code(
    options: LaunchOptions,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: int,
    number: int | None,
    *,
    below_script: bool,
    expected: int,
) -> None:
    """As any program does; a batch script of ours asks for another start by the code."""
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    if below_script:
        monkeypatch.setenv(Env.SUBMISSION, "0")
    assert expected == goodbye(options, Outcome(exit_code, "it is over"), number, None)[0]


@pytest.mark.parametrize(
    ("lost", "exit_code", "place", "is_remembered"),
    [
        ((), 1, 0, False),
        (("n2",), 1, 0, True),
        ((), ExitCode.UNFIT, None, True),
        ((), ExitCode.WEDGED, 7, True),
        (("n2",), 1, 8, False),
        (("n2",), 1, 7, True),
    ],
)
def test_a_few_nodes_remember_the_bad_ones_of_a_users_own_script(
    options: LaunchOptions,
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[str, ...],
    exit_code: int,
    place: int | None,
    *,
    is_remembered: bool,
) -> None:
    """Where one was lost, or this one is unfit; a thousand would be a burden to slurmctld."""
    monkeypatch.setenv("PATH", "")  # Slurm cannot be asked, which is told
    node = node_maker(MemoryStore(), FakeClock())("n1")
    node.run.commit(start())
    node.run.commit(formed(1, ("n1", "n2")))
    if lost:
        node.run.commit(loss(1, *lost))
    node.run.refresh()
    monkeypatch.setattr(type(node.run), "place_among_survivors", lambda _: place)
    log = Said()
    os.rename(options.paths.journal, f"{options.paths.journal}.gone")
    Path(options.paths.journal).write_text("")
    opened: Any = Ended(log, log, Signalled(None), node.run)
    agent._remember_bad_nodes(options, SLURM, opened, Outcome(exit_code, "it is over"))
    assert is_remembered == any("bad nodes are not remembered: " in line for line in log.lines)


def surroundings(environ: dict[str, str], destination: str = "null") -> Surroundings:
    """Return those of an agent, as far as its services look at them."""
    nothing: Any = None
    settings = AgentSettings(event_log_handler=destination)
    return Surroundings(environ, "run", "/run", "n1", settings, "/x", nothing, SystemClock(), print)


@pytest.mark.parametrize("name", [Env.ENABLE_FILE_TIMER, Env.HEALTH_CHECK_PORT, Env.STATE_TIMEOUT])
def test_services_run_if_a_variable_asks_for_one(name: str) -> None:
    """Without any, nothing more is imported."""
    assert Services is type(agent.services_for(surroundings({"HOME": "/"})))
    assert Services is not type(agent.services_for(surroundings({name: "1"})))


def test_events_and_metrics_go_to_nobody_unless_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a destination, by a variable, or by a program that has configured them in this process."""
    for name in ("hpc_elastic.metrics.api", "hpc_elastic.events.handlers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert tell_nobody is agent.telemetry_for(surroundings({}))
    assert tell_nobody is not agent.telemetry_for(surroundings({}, "console"))
    for name in (Env.METRICS, Env.EVENTS):
        with pytest.raises(InputError):
            agent.check_telemetry({name: "no such thing"})
    agent.check_telemetry({})


def test_the_interpreter_of_training_scripts_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for torch's launcher."""
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    assert sys.executable == agent.default_python()
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert "/opt/python" == agent.default_python()


def test_only_an_environment_with_a_timer_is_changed() -> None:
    """Its pipe may have no reader any more."""
    assert None is agent.base_env_for({"HOME": "/"})
    assert {"HOME": "/"} == agent.base_env_for({"HOME": "/", Env.TIMER_FILE: "/no/such/pipe"})


def test_variables_of_workers_alone_are_handed_to_them() -> None:
    """In the place of the agent's, and without their long names."""
    given = {"A": "1", "B": "2", f"{Env.OF_WORKERS}B": "3", f"{Env.OF_WORKERS}LD_PRELOAD": "/x.so"}
    assert {"A": "1", "B": "3", "LD_PRELOAD": "/x.so"} == agent.base_env_for(given)
    dead = {**given, Env.TIMER_FILE: "/no/such/pipe"}
    assert {"A": "1", "B": "3", "LD_PRELOAD": "/x.so"} == agent.base_env_for(dead)


def test_a_whole_agent_runs_a_run_once(
    options: LaunchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second one is told how the run has ended, and ends so; neither hands a resume on to its workers."""
    monkeypatch.setenv(Env.RESUME, "x")
    assert 0 == agent.run_agent(options, None)
    assert "done" == (tmp_path / "told").read_text()
    assert Env.RESUME not in os.environ
    (tmp_path / "told").unlink()
    capfd.readouterr()
    assert 0 == agent.run_agent(options, None)
    assert "the run" in capfd.readouterr().err
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize(("slurm", "is_remembered"), [(None, False), (SLURM, True)])
@pytest.mark.parametrize("below_script", [False, True])
def test_an_unfit_node_is_remembered_where_no_script_does_it(
    options: LaunchOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: SlurmEnv | None,
    *,
    is_remembered: bool,
    below_script: bool,
) -> None:
    """In a job of a user's own script; below a batch script of ours `finish` does."""
    job = FakeJob(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{job.bin}:/usr/bin:/bin")
    monkeypatch.setenv(Env.LEDGER, str(tmp_path / "ledger"))
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    if below_script:
        monkeypatch.setenv(Env.SUBMISSION, "0")
        monkeypatch.setenv(Env.RUN_ID, "run")
        Path(options.paths.identity).write_text('{"run_id": "run"}')
    place = None if slurm is None else slurm._replace(node_names=("n1",))
    bad = options._replace(settings=AgentSettings(health_command="echo no driver; false"))
    assert ExitCode.UNFIT == agent.run_agent(bad, place)
    found = [event.host for event in read_ledger(str(tmp_path / "ledger")).events]
    assert (["n1"] if is_remembered and not below_script else []) == found
