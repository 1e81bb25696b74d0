"""Every way to ask a run on a real Slurm to stop: what the workers hear, how long they have, what follows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Epoch,
    EpochStarted,
    NodeLeft,
    RoundFormed,
    StopAgreed,
)
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.drills.runs import MODES, agents_said, flags, saved_step, told
from tests.real_slurm.drills.runs import saving as saving_as_told
from tests.real_slurm.jobs import PYTHON, SLOW, USER, Run, elastic, installed_for_users, plain, submit

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

KILL_WAIT_S = 5.0
TWO = ("--nodes", "2", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
SAVER = """
import json, os, sys, time
from hpc_elastic import worker
save_s, rank = float(sys.argv[1]), os.environ["RANK"]
saved = worker.latest_checkpoint()
step = saved.step if saved else 0
while True:
    time.sleep(0.02)
    step += 1
    worker.tick(step)
    if worker.should_stop():
        left = worker.time_left()
        with worker.critical("saving"):
            time.sleep(save_s if rank == "3" else 0)
            with worker.atomic_write(os.path.join(worker.run_dir(), "left." + rank)) as file:
                file.write(json.dumps(left).encode())
            worker.checkpoint_saved(step, shards=4)
        break
    if step == 5 and rank == "0":
        open(os.path.join(worker.run_dir(), "runs"), "w").close()
"""
"""Four ranks that save a part each; rank 3 takes its time. What was left of it when it began is kept."""


def saving(cluster: Cluster, save_s: float, *flags: str) -> Run:
    """Submit a run whose last save takes so long [s], and wait until its workers run."""
    run = submit(cluster, (*TWO, *flags), [PYTHON, "-c", SAVER, str(save_s)])
    cluster.wait_for((run.directory / "runs").exists, 60, "the workers to run")
    return run


def left_s(run: Run) -> float:
    """Return how long rank 3 had when it began to save [s]."""
    return float(json.loads((run.directory / "left.3").read_text()))


def signal_of(cluster: Cluster, run: Run, *arguments: str) -> None:
    """Send a signal with scancel as the run's owner."""
    done = cluster.run(USER, ["scancel", *arguments, run.job_id])
    assert done.returncode == 0, done.stderr


OWN_SCRIPT = """#!/bin/bash
#SBATCH --partition=low --nodes=1 --time=1 --requeue --no-kill --signal=B:USR2@20 --nodelist=node3
trap : TERM INT HUP USR1 USR2
srun -n 1 --kill-on-bad-exit=0 --wait=0 --no-kill {python} -m hpc_elastic run --run-dir {run} \
    --nproc-per-node 4 --no-python {python} -c "$PROGRAM" 0
ended=$?
trap '' TERM INT HUP USR1 USR2
{python} -m hpc_elastic finish --run-dir {run} --srun-exit-code $ended --max-relaunch 0
"""


@pytest.mark.both_trackers
def test_a_preemption_grants_its_grace(cluster: Cluster) -> None:
    """A save longer than KillWait (5 s) is finished in the grace (8 s), which the workers are told of."""
    run = saving(cluster, 6.0)
    cluster.submit_high(4)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    (explained,), (drained,) = run.entries(DrainExplained), run.entries(Drained)
    assert (Cause.PREEMPTION, Cause.PREEMPTION) == (explained.cause, drained.cause)
    assert "with grace until" in explained.detail
    assert (run.directory / "left.3").exists()
    assert run.state().stop_step == drained.step
    assert drained.took_s > 6
    # Slurm requeues the job itself at the end of the grace, which may come before finish has asked it
    assert re.search(r"finish: (Slurm has requeued the job itself: )?preemption", run.log())
    assert "requeued (preemption)" in run.command("timeline", str(run.directory)).stdout


def test_without_grace_there_is_kill_wait(cluster: Cluster) -> None:
    """The workers hear that they have less than KillWait; a save that fits is kept."""
    run = saving(cluster, 1.5, "--partition", "low0")
    cluster.submit_high(4)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    (explained,), (drained,) = run.entries(DrainExplained), run.entries(Drained)
    assert "preempted without grace" in explained.detail
    assert 0 < explained.left_s < 5
    assert run.state().stop_step == drained.step


def test_scancel_is_called_by_its_name(cluster: Cluster) -> None:
    """SIGTERM of scancel: the workers save, and what was asked for is in the log."""
    run = saving(cluster, 0.5)
    signal_of(cluster, run)
    state = run.wait_ending()
    assert state.ending is not None
    assert Decision.CANCELLED is state.ending.decision
    assert [Cause.CANCEL] == [entry.cause for entry in run.entries(DrainExplained)]
    log = "".join(path.read_text() for path in Path(run.paths.agent_logs).iterdir())
    assert "Slurm: the job was cancelled" in log
    assert "preemption, scancel, the time limit or a failed node" in log


def test_after_a_stop_slurms_signal_is_explained(cluster: Cluster) -> None:
    """Who is asked to save by `stop`, and then ended by Slurm, hears how long there is; so in an array.

    The ranks save as long as they are told that they may: two minutes at first, then less than KillWait.
    """
    runs = [saving_as_told(cluster, flags(mode, "2", "--partition", "low"), 100.0) for mode in MODES]
    for run in runs:
        run.command("stop", str(run.directory))
        (formed, *_) = run.entries(RoundFormed)
        ranks = sum(member.slots for member in formed.members)
        run.wait(lambda _: ranks == len(told(run)), "all ranks to begin to save", 30)  # noqa: B023 - called now
        signal_of(cluster, run)
    for run in runs:
        ending = run.wait_ending(60).ending
        assert ending is not None
        assert Decision.STOPPED is ending.decision, run.journal()
        assert "] Slurm: the job was cancelled; workers have" in agents_said(run)
        (agreed, *_) = run.entries(StopAgreed)
        assert agreed.step == saved_step(run)
        for asked in told(run).values():
            assert asked[0].left_s > 2 * KILL_WAIT_S > asked[-1].left_s + KILL_WAIT_S


def test_signals_by_hand(cluster: Cluster) -> None:
    """To the script: nothing. TERM to srun, which kills all agents: started again. To the agents: a drain."""
    run = saving(cluster, 0.0)
    signal_of(cluster, run, "--signal=USR1", "--batch")
    signal_of(cluster, run, "--signal=INT", "--full")
    signal_of(cluster, run, "--signal=TERM", "--full")
    run.wait(lambda state: state.epoch == Epoch(0, 0, 0, 1) and state.running is not None, "the second srun")
    assert not run.entries(DrainRequested)
    signal_of(cluster, run, "--signal=TERM")
    run.wait(lambda state: state.drained is not None, "the drain")
    run.wait(lambda state: state.requeues == 1, "the requeue")
    sent = "a SIGTERM that a user sent"  # Slurm preempts nobody here
    assert f"finish: {sent}: requeue 1 of at most" in run.log()
    told = (
        run.command("timeline", str(run.directory)).stdout + run.command("status", str(run.directory)).stdout
    )
    assert (f"requeued ({sent})" in told, "(preemption" in told) == (True, False)


@pytest.mark.parametrize("name", ["USR1", "INT"])
def test_other_signals_to_the_agents(cluster: Cluster, name: str) -> None:
    """A warning has the run requeued; an interrupt is the user's wish, and ends it."""
    run = saving(cluster, 0.0)
    signal_of(cluster, run, f"--signal={name}")
    run.wait(lambda state: state.drained is not None, "the drain")
    assert [{"USR1": Cause.TIME_LIMIT, "INT": Cause.INTERRUPT}[name]] == [
        entry.cause for entry in run.entries(Drained)
    ]
    if name == "INT":
        state = run.wait_ending()
        assert state.ending is not None
        assert Decision.STOPPED is state.ending.decision
    else:
        run.wait(lambda state: state.requeues == 1, "the requeue")


def test_a_file_ends_the_run(cluster: Cluster) -> None:
    """`touch RUN/drain` is `hpc-elastic stop`: all parts are saved, the job ends and is not requeued."""
    run = saving(cluster, 1.0)
    assert cluster.run(USER, ["touch", run.paths.drain]).returncode == 0
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert Decision.STOPPED is state.ending.decision
    assert state.drained is not None
    assert state.stop_step == state.drained.step
    assert ("COMPLETED", False) == (run.job()["JobState"], Path(run.paths.drain).exists())
    assert "the end" not in elastic(cluster, "status", str(run.directory)).stderr


def test_what_the_site_grants_is_kept_at_submit(cluster: Cluster) -> None:
    """KillWait and the partition's grace are in the run directory before the job starts."""
    run = submit(cluster, (*TWO, "--partition", "low"), [PYTHON, "-c", "pass"])
    kept = json.loads(Path(run.paths.site).read_text())
    assert (5.0, 8.0) == (kept["kill_wait_s"], kept["grace_s"])


@pytest.mark.timeout(400)
def test_a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns(start_cluster: StartCluster) -> None:
    """With KillOnBadExit=1 and a short Wait no agent's exit costs another one its save.

    Beside it a job whose script alone is warned (B:): its agent saves before the limit by itself. So do
    those of an array.
    """
    extra = ("--extra", "KillOnBadExit=1", "--extra", "WaitTime=3", "--kill-wait", "20")
    cluster = start_cluster(nodes=3, options=extra)
    unwarned = submit_unwarned(cluster)
    array = submit_unwarned_array(cluster)
    run = saving(cluster, 5.0)
    signal_of(cluster, run, "--signal=TERM")
    run.wait(lambda state: state.requeues == 1, "the requeue")
    (drained,) = run.entries(Drained)
    assert run.state().stop_step == drained.step
    assert 1 == len(run.entries(EpochStarted))
    unwarned.wait(lambda state: state.requeues == 1, "the requeue of the other job", 120)
    (asked,), (drained,) = unwarned.entries(DrainRequested), unwarned.entries(Drained)
    assert (Cause.TIME_LIMIT, Cause.TIME_LIMIT) == (asked.cause, drained.cause)
    assert "the time limit, " in asked.detail
    assert drained.step is not None
    array.wait(lambda _state: len(array.entries(NodeLeft)) == 2, "both tasks to leave", 60)
    for left in array.entries(NodeLeft):
        assert (Cause.TIME_LIMIT, True) == (left.cause, "the time limit, " in left.detail)


def submit_unwarned(cluster: Cluster) -> Run:
    """Submit a job of one minute of which only the script hears that it ends."""
    script, directory = cluster.shared / "unwarned.sh", cluster.shared / "unwarned"
    script.write_text(OWN_SCRIPT.format(python=PYTHON, run=directory))
    done = cluster.run(USER, ["sbatch", "--parsable", str(script)], env={"PROGRAM": SAVER})
    assert done.returncode == 0, done.stderr
    return Run(cluster, directory, done.stdout.strip())


def submit_unwarned_array(cluster: Cluster) -> Run:
    """Submit an array by hand, with a warning that only the scripts of its tasks hear."""
    flags = ("--mode", "array", "--nodes", "1:2", "--time", "1m", "--partition", "low")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=6000))
    run.command("cancel", str(run.directory))
    words = ("sbatch", "--parsable", "--signal=B:USR2@20", str(run.directory / "job.sbatch"), "1")
    done = cluster.run(USER, words)
    assert done.returncode == 0, done.stderr
    return Run(cluster, run.directory, done.stdout.strip())
