"""Several agents of one run on one host, as people start them to try things out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.meet.membership import claim_node_name
from tests.node.agents import Agents, wait_for

WAIT = """
import time
while not os.path.exists(os.path.join(place, "end")):
    time.sleep(0.01)
"""


class Unnamed(Agents):
    """Agents that nobody has told which node they are."""

    def begin(self, number: int, *, last_call: float = 30) -> None:
        """Start another one, with the same line but for how long it waits for more nodes [s]."""
        self._run(
            number,
            [
                *(sys.executable, "-m", "hpc_elastic", "run", "--run-dir", self.paths.root),
                *("--nnodes", "1:2", "--nproc-per-node", "1", "--last-call-timeout", str(last_call)),
                *("--local-addr", "127.0.0.1", "--heartbeat-interval", "0.2", str(self._script)),
            ],
            None,
        )


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Unnamed]:
    """Agents whose workers run until they are let go."""
    made = Unnamed(tmp_path / "run", WAIT)
    yield made
    made.end()


def test_the_same_line_twice_makes_one_world(agents: Unnamed) -> None:
    """The second agent is another node, which drives nobody out."""
    agents.begin(0, last_call=0.1)
    wait_for(lambda: os.path.isdir(agents.paths.journal) and len(agents.rounds()) == 1, "round 1")
    wait_for(lambda: len(agents.workers(1)) == 1, "its worker")
    agents.begin(1)
    wait_for(lambda: len(agents.rounds()) > 1 and len(agents.workers(len(agents.rounds()))) == 2, "two nodes")
    host = os.uname().nodename
    assert {host, f"{host}-2"} == {member.node for member in agents.rounds()[-1].members}
    assert len(agents.rounds()) <= 3  # 2 where both are fast enough
    Path(agents.paths.logs, "end").touch()
    assert [0, 0] == [agents.code(0), agents.code(1)]


def test_a_name_is_free_again(tmp_path: Path) -> None:
    """Whoever has a name keeps it until it is closed; other runs do not matter."""
    taken = [claim_node_name("n", str(tmp_path)) for _ in range(3)]
    elsewhere = claim_node_name("n", str(tmp_path / "other"))
    os.close(taken[1][1])
    again = claim_node_name("n", str(tmp_path))
    for _, claim in (taken[0], taken[2], again, elsewhere):
        os.close(claim)
    assert ["n", "n-2", "n-3", "n", "n-2"] == [name for name, _ in (*taken, elsewhere, again)]
