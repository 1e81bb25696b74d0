"""Runs an example's ranks as plain processes, in the place of an agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.worker.channel import SETTLE_S, Channel

REPOSITORY = Path(__file__).parents[2]
HOLD = Path(__file__).with_name("hold.py")
WORLD_SIZE = 2
FORKED = Path(__file__).with_name("forked_ranks.py")


class Ranks:
    """One start of an example: its processes and channels.

    Args:
        script: the example, relative to the repository.
        directory: run directory and place of the result; the same one resumes.
        limit_s: how long anything may take [s].
        imports: modules, with commas between, that one process loads for all ranks; "": each loads its own.
    """

    def __init__(self, script: str, directory: Path, limit_s: float, imports: str = "") -> None:
        self._script = REPOSITORY / script
        self._directory = directory
        self._sign = directory / "hold"  # as long as it exists, ranks wait at one step
        self._limit_s = limit_s
        self._imports = imports
        self._paths = RunPaths(directory)
        self._channels: list[Channel] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, held_at: int | None = None) -> Ranks:
        """Start all ranks from the newest checkpoint.

        Args:
            options: of the example.
            held_at: the step after which all ranks wait until they are killed or drained; None: they do not.
        """
        by: tuple[str, ...] = ()
        if held_at is not None:
            self._sign.touch()
            by = (str(HOLD), str(held_at), str(self._sign))
        out = self._directory / "result.json"
        argv = [*by, str(self._script), "--out", str(out), *options]
        places = self._places()
        if self._imports:
            self._run([str(FORKED), self._imports, json.dumps(places), *argv], {})
        else:
            for place in places:
                self._run(argv, place)
        return self

    def _places(self) -> list[dict[str, str]]:
        """Return what each rank finds in its environment."""
        port = _free_port()
        saved = checkpoints.to_env(checkpoints.latest(self._paths))
        self._channels += [
            Channel.create(str(self._directory / f"channel-{os.urandom(4).hex()}")) for _ in range(WORLD_SIZE)
        ]
        return [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                Env.RUN_DIR: str(self._directory),
                Env.ROUND: "1",
                Env.CHANNEL: channel.path,
                Env.CHECKPOINT: saved,
            }
            for rank, channel in enumerate(self._channels)
        ]

    def _run(self, argv: list[str], place: dict[str, str]) -> None:
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), **place}
        self._processes.append(subprocess.Popen([sys.executable, *argv], env=environ, start_new_session=True))

    def wait(self) -> list[int]:
        """Wait for all ranks to end and return their exit codes, of forked ones the highest."""
        codes = [process.wait(self._limit_s) for process in self._processes]
        self._forget()
        return codes

    def wait_for_step(self, step: int) -> None:
        """Wait until every rank has ticked a step."""
        self._wait_until(lambda: all((channel.last_step or 0) >= step for channel in self._channels))

    def kill(self) -> None:
        """Kill every rank that still runs."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(self._limit_s)
        self._forget()

    def drain(self) -> list[int | None]:
        """Ask all ranks to stop, wait for them to end, and return the steps they stopped at."""
        for channel in self._channels:
            channel.request_drain()
        time.sleep(SETTLE_S)
        stop = max(channel.stop_bound for channel in self._channels)
        for channel in self._channels:
            channel.stop_step = stop
        self._sign.unlink()
        for process in self._processes:
            process.wait(self._limit_s)
        return [channel.stopped_at for channel in self._channels]

    def result(self) -> bytes:
        """Return the result as it was written."""
        return (self._directory / "result.json").read_bytes()

    def saved_step(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        found = checkpoints.latest(self._paths)
        return found and found.step

    def _forget(self) -> None:
        for channel in self._channels:
            channel.unlink()
            channel.close()
        self._channels.clear()
        self._processes.clear()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._limit_s
        while not condition():
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            assert not ended, f"a rank ended before its time: {ended}"
            assert time.monotonic() < deadline, "condition did not come true"
            time.sleep(0.005)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
