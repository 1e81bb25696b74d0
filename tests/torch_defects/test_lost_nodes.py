"""A node is lost: within its lease the others form a new world; no node is special.

Elsewhere nobody notices (the others' workers wait in a collective until it times out), and when the
node that hosts the store is lost the other launchers end with it.
"""

from __future__ import annotations

import os
import signal

import pytest

from hpc_elastic.record.journal import Cause, RoundEnded
from tests.node.agents import SLEEP, gone, wait_for
from tests.torch_defects.launches import MEET, MakeLaunches, wait_all

ENDS_LATER = "if os.environ['HPC_ELASTIC_ROUND'] == '1':\n    import time\n    time.sleep(600)\n"

FAILS_WITH_A_PEER = f"""
{MEET}
import select
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    select.select(met, [], [])
    sys.exit(1)
"""


@pytest.mark.parametrize("lost", [0, 1], ids=["first", "second"])
def test_the_rest_goes_on_to_the_end(make: MakeLaunches, lost: int) -> None:
    """SIGKILL of a launcher and its worker, the first node's too: the other goes on alone and succeeds."""
    launches = make(ENDS_LATER)
    for node in (0, 1):
        launches.start(node, "--nnodes", "1:2", "--max-restarts", "0")
    workers = launches.wait_world(2)
    launches._agents[lost].kill()
    os.kill(workers[lost]["pid"], signal.SIGKILL)
    assert 0 == launches.code(1 - lost)
    assert 1 == len(launches.rounds()[-1].members)
    assert {Cause.NODE_LOSS} == {entry.cause for entry in launches.entries(RoundEnded)}
    assert gone(workers)


def test_failures_that_a_lost_node_causes_spend_no_restart(make: MakeLaunches) -> None:
    """The others fail before the lease is over: though no restart is left they go on, and soon."""
    launches = make(FAILS_WITH_A_PEER)
    for node in (0, 1, 2):
        launches.start(node, "--nnodes", "2:3", "--max-restarts", "0")
    workers = launches.wait_world(3)
    launches.files(".met", 3)
    launches._agents[2].kill()
    os.kill(workers[2]["pid"], signal.SIGKILL)
    assert [0, 0] == [launches.code(0), launches.code(1)]
    assert 2 == len(launches.rounds()[-1].members)


def test_a_lost_spare_disturbs_nobody(make: MakeLaunches) -> None:
    """A node that only stands by is lost: the world of the others is the one it was."""
    launches = make(wait_all(".go", 1))
    started = [launches.start(0, "--nnodes", "1")]
    launches.wait_workers(1, 1)
    started.append(launches.start(1, "--nnodes", "1"))
    wait_for(lambda: len(os.listdir(launches.paths.members)) > 1, "the spare to stand by")
    started[1].kill()
    wait_for(lambda: started[1].poll() is not None, "its end")
    (file,) = launches.files(".0", 1)
    file.with_suffix(".go").touch()
    assert 0 == launches.code(0)
    assert 1 == len(launches.rounds())


def test_leaving_first_ends_nothing_for_the_others(make: MakeLaunches) -> None:
    """The first node's workers succeed long before the others': all launchers end well."""
    launches = make(f"if os.environ['RANK'] == '1':\n    {SLEEP.replace('600', '0.5')}\n")
    for node in (0, 1):
        launches.start(node, "--nnodes", "2")
    assert [0, 0] == [launches.code(0), launches.code(1)]
    assert 1 == len(launches.rounds())
