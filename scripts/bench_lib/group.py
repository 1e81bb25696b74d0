"""A group of agents that runs on this machine, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bench_lib.launchers import REPOSITORY, Launcher, Place, Shape

LIMIT_S = 60.0
POLL_S = 0.002


class GroupError(Exception):
    """A group did not do what a measure needs; the text says what it printed."""


class Stamp(NamedTuple):
    """The first line of one worker.

    Attributes:
        started_s: monotonic time of this machine [s].
    """

    started_s: float
    rank: int
    world_size: int
    pid: int


def environment(stamps: Path) -> dict[str, str]:
    """Return what every process sees: this environment without Slurm, and the repository."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files are what a user has
    environ.update(
        PYTHONPATH=str(REPOSITORY),
        OMP_NUM_THREADS="1",
        BENCH_STAMPS=str(stamps),
    )
    return environ


def job_environment(index: int, agents: int) -> dict[str, str]:
    """Return what Slurm adds for the agent on a node of a job."""
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": f"bench[0-{agents - 1}]",
        "SLURM_NNODES": str(agents),
        "SLURM_NODEID": str(index),
        "SLURMD_NODENAME": f"bench{index}",
    }


class Group:
    """Agents of one launcher on this machine; a context manager that leaves nothing behind.

    Args:
        launcher: how to start an agent.
        shape: what is started.
        wrap: words in front of each agent's command line.
    """

    def __init__(self, launcher: Launcher, shape: Shape, wrap: tuple[str, ...] = ()) -> None:
        self._launcher = launcher
        self._wrap = wrap
        self._root = Path(tempfile.mkdtemp(prefix="bench-"))
        self._stamps = self._root / "stamps"
        self._stamps.mkdir()
        self.shape = shape
        self._place = Place(free_port(), self._root / "run")
        self.agents: list[subprocess.Popen[bytes]] = []
        self.started_s = 0.0

    def __enter__(self) -> Group:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.started_s = time.monotonic()
        for index in range(self.shape.agents):
            self.start_agent(index)
        return self

    @property
    def folder(self) -> Path:
        """The directory in which the agents and their workers run."""
        return self._root

    def start_agent(self, index: int) -> None:
        """Start one agent."""
        argv = [*self._wrap, *self._launcher.argv(self.shape, self._place, index)]
        environ = environment(self._stamps)
        if self.shape.in_job:
            environ.update(job_environment(index, self.shape.agents))
        with (self._root / f"agent{index}.log").open("ab") as log:
            self.agents.append(
                subprocess.Popen(
                    argv, cwd=self._root, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents:
            agent.kill()
        for agent in self.agents:
            agent.wait()
        for stamp in self.stamps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(stamp.pid, signal.SIGKILL)
        shutil.rmtree(self._root, ignore_errors=True)

    def stamps(self, after_s: float = 0.0) -> list[Stamp]:
        """Return the workers that started after a moment (monotonic [s]), in order."""
        found = []
        for name in os.listdir(self._stamps):
            if name.endswith(".cpu"):  # is being written
                continue
            started, rank, world_size, pid = name.split("+")
            if float(started) > after_s:
                found.append(Stamp(float(started), int(rank), int(world_size), int(pid)))
        return sorted(found)

    def noted(self, stamp: Stamp) -> str:
        """Return the text that a worker has left in its stamp."""
        name = f"{stamp.started_s:.6f}+{stamp.rank}+{stamp.world_size}+{stamp.pid}"
        return (self._stamps / name).read_text(encoding="ascii")

    def wait_for_workers(
        self, after_s: float = 0.0, agents: int = 0, limit_s: float = LIMIT_S
    ) -> list[Stamp]:
        """Wait until a whole world has started after a moment and return its workers.

        Args:
            after_s: monotonic time [s].
            agents: how many agents the world has; as many as were meant to be if 0.
            limit_s: how long at most [s].
        """
        world = (agents or self.shape.agents) * self.shape.workers

        def found() -> list[Stamp]:
            return [stamp for stamp in self.stamps(after_s) if stamp.world_size == world]

        self._wait(lambda: len(found()) >= world, f"{world} workers to start", limit_s)
        return found()

    def wait_for_end(self, limit_s: float = LIMIT_S) -> float:
        """Wait until all agents have ended, for so long at most [s]; return the monotonic time [s]."""
        agents = self.agents
        self._wait(
            lambda: all(one.poll() is not None for one in agents), "all agents to end", limit_s, ends=True
        )
        return time.monotonic()

    def lose_agent(self, index: int) -> float:
        """Kill an agent and its workers, as if its node were gone; return the monotonic time [s]."""
        agent = self.agents.pop(index)
        workers = [
            int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        ]
        lost_s = time.monotonic()
        for pid in (agent.pid, *workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        return lost_s

    def _wait(self, condition: Callable[[], bool], what: str, limit_s: float, *, ends: bool = False) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            ended = [agent.returncode for agent in self.agents if agent.poll() is not None]
            if ended and not ends:
                raise GroupError(f"waited for {what}, but agents ended with {ended}:\n{self._printed()}")
            if time.monotonic() > deadline_s:
                raise GroupError(f"waited {limit_s:g} s for {what}:\n{self._printed()}")
            time.sleep(POLL_S)

    def _printed(self) -> str:
        logs = sorted(self._root.glob("agent*.log"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)


def is_alive(pid: int) -> bool:
    """Say whether a process runs (a zombie does not)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
