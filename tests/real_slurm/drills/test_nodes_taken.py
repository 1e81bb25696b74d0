"""A node that an administrator or the owner takes away has not failed, at whatever moment it goes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Decision, NodeTaken, RoundFormed
from hpc_elastic.store.node_ledger import place_for
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import flags
from tests.real_slurm.jobs import SLOW, Run, elastic, installed_for_users, nodes_of, plain, submit
from tests.real_slurm.test_array import wait_size

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

STEPS = 300


class Way(NamedTuple):
    """How a node is taken.

    Attributes:
        name: for people.
        commands: words of scontrol, with `{node}`, `{job}` and `{kept}` to fill in.
    """

    name: str
    commands: tuple[str, ...]


DOWN = Way("set down", ("update nodename={node} state=down reason=repair",))
SHRUNK = Way("the job shrunk to 2 nodes", ("update jobid={job} nodelist={kept}",))
DRAINED = Way(
    "drained, then set down",
    ("update nodename={node} state=drain reason=repair", "update nodename={node} state=down reason=repair"),
)
RESERVED = Way(
    "reserved, then set down",
    (
        "create reservation=upkeep user=root starttime=now duration=60 flags=maint,ignore_jobs nodes={node}",
        "update nodename={node} state=down reason=upkeep",
    ),
)
DRILLS = [
    *((DOWN, mode, pause_s) for mode in ("step", "array") for pause_s in (0.0, 0.7, 6.0)),
    *((SHRUNK, "step", pause_s) for pause_s in (0.0, 0.7, 6.0)),
    *((way, mode, 2.0) for way in (DRAINED, RESERVED) for mode in ("step", "array")),
]


@pytest.mark.parametrize(
    ("way", "mode", "pause_s"), DRILLS, ids=lambda value: str(getattr(value, "name", value))
)
def test_nothing_is_held_against_it(
    cluster: Cluster, tell: Tell, way: Way, mode: str, pause_s: float
) -> None:
    """The others go on, and the next submit does not leave the node out."""
    run = submit(cluster, flags(mode, "2:3", "--partition", "low"), plain(cluster, *SLOW, steps=STEPS))
    *kept, taken = nodes_of(wait_size(run, 3))
    SystemClock().sleep(pause_s)
    try:
        take(run, way, kept, taken)
        run.wait(lambda _: taken not in nodes_of(run.entries(RoundFormed)[-1]), "a round without it", 90)
        ending = run.wait_ending(150).ending
        run.wait_gone(120)
    finally:
        give_back(cluster, taken)
    assert ending is not None
    assert Decision.DONE is ending.decision, run.log()
    tell(mode, f"{way.name} {pause_s:g} s after the round was formed", judged(cluster, run, taken))


def take(run: Run, way: Way, kept: list[str], taken: str) -> None:
    """Have root take a node in a way; one that is set down may be up again at once, when it registers."""
    for command in way.commands:
        words = command.format(node=taken, job=run.job_id, kept=",".join(kept)).split()
        run.cluster.as_root("scontrol", *words)


def give_back(cluster: Cluster, node: str) -> None:
    """Undo what was done to a node."""
    cluster.as_root("scontrol", "delete", "reservation=upkeep")
    if "down" in cluster.node_state(node) or "drain" in cluster.node_state(node):
        cluster.as_root("scontrol", "update", f"nodename={node}", "state=resume")


def judged(cluster: Cluster, run: Run, taken: str) -> str:
    """Check that nothing was remembered of a node; return in words what was written of it."""
    ledger = Path(place_for(str(cluster.shared / "run")))
    assert [] == ([*ledger.iterdir()] if ledger.exists() else []), run.log()
    where = ("--run-dir", str(cluster.shared / "again"), "--allow-local-run-dir", "--cpus-per-task", "2")
    asked = elastic(cluster, "submit", "--dry-run", *where, *flags("step", "2"), "--", "true")
    assert 0 == asked.returncode, asked.stderr
    assert "left out" not in asked.stderr
    noted = [entry.reason for entry in run.entries(NodeTaken) if entry.node == taken]
    return f"{len(run.entries(RoundFormed))} rounds; {noted[0] if noted else 'it left by itself'}"
