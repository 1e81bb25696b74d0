"""What a launch leaves behind in the process that calls it: nothing."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import metrics
from hpc_elastic.events.handlers import configured_handler
from hpc_elastic.ids import Env
from hpc_elastic.launcher import elastic_launch
from hpc_elastic.launcher.adoption import AsBefore
from hpc_elastic.multiprocessing.errors import ChildFailedError
from hpc_elastic.processes.linux import adopts_orphans
from tests.launcher.jobs import QUICK, config, fail_on, rank_plus

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def state() -> dict[str, Any]:
    """Return what a launch could change."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return {
        "fds": {fd: _target(fd) for fd in os.listdir("/proc/self/fd")},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "handlers": [signal.getsignal(number) for number in _SIGNALS],
        "wakeup": wakeup,
        "subreaper": adopts_orphans(),
        "children": sorted(children),
        "shm": sorted(name for name in os.listdir("/dev/shm") if str(os.getpid()) in name),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
    }


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the listing
        return ""


def without_listing(found: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the descriptor that its own listing had."""
    fds = {fd: target for fd, target in found["fds"].items() if target}
    return {**found, "fds": fds}


def launch_well(run_dir: Path, start_method: str) -> None:
    """Launch what succeeds."""
    elastic_launch(config(run_dir, start_method=start_method), rank_plus)(1)


def launch_badly(run_dir: Path, start_method: str) -> None:
    """Launch what fails."""
    with pytest.raises(ChildFailedError):
        elastic_launch(config(run_dir, start_method=start_method), fail_on)(1, "no luck")


def launch_command(run_dir: Path, _start_method: str) -> None:
    """Launch a command."""
    elastic_launch(config(run_dir), sys.executable)("-c", "")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_nothing_is_left(tmp_path: Path, start_method: str) -> None:
    """Not even without the garbage collector; the standard library keeps its helpers, once."""
    launch_well(tmp_path / "first", start_method)
    gc.collect()
    gc.disable()
    try:
        before = without_listing(state())
        launch_well(tmp_path / "good", start_method)
        launch_badly(tmp_path / "bad", start_method)
        launch_command(tmp_path / "command", start_method)
        assert before == without_listing(state())
    finally:
        gc.enable()


def test_a_program_s_own_signal_handling_comes_back(tmp_path: Path) -> None:
    """Its handlers, and the descriptor that wakes its event loop."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
        signal.set_wakeup_fd(writer)
        launch_well(tmp_path / "run", "spawn")
        assert mine is signal.getsignal(signal.SIGTERM)
        assert writer == signal.set_wakeup_fd(-1)
    finally:
        signal.signal(signal.SIGTERM, earlier)
        os.close(reader)
        os.close(writer)


def test_without_signals_none_are_caught(tmp_path: Path) -> None:
    """Who wants none handled keeps all."""
    before = without_listing(state())
    elastic_launch(config(tmp_path / "run", signals_to_handle=""), rank_plus)(1)
    assert before["wakeup"] == state()["wakeup"]


def test_several_threads_may_launch_at_once(tmp_path: Path) -> None:
    """Each gets its own workers' values; the process is as before when the last is done."""
    found: dict[int, Any] = {}

    def launch(number: int) -> None:
        found[number] = elastic_launch(config(tmp_path / f"run{number}"), rank_plus)(number)

    threads = [threading.Thread(target=launch, args=(10 * number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: {0: number, 1: number + 1} for number in (10, 20, 30)} == found
    assert not adopts_orphans()


def test_threads_may_play_nodes(tmp_path: Path) -> None:
    """Of one run, in one process."""
    found: dict[str, Any] = {}

    def launch(node: str) -> None:
        given = config(tmp_path / "run", nodes="2:2", rdzv_configs={**QUICK, "node": node})
        found[node] = elastic_launch(given, rank_plus)(10)

    threads = [threading.Thread(target=launch, args=(node,)) for node in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"a": {0: 10, 1: 11}, "b": {2: 12, 3: 13}} == found


def test_all_is_as_before_when_the_last_has_gone() -> None:
    """Whatever it was, and however the users overlap."""
    now = ["ours"]
    kept = AsBefore(lambda: now[0], lambda value: now.__setitem__(0, value))
    for before in ("ours", "another"):
        now[0] = before
        first, second = kept.restored(), kept.restored()
        with first:
            now[0] = "the first one's"
            second.__enter__()
            now[0] = "the second one's"
        assert "the second one's" == now[0]
        second.__exit__(None, None, None)
        assert before == now[0]


def test_nothing_of_what_was_configured_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers of metrics and events, log levels and the environment are the program's own again."""
    place = f"jsonl:{tmp_path}"
    for name, value in ((Env.METRICS, place), (Env.EVENTS, place), (Env.HEALTH_CHECK_PORT, "0")):
        monkeypatch.setenv(name, value)
    before = configured()
    for number in (1, 2):
        launch_well(tmp_path / str(number), "fork")
        assert before == configured()
    assert 2 == len(list(tmp_path.glob("*.jsonl")))


def configured() -> dict[str, Any]:
    """Return what a launch could configure."""
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith("hpc_elastic")
    ]
    return {
        "metrics": metrics.getStream("torchelastic").handler,
        "events": configured_handler().handler,
        "levels": {logger.name: logger.level for logger in loggers if logger.level},
        "handlers": {logger.name: logger.handlers for logger in loggers if logger.handlers},
        "environ": dict(os.environ),
    }
