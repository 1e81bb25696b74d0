"""Real agents, one per client, that meet on the shared file system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_elastic.record import journal
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.testing.waiting import wait_until
from tests.shared_fs.clients import Client, RemoteStore
from tests.shared_fs.file_system import REPOSITORY, FileSystem

LIMIT_S = 300.0

WORKER = """\
touch "$1/started.$HPC_ELASTIC_ROUND.$RANK.of.$WORLD_SIZE"
while [ ! -e "$1/finish" ]; do sleep 0.2; done
"""
"""A worker tells in a directory of the machine that it runs, and ends when it finds a file there."""


class AgentsOnClients:
    """Agents that meet in one run directory on the shared file system.

    Args:
        system: the file system.
        root: the run directory; the agents make it.
        place: directory of this machine for what workers tell and agents print.
    """

    def __init__(self, system: FileSystem, root: Path, place: Path) -> None:
        self._system = system
        self._root = root
        self._place = place
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        place.mkdir()
        (place / "worker.sh").write_text(WORKER)

    def start(self, client: int, *flags: str) -> None:
        """Start the agent of a client, with one worker."""
        program = [
            *("env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "hpc_elastic", "run"),
            *("--run-dir", str(self._root), "--node-rank", str(client), "--nproc-per-node", "1"),
            *(*flags, "--no-python", "sh", str(self._place / "worker.sh"), str(self._place)),
        ]
        with (self._place / f"agent.{client}").open("wb") as output:
            self._agents[client] = subprocess.Popen(
                self._system.argv(client, program),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self) -> None:
        """Let all workers end well."""
        (self._place / "finish").touch()

    def code(self, client: int) -> int:
        """Wait for the end of an agent and return its exit code."""
        return self._agents[client].wait(LIMIT_S)

    def end(self) -> None:
        """End whatever still runs."""
        for agent in self._agents.values():
            agent.kill()
            agent.wait()

    def workers(self, number: int) -> list[str]:
        """Return the workers of a round that have started, as `<rank>.of.<size>`."""
        names = [path.name for path in self._place.glob(f"started.{number}.*")]
        return sorted(name.removeprefix(f"started.{number}.") for name in names)

    def wait_workers(self, number: int, count: int) -> None:
        """Wait until all workers of a round run."""
        expected = [f"{rank}.of.{count}" for rank in range(count)]
        self._wait(lambda: expected == self.workers(number), f"{count} workers of round {number}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, timeout_s=LIMIT_S, interval_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        """Return what the agents have printed."""
        outputs = sorted(self._place.glob("agent.*"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')}" for path in outputs)

    def entries(self, reader: Client, kind: type) -> list[Any]:
        """Return the journal's entries of one kind, as a client reads them."""
        records = RemoteStore(reader, str(self._root)).read_after("journal", 0)
        entries = [journal.parse(number, data).entry for number, data in records]
        return [entry for entry in entries if isinstance(entry, kind)]

    def rounds(self, reader: Client) -> list[tuple[int, list[str]]]:
        """Return number and nodes of all rounds, as a client reads them."""
        formed: list[RoundFormed] = self.entries(reader, RoundFormed)
        return [(entry.number, sorted(member.node for member in entry.members)) for entry in formed]
