"""The agent's one place to sleep: no signal is lost, and nothing spins."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.setup.agent_setup import AgentTimes
from hpc_elastic.node.stop_rules import DrainTimes
from tests.node.test_node_states import opened

DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
open(sys.argv[1], "w").close()
while True:
    time.sleep(600)
"""


def test_no_signal_is_lost_while_signals_are_taken() -> None:
    """One may come between any two instructions."""
    loop, sent = EventLoop(SystemClock()), 0

    def disturb(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal sent
        frame.f_trace_opcodes = True
        if event == "opcode" and sent < 50:
            sent += 1
            signal.raise_signal(signal.SIGUSR1)
        return disturb

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        return disturb(frame, event, arg) if frame.f_code is EventLoop.take_signals.__code__ else None

    loop.catch([signal.SIGUSR1])
    earlier = sys.gettrace()
    try:
        signal.raise_signal(signal.SIGUSR1)
        sys.settrace(trace)
        taken = loop.take_signals()
        sys.settrace(earlier)
        assert 50 == sent
        assert 1 + sent == len(taken + loop.take_signals())
    finally:
        sys.settrace(earlier)
        loop.close()


def test_waiting_for_workers_that_do_not_end_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when their time to save is over and they have been told to end."""
    times = AgentTimes(drain=DrainTimes(stop=0.05), told=0.4)
    started, naps = tmp_path / "started", list[float]()
    with opened(tmp_path / "run", DEAF, str(started), times=times) as agent:
        wait = agent.loop.wait

        def counted(seconds: float, fds: Iterable[int] = ()) -> None:
            if started.exists() and agent.loop.last_signal is None:
                agent.loop._note(signal.SIGTERM, None)
            naps.append(seconds)
            wait(seconds, fds)

        monkeypatch.setattr(agent.loop, "wait", counted)
        assert ExitCode.REQUEUE == agent.agent.run_to_end().exit_code
    assert sum(seconds <= 0 for seconds in naps) < 50
