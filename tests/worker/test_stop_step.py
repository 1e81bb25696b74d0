"""All ranks stop at the same step: real processes at different speeds, the agent's part here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.worker.channel import SETTLE_S, Channel

LIMIT_S = 60.0
TRAIN = """
import sys, time
from hpc_elastic import worker
step_time, first, ask_every = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
for step in range(first, 10**9):
    if step_time:
        time.sleep(step_time)
    worker.tick(step + 1)
    if (step + 1) % ask_every == 0 and worker.should_stop():
        print(step + 1)
        break
"""


class Ranks:
    """Worker processes, and the agent's end of their channels."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.channels: list[Channel] = []
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, step_time_s: float, first: int = 0, ask_every: int = 1, *, held: bool = False) -> None:
        """Start one more rank; one that is held makes no step before `go_on`."""
        channel = Channel.create(str(self._directory / f"channel{len(self.channels)}"))
        argv = [sys.executable, "-c", TRAIN, str(step_time_s), str(first), str(ask_every)]
        environ = {**os.environ, Env.CHANNEL: channel.path, Env.STOP_WAIT_S: str(LIMIT_S)}
        self.channels.append(channel)
        self.processes.append(
            subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        if not held:
            self.go_on(self.processes[-1])

    def go_on(self, process: subprocess.Popen[str]) -> None:
        """Let a rank make its steps."""
        print(file=process.stdin, flush=True)

    def drain(self) -> int:
        """Do what the agents do; return the agreed stop step."""
        for channel in self.channels:
            channel.request_drain()
        time.sleep(SETTLE_S)
        stop = max(channel.stop_bound for channel in self.channels)
        for channel in self.channels:
            channel.stop_step = stop
        return stop

    def stopped_at(self) -> list[int]:
        """Wait for the ranks to end and return the step that each printed."""
        return [int(process.communicate(timeout=LIMIT_S)[0]) for process in self.processes]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """Return no ranks yet; those started are gone afterwards."""
    group = Ranks(tmp_path)
    yield group
    for process in group.processes:
        process.kill()
        process.communicate()
    for channel in group.channels:
        channel.unlink()
        channel.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.001)


def assert_all_stop_together(ranks: Ranks) -> int:
    """Drain, check that every rank stopped at exactly the agreed step, and return it."""
    stop = ranks.drain()
    assert [stop] * len(ranks.channels) == ranks.stopped_at()
    assert [stop] * len(ranks.channels) == [channel.stopped_at for channel in ranks.channels]
    return stop


def test_slow_rank_catches_up(ranks: Ranks) -> None:
    """A rank that lags behind goes on to the agreed step while the fast one holds."""
    ranks.start(0.001)
    ranks.start(0.004)
    wait_until(lambda: all(channel.ticks > 20 for channel in ranks.channels))
    assert assert_all_stop_together(ranks) > 20


@pytest.mark.parametrize("repetition", range(5))
def test_no_rank_slips_past_at_full_speed(ranks: Ranks, repetition: int) -> None:
    """Ranks that tick hundreds of thousands of times a second still stop together."""
    for _ in range(3):
        ranks.start(0.0)
    wait_until(lambda: all(channel.ticks > repetition for channel in ranks.channels))
    assert_all_stop_together(ranks)


def test_ranks_that_ask_rarely(ranks: Ranks) -> None:
    """When the code asks every 7th step only, all ranks stop at the same multiple of 7."""
    for step_time_s in (0.001, 0.002):
        ranks.start(step_time_s, ask_every=7)
    wait_until(lambda: all(channel.ticks > 10 for channel in ranks.channels))
    stop = ranks.drain()
    assert [stop + -stop % 7] * 2 == ranks.stopped_at()


def test_drain_before_the_first_step(ranks: Ranks) -> None:
    """A drain that comes while the workers still load lets each do one step after its resume."""
    for step_time_s in (0.0, 0.05):
        ranks.start(step_time_s, first=100, held=True)
    assert 0 == ranks.drain()
    for process in ranks.processes:
        ranks.go_on(process)
    assert [101, 101] == ranks.stopped_at()


def test_create_refuses_an_existing_file(tmp_path: Path) -> None:
    """A channel is never made from a file that is already there; it is private and one page."""
    channel = Channel.create(str(tmp_path / "channel"))
    with pytest.raises(FileExistsError):
        Channel.create(channel.path)
    status = os.stat(channel.path)
    assert (0o600, 4096) == (status.st_mode & 0o777, status.st_size)
    channel.unlink()
    channel.unlink()
    assert not os.path.exists(channel.path)
