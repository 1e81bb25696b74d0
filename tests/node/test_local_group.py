"""The workers of one node: looking at them never waits, whatever they leave behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.multiprocessing.context import StartSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.decision import Group
from hpc_elastic.node.workers.local_group import Command, LocalGroup
from hpc_elastic.node.workers.worker_env import RunEnv
from hpc_elastic.record.journal import RoundEnded, RoundFormed
from tests.meet.build import E0, member, node_id
from tests.node.agents import MakeAgents, is_running, wait_for

LEAVES = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    left = subprocess.Popen(["sleep", "600"])
    open(sys.argv[1], "w").write(str(left.pid))
"""
GRACE_S = 600.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """A worker that has ended well and has left a process that ignores SIGTERM."""
    script = tmp_path / "train.py"
    script.write_text(LEAVES)
    formed = RoundFormed(1, E0, (member("n1"),), "127.0.0.1", 29_000, None)
    run = RunEnv("run", str(tmp_path), "n1", 0)
    made = LocalGroup(formed, node_id("n1"), str(tmp_path), run, StartSettings(grace_s=GRACE_S))
    logs = DefaultLogsSpecs(str(tmp_path / "logs"))
    made.start(Command("train", (sys.executable, str(script), str(tmp_path / "left")), logs, ""), restarts=0)
    wait_for(lambda: made.context.look() is not None, "the worker to end")
    yield made
    made.context.close(timeout=0)


def test_what_is_left_behind_is_given_time(group: LocalGroup, tmp_path: Path) -> None:
    """The workers count as running until it has gone, or its time is up."""
    left, now = int((tmp_path / "left").read_text()), SystemClock().monotonic()
    assert Group.RUNNING is group.status(now)
    assert Group.RUNNING is group.status(now + GRACE_S - 1)
    assert is_running(left)
    wait_for(lambda: group.status(now + GRACE_S + 1) is Group.SUCCEEDED, "it to be killed")
    assert not is_running(left)


def test_being_told_to_end_does_not_undo_a_success(group: LocalGroup) -> None:
    """It only shortens the time of what is left."""
    now = SystemClock().monotonic()
    assert Group.RUNNING is group.status(now)
    group.stop(signal.SIGTERM, now + 1)
    assert Group.STOPPING is group.status(now)
    wait_for(lambda: group.status(now + 2) is Group.SUCCEEDED, "it to be killed")


@pytest.mark.slow
def test_a_node_is_not_lost_for_what_its_workers_leave_behind(make: MakeAgents, tmp_path: Path) -> None:
    """It beats while it waits longer than a lease, and the run is done in one round."""
    agents = make(LEAVES)
    for node in (0, 1):
        flags = ("--nnodes", "2", "--nproc-per-node", "1", "--shutdown-timeout", "3")
        agents.start(node, *flags, args=(str(tmp_path / "left"),))
    assert [0, 0] == [agents.code(node) for node in (0, 1)]
    assert 1 == len(agents.rounds())
    assert [] == agents.entries(RoundEnded)


KEEPS = """
import os, signal, sys, threading
from hpc_elastic.worker.channel import Channel
from hpc_elastic.worker.request_pipe import heed
channel, asked = Channel.open(os.environ["HPC_ELASTIC_CHANNEL"]), threading.Event()
heed(channel, asked.set)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
channel.keeper = os.getpid()
asked.wait()
open(sys.argv[1], "w").close()
signal.sigwait([signal.SIGURG])
channel.keeper = 0
signal.pause()
"""


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[LocalGroup]:
    """Two workers: one keeps its state when it is asked, the other has none."""
    script = tmp_path / "train.py"
    script.write_text(f'import os\nif os.environ["RANK"] == "1":\n    os._exit(3)\n{KEEPS}')
    formed = RoundFormed(1, E0, (member("n1", 2),), "127.0.0.1", 29_000, None)
    run = RunEnv("run", str(tmp_path), "n1", 0)
    made = LocalGroup(formed, node_id("n1"), str(tmp_path), run, StartSettings(grace_s=GRACE_S))
    logs = DefaultLogsSpecs(str(tmp_path / "logs"))
    made.start(Command("train", (sys.executable, str(script), str(tmp_path / "kept")), logs, ""), restarts=0)
    wait_for(lambda: bool(made.channels[0].keeper), "the worker to tell that it can")
    wait_for(lambda: made.status(0.0) is Group.FAILED, "the other worker to fail")
    yield made
    made.context.close(timeout=0)


def test_a_worker_is_asked_once_to_keep_its_state(keeping: LocalGroup, tmp_path: Path) -> None:
    """It is waited for until it has done so; one that has failed is not."""
    assert keeping.is_rescuing(100.0, 110.0)
    wait_for((tmp_path / "kept").exists, "the worker to be asked")
    assert keeping.is_rescuing(101.0, 110.0)
    os.kill(keeping.context.pids()[0], signal.SIGURG)  # go on
    wait_for(lambda: not keeping.is_rescuing(102.0, 110.0), "the state to be kept")


def test_a_worker_that_was_stopped_is_asked_too(keeping: LocalGroup, tmp_path: Path) -> None:
    """It goes on, as the agent would else wait in vain for its answer."""
    os.kill(keeping.context.pids()[0], signal.SIGSTOP)
    kept = tmp_path / "kept"
    wait_for(lambda: keeping.is_rescuing(100.0, 110.0) and kept.exists(), "the worker to be asked")


def test_a_worker_that_keeps_its_state_has_its_time(keeping: LocalGroup, tmp_path: Path) -> None:
    """Then it is ended all the same."""
    assert not keeping.is_rescuing(110.0, 110.0)
    assert not (tmp_path / "kept").exists()
    assert keeping.is_rescuing(100.0, 110.0)
    assert not keeping.is_rescuing(111.0, 110.0)
