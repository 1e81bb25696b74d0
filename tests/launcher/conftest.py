"""Launching processes, each playing a node; what a test leaves running is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.agents import wait_for

LIMIT_S = 120.0
PROGRAM = Path(__file__).with_name("play_node.py")
REPOSITORY = PROGRAM.parents[2]


class Nodes:
    """Launches that meet in one run directory.

    Args:
        root: the run directory.
        nodes: the least and the most of them.
        more: further fields of the configuration.
    """

    def __init__(self, root: Path, nodes: str, more: dict[str, Any]) -> None:
        self.root = root
        self._nodes = nodes
        self._more = more
        self._launches: dict[str, subprocess.Popen[str]] = {}

    def start(self, node: str, function: str, *args: object, env: dict[str, str] | None = None) -> None:
        """Launch a function of `jobs` as a node."""
        paths = {"PYTHONPATH": str(REPOSITORY), "MORE": json.dumps(self._more)}
        self._launches[node] = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.root), node, self._nodes, function, *map(str, args)],
            env={**os.environ, **paths, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, node: str, number: int) -> None:
        """Send a signal to a launching process."""
        self._launches[node].send_signal(number)

    def came_of_it(self, node: str) -> dict[str, Any]:
        """Wait for the end of a launch and return what came of it."""
        out, err = self._launches[node].communicate(timeout=LIMIT_S)
        lines = out.strip().splitlines()
        assert lines, err
        return dict(json.loads(lines[-1]))

    def end(self) -> None:
        """End whatever still runs."""
        for launch in self._launches.values():
            if launch.poll() is None:
                launch.send_signal(signal.SIGKILL)
            launch.communicate()


MakeNodes = Callable[..., Nodes]


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[MakeNodes]:
    """Give a maker of launches that meet; all are ended afterwards."""
    made: list[Nodes] = []

    def make(nodes: str = "2:2", **more: Any) -> Nodes:
        made.append(Nodes(tmp_path / f"run{len(made)}", nodes, more))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()


__all__ = ["MakeNodes", "Nodes", "make_nodes", "wait_for"]
