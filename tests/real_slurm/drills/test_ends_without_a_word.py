"""Ends of starts that no process can write down, and second jobs of a script, at other moments of a start."""

from __future__ import annotations

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Budget, Cause, Decision, EpochStarted, Requeued, RoundFormed
from hpc_elastic.slurm.client import parse
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.jobs import SLOW, USER, Run, installed_for_users, plain, submit
from tests.real_slurm.unwritten import LOST_OFTEN, ONE

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

MOMENTS = ("as its script runs", "as its first round is formed", "after a save")


def wait_for_moment(cluster: Cluster, run: Run, moment: str, start: int = 0) -> None:
    """Wait until a start of a run is there."""
    if moment == MOMENTS[0]:
        cluster.wait_for(lambda: run.job().get("Restarts") == str(start), 90, "the start")
        cluster.wait_state(run.job_id, "RUNNING")
        SystemClock().sleep(0.3)
    elif moment == MOMENTS[1]:
        run.wait_round(start + 1)
    else:
        run.wait_checkpoint(20 * (start + 1), 90)


def lose_twice(cluster: Cluster, run: Run, moment: str) -> None:
    """Power the node of a run off in two starts."""
    for start in range(2):
        wait_for_moment(cluster, run, moment, start)
        nodes = parse.expand(run.job()["NodeList"])
        for node in nodes:
            cluster.crash(node)
        after = str(start + 1)
        cluster.wait_for(lambda n=after: run.job().get("Restarts") == n, 90, "Slurm to notice")  # type: ignore[misc]
        for node in nodes:
            cluster.boot(node)


def test_a_node_that_is_lost_before_its_agents_come_is_not_known(cluster: Cluster, tell: Tell) -> None:
    """Without accounting nothing tells which node it was, nor that it was lost; the starts are counted."""
    run = submit(cluster, (*ONE, *LOST_OFTEN), plain(cluster, *SLOW, steps=300))
    lose_twice(cluster, run, MOMENTS[0])
    ended = run.wait_ending(150)
    assert ended.ending is not None
    assert Decision.DONE is ended.ending.decision
    assert 2 == ended.requeues
    assert {Cause.NODE_LOSS, Cause.UNKNOWN} >= {entry.cause for entry in run.entries(Requeued)}
    tell("step", f"lost {MOMENTS[0]}", f"{[entry.cause.value for entry in run.entries(Requeued)]}, done")


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_a_node_that_is_lost_again_and_again_spends_its_budget(
    cluster: Cluster, tell: Tell, moment: str
) -> None:
    """After two losses the run is held, though no process of the starts was left."""
    run = submit(cluster, (*ONE, *LOST_OFTEN), plain(cluster, *SLOW, steps=4000))
    lose_twice(cluster, run, moment)
    ending = run.wait_ending(120).ending
    assert ending is not None
    assert (Decision.HELD, Budget.NODE_LOSSES) == (ending.decision, ending.budget)
    assert [Cause.NODE_LOSS] * 2 == [entry.cause for entry in run.entries(Requeued)]
    cluster.wait_for(lambda: run.job()["Priority"] == "0", 60, "the job to be held")
    tell("step", f"lost {moment}", f"{len(run.entries(RoundFormed))} rounds, then held")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_second_job_changes_nothing(cluster: Cluster, tell: Tell, moment: str) -> None:
    """Whichever agents come first, one job has the run, and it is done."""
    run = submit(cluster, ONE, plain(cluster, *SLOW, steps=300))
    wait_for_moment(cluster, run, moment)
    done = cluster.run(USER, ["sbatch", "--parsable", str(run.directory / "job.sbatch")])
    assert done.returncode == 0, done.stderr
    ending = run.wait_ending(150).ending
    assert ending is not None
    assert Decision.DONE is ending.decision
    owners = {entry.job_id for entry in run.entries(EpochStarted)}
    assert 1 == len(owners)
    assert [] == run.entries(Requeued)
    assert 1 == len(run.entries(RoundFormed))
    whose = "the first" if owners == {run.job_id} else "the second"
    tell("step", f"second job {moment}", f"{whose} job has the run")


@pytest.mark.parametrize("moment", MOMENTS[1:])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_killed_script_is_handed_back(cluster: Cluster, tell: Tell, moment: str, nodes: str) -> None:
    """By an agent, once, and the run is done."""
    run = submit(cluster, (*ONE, "--nodes", nodes), plain(cluster, *SLOW, steps=300))
    wait_for_moment(cluster, run, moment)
    host = parse.expand(run.job()["NodeList"])[0]
    cluster.execute(host, "pkill", "-KILL", "-f", f"job{int(run.job_id):05d}/slurm_script")
    run.wait(lambda state: state.requeues == 1, "the requeue", 120)
    ending = run.wait_ending(150).ending
    assert ending is not None
    assert Decision.DONE is ending.decision
    assert [Cause.LAUNCH_FAILURE] == [entry.cause for entry in run.entries(Requeued)]
    tell("step", f"script killed {moment}, {nodes} nodes", "one requeue, done")
