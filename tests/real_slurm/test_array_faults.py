"""What goes wrong inside a run in array mode: hangs, unfit nodes, time limits, requests to stop."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Decision, NodeLeft, NodeUnfit, RoundEnded, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import (
    PYTHON,
    SLOW,
    Run,
    example,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)
from tests.real_slurm.test_array import ARRAY, QUICK, STEPS, task_on, wait_empty_queue, wait_size
from tests.real_slurm.test_hangs import HANGS_ONCE

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def decided(run: Run, timeout: float = 90) -> Decision:
    """Wait for the end of a run and its tasks, and return how it ended."""
    ending = run.wait_ending(timeout).ending
    assert ending is not None
    wait_empty_queue(run.cluster)
    return ending.decision


def test_a_hang_is_found_told_and_mended(cluster: Cluster, tmp_path: Path) -> None:
    """Tasks of an array dump their stacks at each other's request, and start again together."""
    words = example(cluster, "plain", "--step-time", "0.05")
    program = HANGS_ONCE.format(directory=str(Path(words[1]).parent))
    flags = (*ARRAY, "--nodes", "2", "--hang-timeout", "3s")
    run = submit(cluster, flags, [PYTHON, "-c", program, *words[2:]])
    assert Decision.DONE is decided(run)
    (ended,) = run.entries(RoundEnded)
    odd = nodes_of(run.entries(RoundFormed)[0])[1]
    assert (Cause.HANG, (odd,)) == (ended.cause, ended.nodes)
    assert f"rank 3 ({odd}): step 50, in load_batch" in ended.failure["message"]
    found = {file.stem for file in Path(run.paths.hang_logs(1, 1)).glob("rank*.txt")}
    assert {"rank0", "rank1", "rank2", "rank3"} == found
    assert uninterrupted(tmp_path) == run.result()


def test_an_unfit_task_goes_to_another_node(cluster: Cluster) -> None:
    """The others begin without it; it is requeued, does without the bad node, and joins them."""
    check = 'test "$(hostname)" != node2 || { echo "the link is slow"; false; }'
    flags = (*ARRAY, *QUICK, "--nodes", "2:3", "--exclusive", "--health-command", check)
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=20 * STEPS))
    assert "node2" not in nodes_of(wait_size(run, 3, 120))
    (unfit,) = run.entries(NodeUnfit)
    assert ("node2", True) == (unfit.node, "the link is slow" in unfit.reason)
    run.command("stop", str(run.directory))
    assert Decision.STOPPED is decided(run)


def test_a_task_at_its_limit_leaves_alone(cluster: Cluster) -> None:
    """The others go on and take it in again; then a file that somebody makes stops them all."""
    run = submit(cluster, (*ARRAY, *QUICK, "--nodes", "1:2"), plain(cluster, *SLOW, steps=20 * STEPS))
    node = nodes_of(wait_size(run, 2))[0]
    run.wait_checkpoint(20)
    soon = datetime.now() + timedelta(seconds=1)  # noqa: DTZ005 - slurmctld reads local time
    end = f"EndTime={soon.isoformat(timespec='seconds')}"
    cluster.as_root("scontrol", "update", f"jobid={run.job_id}_{task_on(run, node)}", end)
    cluster.wait_for(lambda: bool(run.entries(NodeLeft)), 90, "the task to leave")
    (left,) = run.entries(NodeLeft)
    assert (node, Cause.TIME_LIMIT) == (left.node, left.cause)
    run.wait(lambda state: state.rounds >= 3 and state.running is not None, "its return", 90)
    wait_size(run, 2)
    assert Cause.CRASH not in [entry.cause for entry in run.entries(RoundEnded)]
    cluster.run("alice", ["touch", str(run.directory / "drain")])
    assert Decision.STOPPED is decided(run)


def test_a_run_that_has_too_few_tasks_left_ends(cluster: Cluster) -> None:
    """The task that is left does not wait and come back for ever."""
    flags = (*ARRAY, *QUICK, "--nodes", "2", "--join-timeout", "3")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=20 * STEPS))
    node = nodes_of(wait_size(run, 2))[0]
    cluster.run("alice", ["scancel", f"{run.job_id}_{task_on(run, node)}"])
    assert Decision.FAILED is decided(run)
    ending = run.state().ending
    assert ending is not None
    assert "only 1 task is left, and the run needs 2 nodes" in ending.reason
