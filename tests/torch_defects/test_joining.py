"""A node joins, or takes the place of a lost one: one world, one master, whatever the names' order.

Elsewhere the first node never learns of the new master, or half the workers learn of another one:
the launchers die after a minute, or the ranks of one world wait for each other at two addresses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.node.agents import SLEEP, gone, wait_for
from tests.torch_defects.launches import MEET, MakeLaunches

both_orders = pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)], ids=["after", "before"])


def places(workers: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return what workers think of the world's size and master."""
    return {(worker["WORLD_SIZE"], worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in workers}


@both_orders
def test_joining_makes_one_world(make: MakeLaunches, first: int, second: int) -> None:
    """All workers of both nodes know the same size and master, and meet there; earlier logs stay."""
    launches = make(f"print('here', flush=True)\n{MEET}{SLEEP}")
    flags = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.1", "--redirects", "3")
    launches.start(first, *flags)
    alone = launches.wait_world(1)
    launches.files(".met", 1)
    launches.start(second, *flags)
    together = launches.wait_world(2)
    ((size, _, _),) = places(together)
    assert "2" == size
    launches.files(".met", 3)
    assert gone(alone)
    kept = Path(launches.paths.logs, "attempt_1", "0", "stdout.log")
    assert "here\n" == kept.read_text()


@both_orders
def test_a_replaced_node_is_in_one_world_with_the_rest(make: MakeLaunches, first: int, second: int) -> None:
    """A node is lost and started again under its name: a new world of two, at one master."""
    launches = make(MEET + SLEEP)
    for node in (first, second):
        launches.start(node, "--nnodes", "2")
    before = launches.wait_world(2)
    launches.files(".met", 2)
    launches._agents[second].kill()
    launches._agents[second].communicate()
    launches.start(second, "--nnodes", "2")
    after = launches.wait_world(2, after=int(before[0]["HPC_ELASTIC_ROUND"]))
    assert 1 == len(places(after))
    launches.files(".met", 4)
    wait_for(lambda: gone(before), "the first world to end")


def test_whoever_joins_has_the_restart_count_of_all(make: MakeLaunches) -> None:
    """A node that joins after a restart counts like the others; elsewhere each counts for itself."""
    launches = make(f"if os.environ['HPC_ELASTIC_ROUND'] == '1': sys.exit(1)\n{SLEEP}")
    flags = ("--nnodes", "1:2", "--max-restarts", "3", "--rdzv-conf", "last_call_timeout=0.1")
    launches.start(0, *flags)
    launches.wait_workers(2, 1)
    launches.start(1, *flags)
    counts = [worker["TORCHELASTIC_RESTART_COUNT"] for worker in launches.wait_world(2)]
    assert ["1", "1"] == counts


def test_ranks_follow_numbers_in_names(make: MakeLaunches) -> None:
    """Node 2 comes before node 10, whoever is there first; texts would be ordered the other way."""
    launches = make(SLEEP)
    for node in (10, 2):
        launches.start(node, "--nnodes", "2")
    launches.wait_world(2)
    members = launches.rounds()[-1].members
    assert ["2", "10"] == [member.node.partition("-")[0] for member in members]


def test_two_runs_on_one_machine_stay_apart(make: MakeLaunches) -> None:
    """Two runs that start together below one directory have a world and a master each."""
    both = [make(MEET), make(MEET)]
    for launches in both:
        for node in (0, 1):
            launches.start(node, "--nnodes", "2")
    assert [0] * 4 == [launches.code(node) for launches in both for node in (0, 1)]
    ports = {worker["MASTER_PORT"] for launches in both for worker in launches.wait_world(2)}
    assert 2 == len(ports)
