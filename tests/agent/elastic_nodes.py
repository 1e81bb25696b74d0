"""Users' launchers on this machine, each playing a node, and what their workers tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hpc_elastic.testing.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0
TELL = (
    'echo "$RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $GROUP_RANK $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE'
    ' $LOCAL_RANK $LOCAL_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $$" >> "{told}"; '
)


class Told(NamedTuple):
    """What one worker has told of itself when it started."""

    rank: int
    world_size: int
    master: str
    group_rank: int
    role: str
    role_rank: int
    role_world_size: int
    local_rank: int
    local_world_size: int
    restarts: int
    pid: int


class Nodes:
    """Agents that meet in one place.

    Args:
        root: a directory for everything.
        kind: of the rendezvous handler: ``shared_fs`` or ``dynamic``.
    """

    def __init__(self, root: Path, kind: str = "shared_fs") -> None:
        self.root = root
        self._kind = kind
        self._told = root / "told"
        self._told.touch()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, then: str = "", **options: Any) -> subprocess.Popen[bytes]:
        """Start a node's agent, whose workers tell of themselves and then run a shell command."""
        values = {
            "place": str(self.root / "run"),
            "node": node,
            "result": str(self.root / f"{node}.result"),
            "command": TELL.format(told=self._told) + then,
            "kind": self._kind,
            **options,
        }
        program = str(Path(__file__).with_name("elastic_program.py"))
        with (self.root / f"{node}.log").open("wb") as log:
            self._agents[node] = subprocess.Popen(
                [sys.executable, program, json.dumps(values)],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LOGLEVEL": "INFO"},
                stderr=log,
            )
        return self._agents[node]

    def end(self) -> None:
        """End whatever still runs."""
        for agent in self._agents.values():
            agent.kill()
            agent.wait()

    def result(self, node: str) -> dict[str, Any]:
        """Wait for an agent's end and return what came of it; what it has logged is under ``log``."""
        self._agents[node].wait(LIMIT_S)
        log = self.log(node)
        file = self.root / f"{node}.result"
        assert file.exists(), log
        found: dict[str, Any] = json.loads(file.read_text())
        return found | {"log": log}

    def log(self, node: str) -> str:
        """Return what an agent has logged so far."""
        return (self.root / f"{node}.log").read_text()

    def told(self) -> list[Told]:
        """Return what workers have told, in the order in which they started."""
        found = []
        for line in self._told.read_text().splitlines():
            rank, size, master, group, role, *numbers = line.split()
            found.append(Told(int(rank), int(size), master, int(group), role, *map(int, numbers)))
        return found

    def wait_told(self, count: int) -> list[Told]:
        """Wait until so many workers have started; return them by rank of the newest."""
        wait_until(
            lambda: len(self.told()) >= count, f"{count} workers, not {self.told()}", timeout_s=LIMIT_S
        )
        return self.told()

    def kill_node(self, node: str) -> None:
        """Have a node vanish: SIGKILL to the agent, which takes its workers along."""
        self._agents[node].send_signal(signal.SIGKILL)


def gate(root: Path) -> str:
    """Return shell code that waits until `open_gate`."""
    return f"until [ -e {root}/gate ]; do sleep 0.05; done; "


def open_gate(root: Path) -> None:
    """Let workers behind the gate go on."""
    (root / "gate").touch()
