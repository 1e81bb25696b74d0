"""Job scripts of a user's own on a fake Slurm: each ending of a job, and the signals of the script."""

from __future__ import annotations

import re

import pytest

from hpc_elastic.record.journal import Budget, Cause, Decision, Requeued
from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.docs.pages import all_blocks
from tests.real_slurm.jobs import PYTHON, USER, elastic
from tests.testing.fake_cluster import FakeCluster
from tests.testing.own_scripts import FIRST_START, ONLY_ONCE, WAITS, OwnRun, submit_own

pytestmark = [pytest.mark.slow, pytest.mark.fake_slurm(grace=120, kill_wait=600, cred_expire=60, speed=60)]
# A grace and a KillWait that no process comes near on a busy machine; `advance` ends them.

IN_STEPS = "srun sleep 600\n"


@pytest.fixture
def cluster(fake_slurm: FakeSlurm) -> FakeCluster:
    """Return the fake as the helpers of the tests on a real Slurm take it."""
    return FakeCluster(fake_slurm, skips=False)


def causes(run: OwnRun) -> list[Cause]:
    """Return why the starts of a run went back to Slurm."""
    return [entry.cause for entry in run.entries(Requeued)]


def test_a_script_gets_what_sbatch_would_give_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, directory, name, interpreter's argument, input and output are those of the script alone."""
    for name in ("HPC_ELASTIC_NO_SKIP", "HPC_ELASTIC_SITE_CONFIG"):  # the job inherits it, as sbatch has it
        monkeypatch.delenv(name, raising=False)
    body = 'cat; echo "own $#:$1:$2:$PWD:$SLURM_JOB_NAME:${!HPC_ELASTIC_*}"; echo "own ${0##*/}"\n'
    (cluster.shared / "input").write_text("own input\n")
    run = submit_own(
        cluster, body, header=f"--input={cluster.shared}/input", arguments=("--", "a b", "--time")
    )
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == [
        "own input",
        f"own 2:a b:--time:{run.place}:job.sbatch:",
        "own slurm_script",
    ]
    assert run.job()["JobState"] == "COMPLETED"
    assert "own input" in run.command("logs", str(run.directory)).stdout
    assert run.command("status", str(run.directory)).stdout.startswith("job.sbatch: done")


def test_variables_of_the_job_reach_the_script_whatever_their_names(cluster: FakeCluster) -> None:
    """Our job script uses names, too, and bash exports what is assigned to a name of the environment."""
    names = ("script", "nodes", "file", "signal", "finish", "news", "ended", "task", "hpc_elastic", "IFS")
    told = ",".join(f"{name}=its {name}" for name in names)
    body = f"echo own $(env | grep -cE '^({'|'.join(names)})=its ')\n"
    run = submit_own(cluster, body, header=f'--export="ALL,{told}"')
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == [f"own {len(names) - 1}"]  # bash itself resets IFS


ENDS = {
    "exit in the middle": ("f() { exit 3; }; f; echo never\n", 3),
    "set -e": ("set -e\nfalse\necho never\n", 1),
    "its own trap of EXIT": ("trap 'echo own last; exit 4' EXIT\nexit 1\n", 4),
    "a program that is not there": ("no-such-program\n", 127),
    "the code that asks for another srun": ("exit 80\n", 80),
    "a child in the background": ("sleep 600 &\nexit 5\n", 5),
    "a signal of its own": ("kill -s KILL $$\n", 137),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_exit_code_is_that_of_the_script(cluster: FakeCluster, name: str) -> None:
    """However a script ends, its code is that of the job, and its last line is the cause of the failure."""
    body, code = ENDS[name]
    run = submit_own(cluster, f"echo own words\n{body}")
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert (state.ending.decision, state.ending.exit_code) == (Decision.FAILED, code)
    assert state.ending.failure is not None
    assert "own words" in state.ending.failure["stderr_tail"]
    assert run.job()["JobState"] == "FAILED"
    assert run.job()["ExitCode"] == f"{code}:0"
    assert "the job script on node1: exit code" in run.command("explain", str(run.directory)).stdout


def test_errors_in_a_file_of_their_own_are_the_cause(cluster: FakeCluster) -> None:
    """The end of --error is shown before that of the output, as the reason stands there."""
    run = submit_own(cluster, "echo own output\necho reason >&2\nexit 1\n", header="--error=own-%j.err")
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.failure is not None
    assert state.ending.failure["stderr_tail"].splitlines()[-1] == "reason"


def test_a_python_program_is_a_job_script(cluster: FakeCluster) -> None:
    """A script in another language runs with its own interpreter; `hpc-elastic sbatch` takes its line."""
    script = cluster.shared / "job.py"
    script.write_text("#!/usr/bin/env python3\nimport sys\nprint('own', sys.argv[1:])\nsys.exit(6)\n")
    line = ("-p", "low", "--allow-local-run-dir", "-o", "own.out", "--max-requeues=3", "job.py", "-p", "x")
    done = elastic(cluster, "sbatch", *line)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    job = done.stdout.split()[-1]
    cluster.wait_state(job, "FAILED")
    assert "own ['-p', 'x']" in (cluster.shared / "own.out").read_text()
    assert cluster.job(job)["ExitCode"] == "6:0"
    assert cluster.job(job)["JobName"] == "job.py"


def test_a_script_may_run_itself(cluster: FakeCluster) -> None:
    """Its copy is a program, as that of Slurm is."""
    run = submit_own(cluster, '[ "$1" = again ] || { "$0" again; exit; }\necho own again\n')
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == ["own again"]


def test_a_script_may_come_from_standard_input(cluster: FakeCluster) -> None:
    """As with sbatch: the job has its name, and the script no arguments."""
    script = '#!/bin/bash\necho "own $# $SLURM_JOB_NAME"'
    flags = "--partition low --output own.out --allow-local-run-dir --parsable"
    line = f"{PYTHON} -m hpc_elastic sbatch {flags} <<'EOF'\n{script}\nEOF\n"
    done = cluster.run(USER, ["bash", "-c", line])
    assert done.returncode == 0, done.stderr
    cluster.wait_state(done.stdout.strip(), "COMPLETED")
    assert "own 0 sbatch\n" in (cluster.shared / "own.out").read_text()


def test_a_script_that_submits_another_is_told_of_no_run_of_ours(cluster: FakeCluster) -> None:
    """Its job is sbatch's alone; the script has the same `sbatch` as without us."""
    options = "--parsable --partition=low --output=other.out"
    body = f"echo own submitted $(sbatch {options} --wrap='echo other $(env | grep -c ^HPC_ELASTIC_RUN)')\n"
    run = submit_own(cluster, body)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    [said] = run.said()
    cluster.wait_state(said.split()[-1], "COMPLETED")
    assert "other 0\n" in (run.place / "other.out").read_text()


def test_a_preempted_script_starts_again(cluster: FakeCluster) -> None:
    """Its steps get SIGTERM in the grace; the script ends with 0 behind them and is requeued all the same."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{IN_STEPS}echo own behind\n", header="--nodes=2")
    run.wait_said("own start 0")
    cluster.slurm.wait_tasks(run.job_id, 2)
    high = cluster.submit_high(4)
    run.wait(lambda state: state.requeued, "the requeue")
    cluster.as_root("scancel", high)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == ["own start 0", "own behind", "own start 1", "own end"]
    assert causes(run) == [Cause.PREEMPTION]
    assert "preemption" in run.command("timeline", str(run.directory)).stdout
    told = " ".join(run.command("explain", str(run.directory)).stdout.split())
    assert "continued in the next start; from which step is not known" in told


def test_a_preempted_script_that_runs_on_is_requeued_by_slurm(cluster: FakeCluster) -> None:
    """A script without steps hears nothing before the end of the grace; it is counted once."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}trap 'echo own TERM' TERM\n{WAITS}")
    run.wait_said("own start 0")
    high = cluster.submit_high(4)
    cluster.wait_for(lambda: run.job().get("PreemptTime", "None") != "None", 60, "the preemption")
    cluster.slurm.advance(200)
    run.wait_said("own TERM")
    run.go_on()
    cluster.as_root("scancel", high)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == ["own start 0", "own TERM", "own start 1", "own end"]
    assert (len(causes(run)), state.requeues) == (1, 1)


def test_a_script_at_its_time_limit_is_requeued_while_it_saves(cluster: FakeCluster) -> None:
    """SIGTERM comes at the limit as Slurm sends it; a script that ends by SIGKILL comes back, too."""
    run = submit_own(
        cluster, f"{FIRST_START}{ONLY_ONCE}trap 'echo own TERM' TERM\n{WAITS}", header="--time=1"
    )
    run.wait_said("own start 0")
    cluster.slurm.advance(120)
    run.wait_said("own TERM")
    cluster.wait_for(lambda: run.job()["Restarts"] == "1", 60, "the requeue")
    cluster.slurm.advance(600)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert causes(run) == [Cause.TIME_LIMIT]


def test_a_warning_with_sigterm_hides_no_time_limit(cluster: FakeCluster) -> None:
    """Slurm is asked at each SIGTERM, as `--signal=B:TERM@60` sends one ahead of that of the limit."""
    header = "--time=2\n--signal=B:TERM@60"
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}trap 'echo own TERM' TERM\n{WAITS}", header=header)
    run.wait_said("own start 0")
    cluster.slurm.advance(90)
    run.wait_said("own TERM")
    cluster.wait_for(lambda: "lets the job run" in run.output(), 60, "the first look")
    assert run.job()["Restarts"] == "0"
    cluster.slurm.advance(60)
    run.wait_said("own TERM", 2)
    cluster.wait_for(lambda: run.job()["Restarts"] == "1", 60, "the requeue")
    cluster.slurm.advance(600)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert causes(run) == [Cause.TIME_LIMIT]


def test_a_lost_node_is_counted_against_it(cluster: FakeCluster) -> None:
    """Slurm requeues the job of a lost node; the run records which one it was, and its next start goes on."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{WAITS}", header="--nodes=2")
    run.wait_said("own start 0")
    cluster.crash("node2")
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert causes(run) == [Cause.NODE_LOSS]
    assert run.entries(Requeued)[0].nodes == ("node2",)
    assert "node2" in run.command("nodes").stdout or state.requeues == 1


def test_the_loss_of_the_batch_host_is_found_by_the_next_start(cluster: FakeCluster) -> None:
    """Nothing can record that end, so that the next start charges it."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{WAITS}")
    run.wait_said("own start 0")
    cluster.crash(run.job()["BatchHost"])
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert causes(run) == [Cause.NODE_LOSS]


@pytest.mark.parametrize("code", [0, 1])
def test_a_cancelled_script_is_never_brought_back(cluster: FakeCluster, code: int) -> None:
    """Not even one that handles SIGTERM and ends well."""
    run = submit_own(cluster, f"{FIRST_START}trap 'echo own TERM; exit {code}' TERM\n{WAITS}")
    run.wait_said("own start 0")
    cluster.as_root("scancel", run.job_id)
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert state.ending.decision is Decision.CANCELLED
    assert run.said() == ["own start 0", "own TERM"]
    assert (run.job()["JobState"], run.job()["Restarts"]) == ("CANCELLED", "0")


def test_a_requeue_of_the_scripts_own_is_counted_once(cluster: FakeCluster) -> None:
    """A home-made trap with `scontrol requeue` works as before."""
    trap = "trap 'echo own USR1; scontrol requeue $SLURM_JOB_ID' USR1\n"
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{trap}{WAITS}", header="--signal=B:USR1@60\n--time=2")
    run.wait_said("own start 0")
    cluster.slurm.advance(90)
    run.wait_said("own USR1")
    run.wait(lambda state: state.requeued, "the requeue")
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.DONE
    assert run.said() == ["own start 0", "own USR1", "own start 1", "own end"]
    assert (causes(run), state.requeues) == ([Cause.REQUEUE], 1)


def test_a_spent_budget_holds_the_script(cluster: FakeCluster) -> None:
    """After the last preemption that is allowed the job waits for its user, who may release it."""
    run = submit_own(cluster, f"{FIRST_START}{ONLY_ONCE}{IN_STEPS}", "--max-preemptions", "0")
    run.wait_said("own start 0")
    cluster.slurm.wait_tasks(run.job_id, 1)
    high = cluster.submit_high(4)
    state = run.wait_ending()
    assert state.ending is not None
    assert (state.ending.decision, state.ending.budget) == (Decision.HELD, Budget.PREEMPTIONS)
    cluster.as_root("scancel", high)
    cluster.wait_state(run.job_id, "PENDING")
    cluster.as_root("scontrol", "release", run.job_id)
    run.wait(lambda found: found.ending is not None and found.ending.decision is Decision.DONE, "the end")
    assert run.said()[-1] == "own end"


def test_a_script_that_says_no_requeue_is_not_requeued(cluster: FakeCluster) -> None:
    """The option of the script's own is kept: no requeue, and no further job in its place."""
    run = submit_own(cluster, f"{FIRST_START}{IN_STEPS}", header="--no-requeue")
    run.wait_said("own start 0")
    cluster.slurm.wait_tasks(run.job_id, 1)
    cluster.submit_high(4)
    state = run.wait_ending()
    assert state.ending is not None
    assert state.ending.decision is Decision.FAILED
    assert "max_requeues" in state.ending.reason


def test_stop_ends_the_script_with_sigterm(cluster: FakeCluster) -> None:
    """The run is recorded as stopped, and its job is gone."""
    run = submit_own(cluster, f"{FIRST_START}trap 'echo own TERM; exit' TERM\n{WAITS}")
    run.wait_said("own start 0")
    run.command("stop", str(run.directory))
    run.wait_said("own TERM")
    run.wait_gone()
    state = run.state()
    assert state.ending is not None
    assert state.ending.decision is Decision.STOPPED
    assert run.command("status", str(run.directory)).stdout.startswith("job.sbatch: stopped")


@pytest.mark.parametrize(
    "tracker",
    [
        pytest.param("cgroup", marks=pytest.mark.fake_slurm(tracker="cgroup", speed=60)),
        pytest.param("linuxproc", marks=pytest.mark.fake_slurm(tracker="linuxproc", speed=60)),
    ],
)
def test_each_signal_reaches_the_script_once(cluster: FakeCluster, tracker: str) -> None:
    """Whether Slurm sends it to the batch script alone or to all of its processes, and only that signal."""
    assert cluster.tracker == tracker
    names = ("HUP", "INT", "QUIT", "USR1", "USR2")
    traps = "".join(f"trap 'echo own {name}' {name}\n" for name in names)
    run = submit_own(cluster, f"{traps}echo own ready\n{WAITS}exit 9\n")
    run.wait_said("own ready")
    for name in names:
        cluster.as_root("scancel", "--batch", f"--signal={name}", run.job_id)
        run.wait_said(f"own {name}")
    run.go_on()
    state = run.wait_ending()
    assert run.said() == ["own ready", *(f"own {name}" for name in names)]
    assert state.ending is not None
    assert state.ending.exit_code == 9


def test_options_of_the_submission_win_over_those_of_the_script(cluster: FakeCluster) -> None:
    """As with sbatch: its command line, then the lines above the first command; later lines do not count."""
    run = submit_own(
        cluster, f"{WAITS}#SBATCH --comment=late\n", "--time", "7m", "--name", "mine", header="--time=3"
    )
    assert run.job()["TimeLimit"] == "00:07:00"
    assert run.job()["JobName"] == "mine"
    assert "late" not in run.job().get("Comment", "")
    run.go_on()
    run.wait_ending()


def test_a_drill_shows_that_a_script_comes_back(cluster: FakeCluster) -> None:
    """`drill --preempt` puts the script of the page back into the queue, and tells when it runs again."""
    [shown] = [block.code for block in all_blocks() if "> steps" in block.code and "#SBATCH" in block.code]
    run = submit_own(cluster, shown)
    steps = run.place / "steps"
    cluster.wait_for(lambda: steps.exists() and int(steps.read_text() or 0) > 0, 60, "the first step")
    done = run.command("drill", "--preempt", "--yes", str(run.directory))
    assert "the run came back" in done.stdout
    assert causes(run) == [Cause.REQUEUE]


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_a_trap_that_requeues_brings_no_ended_run_back(cluster: FakeCluster, command: str) -> None:
    """The record of the end goes before the requeue of the script's own."""
    trap = "trap 'echo own TERM; scontrol requeue $SLURM_JOB_ID; exit' TERM\n"
    run = submit_own(cluster, f"{FIRST_START}{trap}{WAITS}")
    run.wait_said("own start 0")
    run.command(command, str(run.directory))
    run.wait_said("own TERM")
    cluster.wait_for(lambda: run.job()["JobState"] in ("COMPLETED", "CANCELLED", "FAILED"), 60, "the end")
    assert run.said() == ["own start 0", "own TERM"]
