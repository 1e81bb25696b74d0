"""A worker that SIGKILL does not end: it is waited for, then its node gives it up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.node.node_workers import WorkersEnding, stuck_of
from hpc_elastic.node.workers.process_facts import facts_of
from hpc_elastic.testing.waiting import wait_until


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group of version 1 that freezes: who is in it takes no signal, not even SIGKILL."""
    group = Path("/sys/fs/cgroup/freezer") / f"hpc_elastic_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of version 1, in version 2 nobody survives SIGKILL: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
    group.rmdir()


@pytest.fixture
def frozen(freezer: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A frozen process that has been sent SIGKILL."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (freezer / "cgroup.procs").write_text(str(process.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "the freezer")
    process.send_signal(signal.SIGKILL)
    yield process
    (freezer / "freezer.state").write_text("THAWED")
    process.wait()


class Loop:
    """Waits, and does something at the second time."""

    def __init__(self, act: Any = None) -> None:
        self.signals: list[int] = []
        self.turns = 0
        self._act = act

    def wait(self, seconds: float) -> None:
        """Wait for as long [s]."""
        self.turns += 1
        SystemClock().sleep(seconds)
        if self.turns == 2 and self._act is not None:
            self._act()


def group_of(pid: int, unkillable: list[str]) -> Any:
    """Return what is looked at of an ended group."""
    return SimpleNamespace(context=SimpleNamespace(pids=lambda: {0: pid}, unkillable=lambda: unkillable))


def parts_of(loop: Loop, beats: list[int]) -> Any:
    """Return what is used of an agent."""
    run = SimpleNamespace(tick=lambda: beats.append(1), membership=SimpleNamespace(node_id="n1.1"))
    log = SimpleNamespace(say=lambda _text: None)
    paths = SimpleNamespace(nodes="nodes")
    return SimpleNamespace(
        clock=SystemClock(), loop=loop, log=log, paths=paths, rendezvous=SimpleNamespace(run=run)
    )


def ending(parts: Any, stuck_s: float) -> WorkersEnding:
    """Return the end of the workers of a node, with a time for those that SIGKILL does not end [s]."""
    return WorkersEnding(parts, lambda: None, stuck_s)


def test_who_stays_is_given_up(frozen: subprocess.Popen[bytes]) -> None:
    """After its time, in which the agent went on beating; a frozen process is not taken for a hung one."""
    beats: list[int] = []
    group = group_of(frozen.pid, ["local rank 0: in state D"])
    wait_until(lambda: stuck_of(group) == (frozen.pid,), "state D")
    assert facts_of(frozen.pid).is_stopped
    assert (frozen.pid,) == ending(parts_of(Loop(), beats), 1.2).outwait(group)
    assert len(beats) >= 2


def test_who_ends_after_all_is_not(frozen: subprocess.Popen[bytes], freezer: Path) -> None:
    """A file server that comes back costs time only."""
    group = group_of(frozen.pid, ["local rank 0: in state D"])
    wait_until(lambda: stuck_of(group) == (frozen.pid,), "state D")
    loop = Loop(lambda: (freezer / "freezer.state").write_text("THAWED"))
    assert () == ending(parts_of(loop, []), 60).outwait(group)


def test_most_workers_just_end() -> None:
    """Nobody is waited for then."""
    loop = Loop()
    assert () == ending(parts_of(loop, []), 60).outwait(group_of(os.getpid(), []))
    assert () == stuck_of(group_of(os.getpid(), ["left over: pid 3"]))
    assert 0 == loop.turns
