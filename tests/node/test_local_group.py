"""The workers of one node: looking at them never waits, whatever they leave behind."""

from __future__ import annotations

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
