"""Signals to a program that launches, and launches where none can be caught."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.launcher import elastic_launch
from hpc_elastic.multiprocessing import SignalException
from tests.launcher.conftest import MakeNodes
from tests.launcher.jobs import config, ignore_signals, rank_plus, running, started, wait_forever
from tests.node.agents import wait_for


def signal_when_started(place: Path, number: int) -> threading.Thread:
    """Send this process a signal as soon as two workers wait."""

    def send() -> None:
        wait_for(lambda: started(place, 2), "two workers")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_a_signal_becomes_an_exception(tmp_path: Path, start_method: str) -> None:
    """The workers have ended by then, at once: none has the program's own handlers."""
    given = config(tmp_path / "run", start_method=start_method)
    sender = signal_when_started(tmp_path, signal.SIGTERM)
    with pytest.raises(SignalException, match=f"Process {os.getpid()} got signal: 15") as caught:
        elastic_launch(given, wait_forever)(str(tmp_path))
    sender.join()
    assert signal.SIGTERM is caught.value.sigval
    assert [] == running(tmp_path)


def test_only_the_wanted_signals_are_taken(tmp_path: Path) -> None:
    """Others still are the program's own."""
    seen: list[int] = []
    earlier = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    try:
        given = config(tmp_path / "run", signals_to_handle="SIGUSR2")

        def send() -> None:
            wait_for(lambda: started(tmp_path, 2), "two workers")
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(lambda: bool(seen), "the program's own handler")
            os.kill(os.getpid(), signal.SIGUSR2)

        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(SignalException) as caught:
            elastic_launch(given, wait_forever)(str(tmp_path))
        thread.join()
        assert (signal.SIGUSR2, [signal.SIGUSR1]) == (caught.value.sigval, seen)
    finally:
        signal.signal(signal.SIGUSR1, earlier)


def test_workers_that_ask_may_finish_their_step(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """All stop at the same one before the launch ends."""
    nodes = make_nodes()
    for name in "ab":
        nodes.start(name, "work_until_told", tmp_path)
    wait_for(lambda: started(tmp_path, 4), "four workers")
    nodes.signal("a", signal.SIGTERM)
    assert "SIGTERM" == nodes.came_of_it("a")["signal"]
    assert "RendezvousClosedError" == nodes.came_of_it("b")["error"]
    steps = [(tmp_path / f"stopped.{rank}").read_text() for rank in range(4)]
    assert 1 == len(set(steps))


class OutOfTimeError(Exception):
    """Raised by a program's own handler."""


def test_a_handler_of_the_program_may_raise(tmp_path: Path) -> None:
    """The workers have ended when it is seen, and the handler is still there."""

    def handler(*_: object) -> None:
        raise OutOfTimeError

    earlier = signal.signal(signal.SIGUSR2, handler)
    try:
        sender = signal_when_started(tmp_path, signal.SIGUSR2)
        with pytest.raises(OutOfTimeError):
            elastic_launch(config(tmp_path / "run"), wait_forever)(str(tmp_path))
        sender.join()
        assert [] == running(tmp_path)
        assert handler is signal.getsignal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, earlier)


def test_a_handler_that_raises_again_leaves_no_worker(tmp_path: Path) -> None:
    """Deaf workers are being ended after the first time; after the second they are killed."""

    def handler(number: int, _frame: object) -> None:
        if number == signal.SIGUSR2:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        raise OutOfTimeError

    earlier = {number: signal.signal(number, handler) for number in (signal.SIGUSR2, signal.SIGALRM)}
    try:
        sender = signal_when_started(tmp_path, signal.SIGUSR2)
        with pytest.raises(OutOfTimeError):
            elastic_launch(config(tmp_path / "run", signals_to_handle="SIGTERM"), ignore_signals)(
                str(tmp_path)
            )
        sender.join()
        assert [] == running(tmp_path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in earlier.items():
            signal.signal(number, before)


def test_stubborn_workers_are_killed_in_time(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """The shutdown timeout holds, whatever the workers do."""
    nodes = make_nodes("1:1", shutdown_timeout=0)
    nodes.start("a", "ignore_signals", tmp_path)
    wait_for(lambda: started(tmp_path, 2), "two workers")
    nodes.signal("a", signal.SIGTERM)
    assert "SIGTERM" == nodes.came_of_it("a")["signal"]
    assert [] == running(tmp_path)


def test_a_thread_may_launch(tmp_path: Path) -> None:
    """Signals can be caught in the main thread only: it goes without."""
    found: dict[str, Any] = {}
    before = signal.getsignal(signal.SIGTERM)

    def launch() -> None:
        found["values"] = elastic_launch(config(tmp_path / "run"), rank_plus)(1)
        found["handler"] = signal.getsignal(signal.SIGTERM)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert {"values": {0: 1, 1: 2}, "handler": before} == found


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """Its workers would launch again as they import it."""
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    script = tmp_path / "train.py"
    script.write_text(f"""
from hpc_elastic.launcher import LaunchConfig, elastic_launch
def train():
    return 1
config = LaunchConfig(1, 1, 1, run_id="toy", rdzv_backend="shared_fs", max_restarts=0,
                      rdzv_endpoint={str(tmp_path / "run")!r})
elastic_launch(config, train)()
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode
    assert "put the launch below: if __name__ == '__main__':" in done.stderr


def test_a_function_of_the_script_itself_is_launched(tmp_path: Path) -> None:
    """With the guard."""
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    script = tmp_path / "train.py"
    script.write_text(f"""
from hpc_elastic.launcher import LaunchConfig, elastic_launch
class Point:
    def __init__(self, x): self.x = x
def train(point):
    return Point(point.x + 1)
if __name__ == "__main__":
    for start_method in ("spawn", "fork", "forkserver"):
        config = LaunchConfig(1, 1, 1, run_id="toy", rdzv_backend="shared_fs", start_method=start_method,
                              rdzv_endpoint={str(tmp_path)!r} + "/" + start_method)
        print(elastic_launch(config, train)(Point(1))[0].x)
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "2\n2\n2\n" == done.stdout, done.stderr


def test_the_error_of_an_unguarded_script_is_an_input_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It can be told from a worker's failure."""
    import multiprocessing.process  # noqa: PLC0415

    monkeypatch.setattr(multiprocessing.process.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(InputError, match="imports the script"):
        elastic_launch(config(tmp_path / "run"), rank_plus)(1)
