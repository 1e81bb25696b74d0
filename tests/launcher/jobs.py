"""Functions that workers run in the tests of this package, and how to launch them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from hpc_elastic import worker
from hpc_elastic.launcher import LaunchConfig

QUICK = {"heartbeat_interval": 0.2, "lease": 1.2}


def config(run_dir: Path | str, workers: int = 2, nodes: str = "1:1", **more: Any) -> LaunchConfig:
    """Return a configuration for a run in a directory."""
    low, _, high = nodes.partition(":")
    given = {
        "run_id": "toy",
        "rdzv_backend": "shared_fs",
        "rdzv_endpoint": str(run_dir),
        "rdzv_configs": dict(QUICK),
        "max_restarts": 0,
        **more,
    }
    return LaunchConfig(int(low), int(high or low), workers, **given)


def rank_plus(number: int) -> int:
    """Return the rank and a number more."""
    return int(os.environ["RANK"]) + number


def had(*names: str) -> list[bool]:
    """Tell of some modules whether they are loaded."""
    return [name in sys.modules for name in names]


def same(*args: Any) -> tuple[Any, ...]:
    """Return the arguments."""
    return args


def variables(*names: str) -> dict[str, str | None]:
    """Return variables of the environment."""
    return {name: os.environ.get(name) for name in names}


def world() -> tuple[str, str, str]:
    """Return rank, world size and restart count."""
    return os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]


def cpus() -> list[int]:
    """Return the CPUs that this worker may use."""
    return sorted(os.sched_getaffinity(0))


def handlers() -> list[bool]:
    """Tell of some signals whether they end this process."""
    return [
        signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
    ]


def shout() -> None:
    """Write to both streams."""
    sys.stdout.write("loud: all is well\nquiet\n")
    sys.stderr.write("loud: look out\nquiet\n")


def fail_on(rank: int, text: str) -> None:
    """Raise on one rank; the others wait until they are ended."""
    if int(os.environ["RANK"]) == rank:
        raise ValueError(text)
    threading.Event().wait()


def leave_on(rank: int, code: int) -> None:
    """End with a code on one rank; the others wait until they are ended."""
    if int(os.environ["RANK"]) == rank:
        os._exit(code)
    threading.Event().wait()


def fail_first(rank: int) -> tuple[str, str, str]:
    """Fail on one rank before the first restart; later tell how the world is."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fail_on(rank, "not yet")
    return world()


def wait_forever(place: str) -> None:
    """Tell that this worker runs, and wait."""
    (Path(place) / f"pid.{os.getpid()}").touch()
    threading.Event().wait()


def started(place: Path, count: int) -> bool:
    """Tell whether so many workers wait."""
    return len(list(place.glob("pid.*"))) == count


def running(place: Path) -> list[int]:
    """Return the pids of those that waited and still run."""
    pids = [int(path.suffix[1:]) for path in place.glob("pid.*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def wait_for_file(wanted: str, made: str) -> None:
    """Make a file and wait until there is another."""
    Path(made).touch()
    ended = threading.Event()
    while not Path(wanted).exists():
        ended.wait(0.01)


def ignore_signals(place: str) -> None:
    """Wait, and do not end when told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_forever(place)


def work_until_told(place: str) -> None:
    """Work in steps; when told to stop, leave a note of the step."""
    step, pause = 0, threading.Event()
    (Path(place) / f"pid.{os.getpid()}").touch()
    while not worker.should_stop():
        step += 1
        worker.tick(step)
        pause.wait(0.01)
    (Path(place) / f"stopped.{os.environ['RANK']}").write_text(str(step))
