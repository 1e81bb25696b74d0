"""What srun has said of agents that never came."""

from __future__ import annotations

from hpc_elastic.report.log_files import srun_said

LOG = """srun: error: node[3-4]: tasks 2-3: Killed
srun: error: node1: task 0: Exited with exit code 75
"""


def test_agents_that_ended_are_named() -> None:
    """Those that are waited for; a line that names nobody is passed over."""
    said = "srun says that agents have ended before they came: node3: Killed"
    assert said == srun_said(f"{LOG}srun: error: node[: task 1: Killed\n", {"node2", "node3"})
    assert "" == srun_said(LOG, {"node2"})


def test_what_was_said_in_an_earlier_start_does_not_count() -> None:
    """The log goes on over requeues."""
    assert "" == srun_said(f"{LOG}[03:12:07] hpc_elastic finish: too few nodes came: requeue 1\n", {"node3"})
