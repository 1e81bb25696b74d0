"""The agent's watchdog over its workers' timers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.node.listeners.watchdog import (
    ENABLE_ENV,
    FILE_ENV,
    Watchdog,
    end_with_its_group,
    expired_words,
    is_served,
    without_dead_pipe,
)
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.timer import ExpiredWorker, FileTimerClient, FileTimerRequest

ON = {ENABLE_ENV: "1"}

TIMED = """
import sys, time
from hpc_elastic import timer
timer.configure(timer.FileTimerClient(sys.argv[1]))
with timer.expires(after=0.1, scope="step"):
    time.sleep(600)
"""


class Events:
    """What the watchdog has told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, FileTimerRequest | None]] = []

    def __call__(self, name: str, request: FileTimerRequest | None) -> None:
        """Take note."""
        self.told.append((name, request))

    @property
    def names(self) -> list[str]:
        """What has happened."""
        return [name for name, _ in self.told]


@pytest.fixture
def events() -> Events:
    """Who listens."""
    return Events()


@pytest.fixture
def watchdog(tmp_path: Path, events: Events) -> Iterator[Watchdog]:
    """A watchdog that watches."""
    made = Watchdog.from_env(ON, "run", events, directory=str(tmp_path))
    assert made is not None
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_only_1_turns_it_on(value: str | None, events: Events) -> None:
    """As in torch."""
    environ = {} if value is None else {ENABLE_ENV: value}
    assert Watchdog.from_env(environ, "run", events) is None


def test_workers_are_told_of_the_pipe_only_while_somebody_reads(watchdog: Watchdog, tmp_path: Path) -> None:
    """The pipe lies in the agent's own directory and goes away with the server."""
    assert {FILE_ENV: watchdog.path} == watchdog.worker_env()
    assert tmp_path == Path(watchdog.path).parent
    assert is_served(watchdog.path)
    watchdog.stop()
    assert {} == watchdog.worker_env()
    assert watchdog.last_progress_time() is None
    assert [] == list(tmp_path.iterdir())


def test_the_pipe_that_a_site_wants(tmp_path: Path, events: Events) -> None:
    """TORCHELASTIC_TIMER_FILE names it; each start makes it anew."""
    path = str(tmp_path / "timers")
    watchdog = Watchdog.from_env({**ON, FILE_ENV: path}, "run", events)
    assert watchdog is not None
    for _ in range(2):
        watchdog.start()
        assert is_served(path)
    watchdog.stop()
    assert ["watchdog started", "watchdog stopped"] * 2 == events.names


def test_another_agents_pipe_is_left_to_it(watchdog: Watchdog, events: Events, tmp_path: Path) -> None:
    """An agent started by a worker inherits the name of the pipe; it does not take the pipe away."""
    environ = {**ON, FILE_ENV: watchdog.path}
    inner = Watchdog.from_env(environ, "inner", events, directory=str(tmp_path))
    assert inner is not None
    assert watchdog.path != inner.path
    assert is_served(watchdog.path)


def test_a_worker_that_overstays_is_killed_with_its_script(watchdog: Watchdog, events: Events) -> None:
    """The program around it ends too, its stacks are in its stderr, and this process goes on."""
    inner = f"{sys.executable} -c '{TIMED}' {watchdog.path}; sleep 600"
    worker = subprocess.Popen(["/bin/sh", "-c", inner], stderr=subprocess.PIPE, start_new_session=True)
    _, stderr = worker.communicate(timeout=120)
    assert -signal.SIGKILL == worker.returncode
    assert b"most recent call first" in stderr
    wait_until(lambda: len(events.told) == 3, "the events")
    assert ["watchdog started", "timer expired", "kill worker process"] == events.names
    request = events.told[2][1]
    assert request is not None
    assert ("step", signal.SIGKILL) == (request.scope_id, request.signal)


def test_only_who_was_killed_is_said_to_have_been(watchdog: Watchdog, events: Events) -> None:
    """A timer without a signal ends nobody; and the next worker with the same pid is another one."""
    late, group = SystemClock().wall() - 1, os.getpgrp()
    FileTimerClient(watchdog.path, 0).acquire("told", late)
    wait_until(lambda: "timer expired" in events.names, "the timer to expire")
    assert "" == watchdog.reason(group)
    FileTimerClient(watchdog.path).acquire("own", late)
    wait_until(lambda: watchdog.reason(group) != "", "another timer to expire")
    assert "killed by the agent: the timer of own has expired" == watchdog.reason(group)
    watchdog.start()
    assert "" == watchdog.reason(group)


def test_a_timer_of_the_agent_itself_is_not_acted_on(watchdog: Watchdog, events: Events) -> None:
    """Whatever is written into the pipe, the agent lives."""
    client = FileTimerClient(watchdog.path)
    client.acquire("own", SystemClock().wall() - 1)
    wait_until(lambda: "timer expired" in events.names, "the timer to expire")
    watchdog.stop()


def test_a_process_of_the_agents_own_group_dies_alone() -> None:
    """Only the process itself is signalled, not the group that the agent is in."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        assert os.getpgrp() == os.getpgid(child.pid)
        assert end_with_its_group(ExpiredWorker(child.pid, signal.SIGKILL, ("x",)))
        assert -signal.SIGKILL == child.wait(120)
    assert end_with_its_group(ExpiredWorker(child.pid, signal.SIGKILL, ("x",)))


def test_progress(watchdog: Watchdog) -> None:
    """Until a worker has set a timer the watchdog counts as alive."""
    now = SystemClock().wall()
    progress = watchdog.last_progress_time()
    assert progress is not None
    assert abs(now - progress) < 5


def test_workers_are_not_told_of_a_pipe_that_nobody_reads(watchdog: Watchdog, tmp_path: Path) -> None:
    """An inherited name stays only if somebody on this machine reads there."""
    assert without_dead_pipe({"A": "1"}) is None
    assert without_dead_pipe({"A": "1", FILE_ENV: watchdog.path}) is None
    file = tmp_path / "file"
    file.touch()
    for path in (str(tmp_path / "nothing"), str(file)):
        assert {"A": "1"} == without_dead_pipe({"A": "1", FILE_ENV: path})


def test_the_words_of_an_expired_timer() -> None:
    """For people: who overstayed where, and what comes of it."""
    words = expired_words(FileTimerRequest(12, "step", 4.5, 9))
    expected = "the timer of step has expired: pid 12 is sent SIGKILL; its Python stacks are in its stderr"
    assert expected == words
    assert "pid 12 goes on" in expired_words(FileTimerRequest(12, "step", 4.5, 0))
    assert "signal 99" in expired_words(FileTimerRequest(12, "step", 4.5, 99))
