"""The parts of an agent, joined as its process joins them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.setup.notices import NoNotices
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths
from hpc_elastic.processes.guard import Guard
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.start import agent
from hpc_elastic.start.agent import StartContext, open_agent
from hpc_elastic.start.meeting import LaunchOptions
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import formed, start
from tests.meet.one_node import node_maker


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
        max_restarts=0,
        times=AgentTimes(),
        signals=SignalMeanings((), (), ()),
        node="n1",
        addr="127.0.0.1",
    )


def test_workers_have_their_environment_also_with_preloaded_modules(
    options: LaunchOptions, tmp_path: Path
) -> None:
    """The process that imports modules gets that of the agent, where no pipe of timers is to be left out."""
    with open_agent(options._replace(preload=("json",)), None, owns_process=False) as opened:
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
