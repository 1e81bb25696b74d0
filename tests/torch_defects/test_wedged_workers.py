"""A worker hangs in the kernel: that is never a success, and its node has an exit code of its own.

Elsewhere the launcher gives its workers up and ends with 0, and the job counts as done.
"""

from __future__ import annotations

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Decision
from tests.node.agents import gone
from tests.node.stuck import STUCK
from tests.torch_defects.launches import MakeLaunches

WATCH = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "1"}


def test_a_wedged_worker_fails_its_node(make: MakeLaunches) -> None:
    """Told with rank and node, with a code that says that the node needs care; no worker runs on."""
    launches = make(STUCK)
    launches.start(0, "--max-restarts", "3", env=WATCH)
    output = launches.output(0)
    assert ExitCode.WEDGED == launches.code(0)
    assert "uninterruptible sleep (state D)" in output
    assert gone(launches.workers(1))
    ending = launches.state().ending
    assert ending is None or ending.decision is not Decision.DONE


def test_the_other_nodes_go_on_without_it(make: MakeLaunches) -> None:
    """Of two nodes the other forms a world of its own and ends well."""
    only_there = "if (os.environ['RANK'], os.environ['HPC_ELASTIC_ROUND']) == ('1', '1'):\n"
    body = "".join(f"    {line}\n" for line in STUCK.strip().splitlines())
    waits = "import time\nif os.environ['HPC_ELASTIC_ROUND'] == '1': time.sleep(600)\n"
    launches = make(only_there + body + waits)
    for node in (0, 1):
        launches.start(node, "--nnodes", "1:2", env=WATCH)
    assert ExitCode.WEDGED == launches.code(1)
    assert 0 == launches.code(0)
    assert 1 == len(launches.rounds()[-1].members)
