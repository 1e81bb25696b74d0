"""``hpc-elastic drill`` as an ordinary user on a real Slurm."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Decision,
    DrillBegan,
    DrillCalledOff,
    NodeLeft,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.drill.drill import CAUSES, Drill
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, THREE, Run, elastic, installed_for_users, nodes_of, plain, submit
from tests.real_slurm.test_array import QUICK, wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

# GraceTime 8 s and KillWait 5 s, of which the agents keep a quarter
IN_TIME = re.compile(r"a preemption leaves 11\.75 s to save \(.+\); saved after \d\.\d s: in time")
# in an array another task may save, which takes longer than the end of the workers that are struck
IN_TIME_OF_TASK = re.compile(IN_TIME.pattern.replace("saved", "(?:saved|stopped)"))


def drill(run: Run, *words: str) -> str:
    """Drill a run, which must come back; return the report."""
    done = elastic(run.cluster, "drill", str(run.directory), *words, "--yes")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{run.journal()}"
    assert "the run came back" in done.stdout
    return done.stdout


UNSAVED = """
import os, sys, time
from hpc_elastic import worker
step = 0
while step < 100_000:
    time.sleep(0.05)
    step += 1
    worker.tick(step)
    open(f"{sys.argv[2]}.{os.environ['RANK']}", "w").close()
    if worker.should_stop():
        sys.exit(7 if os.environ["RANK"] == sys.argv[1] else 0)
"""


@pytest.mark.parametrize("who", ["3", "nobody"])
def test_a_drill_in_which_nothing_was_saved_fails(cluster: Cluster, who: str) -> None:
    """A worker fails instead of saving, or all stop and mark nothing: the run comes back with nothing."""
    script = cluster.shared / "unsaved.py"
    script.write_text(UNSAVED)
    run = submit(
        cluster,
        ("--nodes", "2", "--gpus-per-node", "2", "--partition", "low"),
        (PYTHON, str(script), who, "{run}/ticks"),
    )
    cluster.wait_for(lambda: len([*run.directory.glob("ticks.*")]) == 4, 40, "all ranks to tick")
    done = elastic(cluster, "drill", str(run.directory), "--preempt", "--yes")
    assert done.returncode == 1, done.stdout
    failed = "; but a worker failed instead of saving: rank 3 on node2: exit code 7"
    but = failed if who == "3" else r"; but no checkpoint of step \d+, at which all stopped, was marked"
    assert re.search(f"the run came back.*{but}", done.stdout), done.stdout
    told = elastic(cluster, "timeline", str(run.directory)).stdout
    assert re.search(r"drained .*no checkpoint of step \d+ was marked \(none is\)", told)
    assert ("rank 3 on node2: exit code 7" in told) == (who == "3")


@pytest.mark.parametrize("who", ["3", "nobody"])
def test_a_drill_of_an_array_in_which_nothing_was_saved_fails(cluster: Cluster, who: str) -> None:
    """One task leaves, and the others begin anew without what was to be saved."""
    script = cluster.shared / "unsaved.py"
    script.write_text(UNSAVED)
    flags = ("--mode", "array", *QUICK, "--nodes", "1:2", "--gpus-per-node", "2", "--partition", "low")
    run = submit(cluster, flags, (PYTHON, str(script), who, "{run}/ticks"))
    wait_size(run, 2)
    wait_ticks(run, 4)
    done = elastic(cluster, "drill", str(run.directory), "--preempt", "--yes")
    assert done.returncode == 1, done.stdout
    assert re.search(r"the run came back.*; but no checkpoint of step \d+, at which all", done.stdout)
    failed = re.search("a worker failed .*; rank 3, exit code 7", done.stdout)
    assert bool(failed) == (who == "3"), done.stdout
    assert "; nothing was saved" in elastic(cluster, "timeline", str(run.directory)).stdout
    assert (
        "the round that had to stop last has saved nothing"
        in run.command("status", str(run.directory)).stdout
    )


def test_a_run_that_never_saves_is_held(cluster: Cluster) -> None:
    """Three starts in a row begin at the same step: each says so, and the third one holds the job."""
    script = cluster.shared / "unsaved.py"
    script.write_text(UNSAVED)
    flags = ("--nodes", "2", "--gpus-per-node", "2", "--partition", "low")
    run = submit(cluster, flags, (PYTHON, str(script), "nobody", "{run}/ticks"))
    for number in range(1, 4):
        run.wait_round(number)
        cluster.wait_for(lambda: len([*run.directory.glob("ticks.*")]) == 4, 40, "all ranks to tick")
        for tick in run.directory.glob("ticks.*"):
            tick.unlink()
        cluster.wait_for(lambda: len([*run.directory.glob("ticks.*")]) == 4, 40, "all ranks to tick again")
        cluster.as_root("scancel", "--signal=TERM", run.job_id)
        run.wait(lambda state: state.drained is not None, "the drain", 30)
    run.wait(lambda state: state.ending is not None, "the hold", 40)
    cluster.wait_for(lambda: "held" in run.job().get("Reason", "").lower(), 40, "the job to be held")
    assert [line for line in run.log().splitlines() if "the last start has saved nothing" in line], run.log()
    assert "the last 2 starts in a row have saved nothing" in run.log()
    assert "the run is held: 3 starts in a row saved nothing (max_starts_without_save = 3)" in run.log()
    status = elastic(cluster, "status", str(run.directory)).stdout
    assert "held: 3 starts in a row saved nothing" in status
    told = elastic(cluster, "timeline", str(run.directory)).stdout
    assert "nothing newer was saved in the last 2 starts" in told
    cluster.as_root("scancel", run.job_id)


def test_an_array_that_never_saves_is_held(cluster: Cluster) -> None:
    """Its start outlasts what happens to its tasks: each stop says so, and the third one holds them all."""
    script = cluster.shared / "unsaved.py"
    script.write_text(UNSAVED)
    flags = ("--mode", "array", *QUICK, "--nodes", "1:2", "--gpus-per-node", "1", "--partition", "low")
    run = submit(cluster, flags, (PYTHON, str(script), "nobody", "{run}/ticks"))
    wait_size(run, 2)
    state = run.state()
    while state.ending is None:
        assert state.progress.stops <= 3
        size = 0 if state.running is None else len(state.running.members)
        wait_ticks(run, size)
        cluster.as_root("scancel", "--signal=TERM", f"{run.job_id}_0")
        wait_stops(run, state.progress.stops + 1)
        state = run.wait(lambda new: new.ending is not None or is_whole(new), "the task to be back", 90)
    assert Decision.HELD is state.ending.decision
    assert "the round that had to stop last has saved nothing" in run.log()
    assert "stops in a row saved nothing (max_starts_without_save = 3)" in run.log()
    assert "; nothing was saved" in elastic(cluster, "timeline", str(run.directory)).stdout
    cluster.as_root("scancel", run.job_id)


def is_whole(state: RunState) -> bool:
    """Tell whether both tasks work."""
    return state.running is not None and len(state.running.members) == 2


def wait_ticks(run: Run, count: int) -> None:
    """Wait until each of so many ranks has done a step from now on."""
    for tick in run.directory.glob("ticks.*"):
        tick.unlink()
    run.cluster.wait_for(lambda: len([*run.directory.glob("ticks.*")]) >= count, 40, "all ranks to tick")


def wait_stops(run: Run, count: int) -> None:
    """Wait until so many stops have saved nothing."""
    run.wait(lambda state: state.progress.stops >= count, f"{count} stops", 40)


@pytest.mark.both_trackers
def test_one_run_survives_each_drill(cluster: Cluster) -> None:
    """A worker, a node, a preemption and a requeue: the owner tries them all, without any privilege."""
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, "--step-time", "0.05", steps=20000))
    run.wait_checkpoint(20)
    argv = [
        "env",
        "PATH=/nowhere",
        PYTHON,
        "-m",
        "hpc_elastic",
        "drill",
        str(run.directory),
        "--crash",
        "--yes",
    ]
    nothing = cluster.run("alice", argv)
    assert nothing.returncode != 0
    assert "nothing was struck" in nothing.stderr
    assert [one.id for one in run.entries(DrillBegan)] == [one.id for one in run.entries(DrillCalledOff)]
    crash = drill(run, "--crash", "--rank", "3")
    assert "a worker failed (node2; rank 3, signal 9)" in crash
    lost = drill(run, "--node-loss", "--node", "node3")
    assert "a node was lost (node3)" in lost
    assert ["node1", "node2"] == nodes_of(run.entries(RoundFormed)[-1])
    run.wait_checkpoint(run.entries(RoundFormed)[-1].checkpoint.step + 20)
    preempted = drill(run, "--preempt")
    assert IN_TIME.search(preempted)
    assert re.search(r"0 steps computed again", preempted)
    run.wait_checkpoint(run.entries(RoundFormed)[-1].checkpoint.step + 20)
    requeued = drill(run, "--requeue")
    assert "started again" in requeued
    assert "Slurm says     " in requeued
    causes = [entry.cause for entry in run.entries(RoundEnded)]
    assert [Cause.CRASH, Cause.NODE_LOSS] == causes[:2]
    assert run.state().epoch.restart == 2
    told = run.command("timeline", str(run.directory)).stdout
    assert "drill: the agent and the workers on node3 are killed" in told
    assert "node3" not in run.command("nodes", "--project", str(run.directory)).stdout
    stranger = cluster.run(
        "bob", [PYTHON, "-m", "hpc_elastic", "drill", str(run.directory), "--crash", "--yes"]
    )
    assert stranger.returncode != 0
    run.command("cancel", str(run.directory))


def test_a_task_of_an_array_is_drilled_alone(cluster: Cluster) -> None:
    """In array mode the drill hits the task on one node; the others go on, and the task comes back."""
    worker = plain(cluster, "--step-time", "0.05", steps=20000)
    run = submit(cluster, (*THREE, "--nodes", "2:3", "--mode", "array"), worker)
    run.wait_checkpoint(20)
    crash = drill(run, "--crash", "--node", "node3")
    assert "a worker failed (node3; rank 5, signal 9)" in crash
    run.wait_checkpoint(run.entries(RoundFormed)[-1].checkpoint.step + 20)
    preempted = drill(run, "--preempt", "--node", "node2")
    assert "stopped        all workers on node2 have stopped" in preempted
    assert IN_TIME_OF_TASK.search(preempted), preempted
    assert "running again" in preempted
    assert ["node1", "node3"] in [sorted(nodes_of(formed)) for formed in run.entries(RoundFormed)]
    run.wait(lambda state: state.running is not None and len(state.running.members) == 3, "node2 to be back")
    assert "finish: a SIGTERM that a user sent: this task is requeued" in run.log()
    assert "Slurm wants" not in run.log()
    run.command("cancel", str(run.directory))


def test_drills_in_both_modes(cluster: Cluster) -> None:
    """Three runs are drilled at once: a hang and the warning of a limit in each mode, more in array mode."""
    worker = plain(cluster, "--step-time", "0.05", steps=20000)
    small = (
        "--nodes",
        "1:2",
        "--gpus-per-node",
        "1",
        "--time",
        "10m",
        "--partition",
        "low",
        "--hang-timeout",
        "3s",
    )
    array = (*small, *QUICK, "--mode", "array")
    job, first, second = (submit(cluster, flags, worker) for flags in (small, array, array))
    for run in (job, first, second):
        wait_size(run, 2)
        run.wait_checkpoint(20)

    def drills(run: Run, *kinds: str) -> list[str]:
        reports = []
        for kind in kinds:
            reports.append(drill(run, kind))
            wait_size(run, 2)
        return reports

    with ThreadPoolExecutor() as pool:
        of_job = pool.submit(drills, job, "--hang", "--timeout")
        of_first = pool.submit(drills, first, "--hang", "--node-loss")
        of_second = pool.submit(drills, second, "--timeout", "--requeue")
    for hang, limit in (of_job.result(), (of_first.result()[0], of_second.result()[0])):
        assert "the workers hung" in hang
        assert "noticed        the time limit" in limit
    assert "the run came back" in of_first.result()[1]  # the agent, too, by its script
    assert "is put back into the queue" in of_second.result()[1]
    limit_left, requeued = (entry.cause for entry in second.entries(NodeLeft))
    assert Cause.TIME_LIMIT is limit_left
    assert requeued in CAUSES[Drill.REQUEUE]  # a quick agent is gone before Slurm has told why
    for run in (job, first, second):
        run.command("cancel", str(run.directory))
