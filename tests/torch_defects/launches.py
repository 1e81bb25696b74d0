"""Launchers as people start torchrun, several on this machine, each standing for a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.node.agents import QUICK, Agents, wait_for

MEET = """
import socket
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
others = int(os.environ["WORLD_SIZE"]) - 1
if os.environ["RANK"] == "0":
    server = socket.create_server(address)
    met = [server.accept()[0] for _ in range(others)]
else:
    while True:
        try:
            met = [socket.create_connection(address)]
            break
        except ConnectionRefusedError:
            pass
open(file + ".met", "w").close()
"""
"""Workers of one world meet at its master, as a process group does."""


class Launches(Agents):
    """Launchers of one run with torchrun's own command line; see `Agents`."""

    def start(
        self, node: int, *flags: str, env: Mapping[str, str] | None = None, args: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start the launcher of a node, by default with one worker."""
        place, run_id = os.path.split(self.paths.root)
        argv = [
            *(sys.executable, "-m", "hpc_elastic.run", "--rdzv-backend", "shared_fs"),
            *("--rdzv-endpoint", place, "--rdzv-id", run_id, "--local-addr", "127.0.0.1"),
            *("--node-rank", str(node), "--nproc-per-node", "1", *QUICK, *flags, str(self._script), *args),
        ]
        return self._run(node, argv, env)

    def end(self) -> None:
        """End whatever still runs; a worker that does not end keeps nobody waiting."""
        for agent in self._agents.values():
            agent.kill()
            try:
                agent.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                if agent.stdout is not None:
                    agent.stdout.close()

    def wait_world(self, size: int, *, after: int = 0) -> list[dict[str, Any]]:
        """Wait for a world of this size and return its workers, whose round has the newest number.

        A busy machine may take a healthy node for lost, which only costs a round.

        Args:
            size: workers in it.
            after: the round comes after this one.
        """
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            newest = len(self.rounds()) if os.path.isdir(self.paths.journal) else 0
            found[:] = self.workers(newest) if newest > after else []
            return {str(size)} == {worker["WORLD_SIZE"] for worker in found} and size == len(found)

        wait_for(is_there, f"a world of {size} after round {after}")
        return found

    def files(self, suffix: str, count: int) -> list[Path]:
        """Return the files with this ending that workers have left, once there are so many."""

        def found() -> list[Path]:
            return sorted(Path(self.paths.logs).glob(f"worker.*{suffix}"))

        wait_for(lambda: len(found()) >= count, f"{count} files *{suffix}")
        return found()

    def told(self, suffix: str, count: int) -> list[dict[str, int]]:
        """Return what workers have written with `tell`, by the names of their files."""
        return [json.loads(path.read_text()) for path in self.files(suffix, count)]


MakeLaunches = Callable[[str], Launches]

TELL = """
def tell(suffix, **facts):
    open(file + ".part", "w").write(json.dumps(facts))
    os.rename(file + ".part", file + suffix)
"""
"""Lets a worker write numbers that `Launches.told` reads."""

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(file + ".deaf", "w").close()
time.sleep(600)
"""
"""A worker that SIGTERM does not end."""


def wait_all(suffix: str, count: int) -> str:
    """Return what a worker does to wait for so many files of the run's workers."""
    return (
        "import time\n"
        f"while sum(name.endswith({suffix!r}) for name in os.listdir(place)) < {count}: time.sleep(0.01)\n"
    )
