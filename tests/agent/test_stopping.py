"""What a node says that waits for the workers of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.agent.parts import AgentTimes
from hpc_elastic.agent.stopping import Stopping
from tests.rendezvous.build import formed


def stopping(me: str, working: list[str], said: list[str]) -> Stopping:
    """Return that of a node in a round of three, whose own workers have ended."""
    run = SimpleNamespace(
        state=SimpleNamespace(round=formed(1)),
        membership=SimpleNamespace(node_id=f"{me}.1"),
        working_members=lambda _formed: [f"{node}.1" for node in working],
    )
    parts: Any = SimpleNamespace(
        rendezvous=SimpleNamespace(run=run),
        log=SimpleNamespace(say=said.append),
        times=AgentTimes(exit_barrier=300.0),
    )
    others: Any = None
    return Stopping(parts, others, others, others)


def test_whoever_waits_names_whom_for() -> None:
    """After 10 s, then every 30 s, and anew in the next round; not for a wait of a moment."""
    said: list[str] = []
    mine = stopping("n1", ["n2", "n3"], said)
    for now in (100.0, 109.0, 110.0, 139.0, 141.0):
        mine.tell_wait(100.0, now)
    assert [
        "all workers here have ended; waiting for those of n2, n3, 10 s so far, for at most 290 s more",
        "all workers here have ended; waiting for those of n2, n3, 41 s so far, for at most 259 s more",
    ] == said
    mine.tell_wait(150.0, 155.0)
    mine.tell_wait(150.0, 160.0)
    assert 3 == len(said)


@pytest.mark.parametrize(
    ("me", "working"), [("n2", ["n3"]), ("n1", [])], ids=["another speaks", "nobody is waited for"]
)
def test_one_node_speaks_for_all(me: str, working: list[str]) -> None:
    """The first of those that wait."""
    said: list[str] = []
    stopping(me, working, said).tell_wait(100.0, 200.0)
    assert [] == said
