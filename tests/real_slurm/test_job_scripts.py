"""Job scripts of a user's own on a real Slurm: `submit job.sbatch` brings them back, as they are."""

from __future__ import annotations

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Decision, Requeued
from hpc_elastic.record.run_log import read_state
from hpc_elastic.slurm.run_jobs.script_tasks import begun_tasks
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import installed_for_users
from tests.testing.own_scripts import FIRST_START, ONLY_ONCE, WAITS, OwnRun, submit_own

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

ON_2 = "--nodelist=node[1-2]\n--nodes=2"


def ended(run: OwnRun) -> list[Cause]:
    """Wait until a run is done and return why its starts went back to Slurm."""
    state = run.wait_ending(150)
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE, run.output()
    return [entry.cause for entry in run.entries(Requeued)]


@pytest.mark.both_trackers
def test_a_preempted_script_comes_back(cluster: Cluster) -> None:
    """Its step gets SIGTERM at the begin of the grace, and the script goes on behind it and ends with 0."""
    step = "srun --ntasks=2 sh -c 'echo own step; exec sleep 600' >> steps\n"
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{step}echo own behind\n", header=ON_2)
    steps = run.place / "steps"
    cluster.wait_for(lambda: steps.exists() and steps.read_text().count("own step") == 2, 60, "the step")
    high = cluster.submit_high(2, "--nodelist=node[1-2]")
    cluster.wait_state(high, "RUNNING", 90)
    cluster.as_root("scancel", high)
    assert ended(run) == [Cause.PREEMPTION]
    assert run.said() == ["own start 0", "own behind", "own start 1", "own end"]


def test_a_preempted_script_that_runs_on_is_counted_once(cluster: Cluster) -> None:
    """Slurm ends it after the grace and requeues it; SIGTERM reaches the script once."""
    body = f"{FIRST_START}{ONLY_ONCE}trap 'echo own TERM' TERM\n{WAITS}"
    run = submit_own(cluster, body, header="--nodelist=node1")
    run.wait_said("own start 0")
    high = cluster.submit_high(1, "--nodelist=node1")
    cluster.wait_state(high, "RUNNING", 90)
    cluster.as_root("scancel", high)
    assert ended(run) == [Cause.PREEMPTION]
    assert run.said() == ["own start 0", "own TERM", "own start 1", "own end"]


def test_a_script_at_its_time_limit_comes_back(cluster: Cluster) -> None:
    """It is requeued while it saves; Slurm kills it KillWait after SIGTERM."""
    body = f"{FIRST_START}{ONLY_ONCE}trap 'echo own TERM' TERM\n{WAITS}"
    run = submit_own(cluster, body, header="--time=1")
    run.wait_said("own start 0")
    assert ended(run) == [Cause.TIME_LIMIT]
    assert run.said() == ["own start 0", "own TERM", "own start 1", "own end"]


def test_a_script_comes_back_after_a_node_is_lost(cluster: Cluster) -> None:
    """The run knows which node it was."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{WAITS}", header="--nodelist=node[1-2]\n--nodes=2")
    run.wait_said("own start 0")
    cluster.crash("node2")
    run.wait(lambda state: state.requeued, "the requeue", 120)
    cluster.boot("node2")
    assert ended(run) == [Cause.NODE_LOSS]
    assert run.entries(Requeued)[0].nodes == ("node2",)


def test_a_script_comes_back_after_its_batch_host_is_lost(cluster: Cluster) -> None:
    """Nothing could record that end: the next start does."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{WAITS}")
    run.wait_said("own start 0")
    cluster.crash(run.job()["BatchHost"])
    assert ended(run) == [Cause.NODE_LOSS]


@pytest.mark.both_trackers
def test_a_cancelled_script_stays_cancelled(cluster: Cluster) -> None:
    """Even one that handles SIGTERM and ends well."""
    run = submit_own(cluster, f"{FIRST_START}trap 'echo own TERM; exit 0' TERM\n{WAITS}")
    run.wait_said("own start 0")
    cluster.as_root("scancel", run.job_id)
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert state.ending.decision is Decision.CANCELLED
    assert run.said() == ["own start 0", "own TERM"]
    assert run.job()["Restarts"] == "0"


def test_a_trap_with_a_requeue_of_its_own_works(cluster: Cluster) -> None:
    """`--signal=B:` reaches the script once, and its requeue is counted once."""
    trap = "trap 'echo own USR1; scontrol requeue $SLURM_JOB_ID' USR1\n"
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{trap}{WAITS}", header="--signal=B:USR1@60\n--time=2")
    run.wait_said("own start 0")
    assert ended(run) == [Cause.REQUEUE]
    assert run.said() == ["own start 0", "own USR1", "own start 1", "own end"]


@pytest.mark.both_trackers
def test_signals_reach_the_script_once(cluster: Cluster) -> None:
    """Those of `scancel --batch`, and with `--full` those to all processes of the batch step."""
    names = ("HUP", "INT", "USR1", "USR2")
    traps = "".join(f"trap 'echo own {name}' {name}\n" for name in names)
    run = submit_own(cluster, f"{traps}echo own ready\n{WAITS}exit 9\n")
    run.wait_said("own ready")
    for how in ("--batch", "--full"):
        for name in names:
            cluster.as_root("scancel", how, f"--signal={name}", run.job_id)
            run.wait_said(f"own {name}", 1 if how == "--batch" else 2)
    run.go_on()
    state = run.wait_ending()
    run.wait_gone()
    assert run.said() == ["own ready", *(f"own {name}" for name in names * 2)]
    assert state.ending is not None
    assert state.ending.exit_code == 9
    assert run.job()["ExitCode"] == "9:0"


def test_each_task_of_an_array_comes_back_for_itself(cluster: Cluster) -> None:
    """The last task, which has the id of the array in Slurm, is requeued alone; another one fails alone."""
    own = 'echo "own $SLURM_ARRAY_TASK_ID start ${SLURM_RESTART_COUNT:-0}"\n'
    asks = "[ $SLURM_ARRAY_TASK_ID = 0 ] || { scontrol requeue ${SLURM_ARRAY_JOB_ID}_2; sleep 600; }\n"
    body = f"{own}{ONLY_ONCE}[ $SLURM_ARRAY_TASK_ID != 1 ] || exit 5\n{asks}"
    run = submit_own(cluster, body, header="--array=0-2\n--output=own-%a.out")
    array = RunPaths(run.directory)

    def endings() -> list[Decision | None]:
        states = [read_state(task) for task in begun_tasks(array)]
        return [None if state.ending is None else state.ending.decision for state in states]

    wanted = [Decision.DONE, Decision.FAILED, Decision.DONE]
    cluster.wait_for(lambda: endings() == wanted, 120, f"the ends of the tasks, which are {endings()}")
    assert [read_state(task).requeues for task in begun_tasks(array)] == [0, 0, 1]
    last = (run.place / "own-2.out").read_text()
    said = [line for line in last.splitlines() if line.startswith("own 2")]
    assert said == ["own 2 start 0", "own 2 start 1"]
    told = run.command("explain", str(run.directory))
    assert "exit code 5" in told.stdout


def test_the_components_of_a_heterogeneous_job_come_back_together(cluster: Cluster) -> None:
    """Slurm requeues all of them with the first one, in which the script runs."""
    body = f"{FIRST_START}{ONLY_ONCE}echo own $SLURM_HET_SIZE\nscontrol requeue $SLURM_JOB_ID\nsleep 600\n"
    run = submit_own(cluster, body, header="--nodes=1\nhetjob\n--nodes=1 --partition=low --time=10")
    assert ended(run) == [Cause.REQUEUE]
    assert run.said() == ["own start 0", "own 2", "own start 1", "own end"]
