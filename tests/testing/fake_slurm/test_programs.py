"""The programs of the fake Slurm, with real processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, SlurmCommandError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.testing.fake_slurm import FakeSlurm, Process, Settings
from hpc_elastic.testing.fake_slurm.handle import LOOKS
from hpc_elastic.testing.waiting import wait_until

pytestmark = pytest.mark.fake_slurm(speed=600)

SLEEP = "exec sleep 600"
DEADLINE_S = 60


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        return "Z" == Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except FileNotFoundError:
        return True


def wait_gone(processes: Iterable[Process]) -> None:
    """Wait until processes have ended."""
    pids = [process.pid for process in processes]
    wait_until(lambda: all(map(is_gone, pids)), "the processes to end", timeout_s=DEADLINE_S)


def running(slurm: FakeSlurm, *options: str, tasks: int = 1, wrap: str = "") -> str:
    """Submit a job with one step of sleeping tasks and wait until all of them run."""
    job = slurm.submit(*options, wrap=wrap or f"srun -N{tasks} -n{tasks} sleep 600")
    slurm.wait_tasks(job, tasks)
    return job


def test_a_script_with_options_runs_where_it_was_submitted(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Options come from the script, those on the command line count; the rest are its arguments."""
    script = tmp_path / "job.sh"
    script.write_text(
        '#!/bin/bash\n#SBATCH --job-name="two words" -N1\n#SBATCH --output=%x.%j.out\n'
        'echo "$SLURM_JOB_NAME $SLURM_JOB_PARTITION $1 $(hostname) $PWD"\n'
    )
    done = fake_slurm.run(["sbatch", "-p", "high", "job.sh", "argument"], cwd=tmp_path)
    assert "Submitted batch job 1000\n" == done.stdout
    fake_slurm.wait_state("1000", "COMPLETED")
    said = (tmp_path / "two words.1000.out").read_text()
    assert f"two words high argument node1 {tmp_path}\n" == said


def test_a_script_may_come_through_stdin(fake_slurm: FakeSlurm) -> None:
    """As `sbatch --test-only` is called by the package; nothing is queued then."""
    slurm = Slurm(fake_slurm.environ)
    slurm.sbatch_test("#!/bin/sh\n#SBATCH -N2\ntrue\n", fake_slurm.environ)
    assert "" == fake_slurm.command("squeue", "--noheader", "--states=all")
    assert slurm.controllers() == [("login", True)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-such-thing", "--wrap=true"], "unrecognized option '--no-such-thing'"),
        (["--partition=nowhere", "--wrap=true"], "invalid partition specified: nowhere"),
        (["--gpus-per-node=3", "--wrap=true"], "Requested node configuration is not available"),
        (["--time=soon", "--wrap=true"], "Invalid --time specification"),
        (["no-such-file"], "Unable to open file no-such-file"),
        (["--array=1-", "--wrap=true"], "Invalid job array specification"),
        (["--signal=NOPE", "--wrap=true"], "Invalid --signal specification"),
        (["-N"], "option '-N' requires an argument"),
    ],
)
def test_what_slurm_refuses_is_refused(fake_slurm: FakeSlurm, words: list[str], said: str) -> None:
    """With Slurm's words, and nothing is queued."""
    done = fake_slurm.run(["sbatch", *words])
    assert (1, "") == (done.returncode, done.stdout)
    assert said in done.stderr


def test_a_step_runs_on_all_nodes_and_returns_the_highest_code(fake_slurm: FakeSlurm) -> None:
    """Tasks know their rank; those of one node share it; srun names who failed."""
    tell = shlex.quote(
        'echo "$SLURMD_NODENAME $SLURM_NODEID $SLURM_PROCID $SLURM_LOCALID"; exit $SLURM_PROCID'
    )
    job = fake_slurm.submit("-N2", wrap=f"srun -N2 -n4 sh -c {tell}; echo code $?")
    fake_slurm.wait_state(job, "COMPLETED")
    lines = Path(fake_slurm.directory, f"slurm-{job}.out").read_text().splitlines()
    assert {"node1 0 0 0", "node1 0 1 1", "node2 1 2 0", "node2 1 3 1"} <= set(lines)
    assert "srun: error: node2: task 3: Exited with exit code 3" in lines
    assert "code 3" == lines[-1]


def test_a_program_that_is_not_there_fails_its_step(fake_slurm: FakeSlurm) -> None:
    """The step daemon says why."""
    job = fake_slurm.submit(wrap="srun ./no-such-program; echo code $?")
    fake_slurm.wait_state(job, "COMPLETED")
    said = Path(fake_slurm.directory, f"slurm-{job}.out").read_text()
    assert "slurmstepd: error: execve(): ./no-such-program: No such file or directory" in said
    assert "code 2" in said


def test_a_job_whose_log_cannot_be_opened_fails(fake_slurm: FakeSlurm) -> None:
    """As on a cluster, there is nothing to read then."""
    job = fake_slurm.submit("--output=no/such/directory/%j.out", wrap="true")
    fake_slurm.wait_state(job, "FAILED")


@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_a_requeued_job_counts_its_starts(fake_slurm: FakeSlurm, mode: str) -> None:
    """SLURM_RESTART_COUNT is set from the second start on; the log is kept only if asked for."""
    job = fake_slurm.submit(
        f"--open-mode={mode}",
        wrap='echo "start ${SLURM_RESTART_COUNT-none}"; [ "$SLURM_RESTART_COUNT" ] || exec sleep 600',
    )
    fake_slurm.wait_state(job, "RUNNING")
    log = Path(fake_slurm.directory, f"slurm-{job}.out")
    wait_until(lambda: log.exists() and "none" in log.read_text(), "the first start", timeout_s=DEADLINE_S)
    assert "" == fake_slurm.run(["scontrol", "requeue", job]).stderr
    fake_slurm.wait_state(job, "COMPLETED")
    first = ["start none"] if mode == "append" else []
    assert [*first, "start 1"] == log.read_text().splitlines()
    assert ["REQUEUED", "COMPLETED"] == fake_slurm.accounted(job)


def test_a_held_job_waits_for_its_release(fake_slurm: FakeSlurm) -> None:
    """--hold, requeuehold and release."""
    job = fake_slurm.submit("--hold", wrap=SLEEP)
    assert ("PENDING", "JobHeldUser", "0") == tuple(
        fake_slurm.job(job)[name] for name in ("JobState", "Reason", "Priority")
    )
    fake_slurm.command("scontrol", "release", job)
    fake_slurm.wait_state(job, "RUNNING")
    fake_slurm.command("scontrol", "requeuehold", job)
    fake_slurm.wait_state(job, "PENDING")
    assert "job_requeued_in_held_state" == fake_slurm.job(job)["Reason"]


def test_tasks_of_an_array_have_names_and_files_of_their_own(fake_slurm: FakeSlurm) -> None:
    """The last task has the id of the array; a throttle can be changed."""
    array = fake_slurm.submit(
        "--array=0-2%1", "--output=%A_%a.out", wrap="echo $SLURM_ARRAY_TASK_ID; exec sleep 600"
    )
    fake_slurm.wait_state(f"{array}_0", "RUNNING")
    assert "JobArrayTaskLimit" == fake_slurm.job(f"{array}_1")["Reason"]
    assert array == fake_slurm.job(f"{array}_2")["JobId"]
    fake_slurm.command("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=0")
    for task in range(3):
        fake_slurm.wait_state(f"{array}_{task}", "RUNNING")
        log = Path(fake_slurm.directory, f"{array}_{task}.out")
        wait_until(lambda log=log, task=task: log.read_text() == f"{task}\n", "the log")  # type: ignore[misc]
    shown = fake_slurm.command("squeue", "--noheader", "--format=%i|%F|%K|%T").splitlines()
    assert {f"{array}_{task}|{array}|{task}|RUNNING" for task in range(3)} == set(shown)


def test_a_job_on_its_way_back_can_do_without_a_node(fake_slurm: FakeSlurm) -> None:
    """ExcNodeList is taken from a job that was requeued, not from one that runs."""
    job = fake_slurm.submit("--requeue", wrap=SLEEP)
    fake_slurm.wait_state(job, "RUNNING")
    slurm = Slurm(fake_slurm.environ)
    with pytest.raises(SlurmCommandError, match="no longer pending"):
        slurm.update(job, "ExcNodeList=node[1-2]")
    slurm.requeue(job, hold=True)  # else it may have started again by then
    slurm.update(job, "ExcNodeList=node[1-2]")
    fake_slurm.command("scontrol", "release", job)
    fake_slurm.wait_state(job, "RUNNING")
    shown = fake_slurm.job(job)
    assert ("node3", "node[1-2]", "1") == (shown["NodeList"], shown["ExcNodeList"], shown["Restarts"])


def test_dependants_start_when_the_job_before_has_ended(fake_slurm: FakeSlurm) -> None:
    """The state before the end is Dependency."""
    first = fake_slurm.submit(wrap=SLEEP)
    after = fake_slurm.submit(f"--dependency=afterany:{first}", wrap="true")
    fake_slurm.wait_state(first, "RUNNING")
    assert ("PENDING", "Dependency") == tuple(fake_slurm.job(after)[name] for name in ("JobState", "Reason"))
    fake_slurm.command("scancel", first)
    fake_slurm.wait_state(after, "COMPLETED")


def test_a_second_step_needs_overlap(fake_slurm: FakeSlurm) -> None:
    """While a step holds the node another one waits, or gives up with --immediate."""
    job = running(fake_slurm)
    step = ["srun", f"--jobid={job}", "--immediate=1", "hostname"]
    busy = fake_slurm.run(step)
    assert (1, "") == (busy.returncode, busy.stdout)
    assert "Requested nodes are busy" in busy.stderr
    assert "node1\n" == fake_slurm.run([*step[:2], "--overlap", *step[2:]]).stdout
    listed = fake_slurm.command("squeue", "--steps", "--noheader", "--format=%i %N").splitlines()
    assert [f"{job}.0 node1", f"{job}.batch node1"] == listed


def test_the_crash_of_a_node_kills_what_is_on_it(fake_slurm: FakeSlurm) -> None:
    """Slurm misses it after its timeout; the job is put back and starts elsewhere."""
    job = running(fake_slurm, "-N2", "--requeue", tasks=2)
    there = [one for one in fake_slurm.processes(job) if one.node == "node2"]
    fake_slurm.crash("node2")
    assert all(is_gone(one.pid) for one in there)
    assert "RUNNING" == fake_slurm.job(job)["JobState"]
    fake_slurm.wait_for(lambda: fake_slurm.job(job)["Restarts"] == "1", DEADLINE_S, "the requeue")
    fake_slurm.wait_state(job, "RUNNING")
    assert "node[1,3]" == fake_slurm.job(job)["NodeList"]
    assert "down+not_responding" == fake_slurm.node_state("node2")
    fake_slurm.boot("node2")
    assert "idle" == fake_slurm.node_state("node2")


def test_what_runs_on_a_cut_node_lives_until_it_is_healed(fake_slurm: FakeSlurm) -> None:
    """Two starts of the job live at the same time: the reason for fencing."""
    job = running(fake_slurm, "-N2", "--requeue", tasks=2)
    stale = [one for one in fake_slurm.processes(job) if one.node == "node2"]
    fake_slurm.cut("node2")
    fake_slurm.wait_for(lambda: fake_slurm.job(job)["Restarts"] == "1", DEADLINE_S, "the requeue")
    fake_slurm.wait_state(job, "RUNNING")
    assert not any(is_gone(one.pid) for one in stale)
    fake_slurm.heal("node2")
    wait_gone(stale)
    assert "RUNNING" == fake_slurm.job(job)["JobState"]


def test_a_silent_controller_fails_every_command(fake_slurm: FakeSlurm) -> None:
    """As when slurmctld is down; jobs go on."""
    job = running(fake_slurm)
    fake_slurm.silence()
    done = fake_slurm.run(["squeue"])
    assert (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n") == (
        done.returncode,
        done.stderr,
    )
    fake_slurm.speak()
    assert "RUNNING" == fake_slurm.job(job)["JobState"]


def test_time_can_be_moved(fake_slurm: FakeSlurm) -> None:
    """The warning, then the limit; what is left is told by squeue."""
    trap = "trap 'echo warned' USR1; trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    job = fake_slurm.submit("--time=10", "--signal=B:USR1@120", wrap=trap)
    log = Path(fake_slurm.directory, f"slurm-{job}.out")

    def wait_said(*words: str) -> None:
        wait_until(
            lambda: log.exists() and log.read_text().split() == [*words], str(words), timeout_s=DEADLINE_S
        )

    wait_said("ready")
    fake_slurm.advance(5 * 60)
    left = Slurm(fake_slurm.environ).time_left_s(job)
    assert left is not None
    assert 200 < left <= 300
    fake_slurm.advance(3 * 60)
    wait_said("ready", "warned")
    fake_slurm.advance(2 * 60)
    wait_said("ready", "warned", "ended")
    fake_slurm.wait_state(job, "TIMEOUT")
    assert ("TimeLimit", "3:0") == (fake_slurm.job(job)["Reason"], fake_slurm.job(job)["ExitCode"])


def test_nothing_is_left_behind(fake_slurm: FakeSlurm) -> None:
    """The end of the controller is the end of all processes, also those that left their session."""
    job = running(fake_slurm, wrap="setsid sleep 601 & setsid sh -c 'sleep 602 & sleep 603' & srun sleep 600")
    processes = fake_slurm.processes(job)
    for one in processes:
        os.kill(one.pid, signal.SIGCONT)
    fake_slurm.stop()
    wait_gone(processes)
    line = fake_slurm.directory.encode()
    wait_until(
        lambda: not any(line in environ for environ in environs()), "all to be gone", timeout_s=DEADLINE_S
    )


def environs() -> Iterable[bytes]:
    """Yield the environment of each process but this one."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) != os.getpid():
            try:
                yield Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue


def test_it_dies_with_the_program_that_started_it(tmp_path: Path) -> None:
    """Also when that one is killed."""
    program = (
        "import os, sys, signal\n"
        "from hpc_elastic.testing.fake_slurm import FakeSlurm\n"
        "slurm = FakeSlurm(sys.argv[1]); slurm.start()\n"
        "job = slurm.submit(wrap='exec sleep 600')\n"
        "slurm.wait_state(job, 'RUNNING')\n"
        "print(slurm.processes(job)[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "slurm")], capture_output=True, text=True, check=False
    )
    assert -signal.SIGKILL == done.returncode, done.stderr
    wait_until(lambda: is_gone(int(done.stdout)), "the job to be killed", timeout_s=DEADLINE_S)


def test_a_long_directory_name_is_no_problem(tmp_path: Path) -> None:
    """Sockets have short names only."""
    with FakeSlurm(tmp_path / ("long" * 40), Settings(nodes=1)) as slurm:
        assert "idle" == slurm.node_state("node1")


class ActsAfterTheLooks(SystemClock):
    """A clock that does something between the last look of `FakeSlurm.skip` and its wish."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.looks = LOOKS  # acts once it is 0 again
        self._act = act

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        super().sleep(seconds)
        self.looks += 1
        if self.looks == LOOKS:
            self._act()


def test_time_is_not_skipped_over_what_processes_were_told_meanwhile(tmp_path: Path) -> None:
    """A job that is cancelled behind the last look has its KillWait to hear of it."""
    clock = ActsAfterTheLooks(lambda: slurm.command("scancel", job))
    with FakeSlurm(tmp_path, Settings(nodes=1, speed=1, kill_wait=6), clock=clock) as slurm:
        job = slurm.submit(wrap="trap : TERM; while :; do sleep 600 & wait; done")
        slurm.wait_state(job, "RUNNING")
        moved: list[float] = []

        def skip() -> bool:
            clock.looks = 0
            moved.append(slurm.skip())
            return clock.looks == LOOKS

        wait_until(skip, "all processes to wait for something", timeout_s=DEADLINE_S)
        assert moved[-1] == 0
        assert f"signals 15 18 -> {job}.batch@node1" in slurm.log()
        for process in slurm.processes(job):  # spares this test its KillWait
            os.kill(process.pid, signal.SIGKILL)


def test_time_is_not_skipped_once_what_is_waited_for_is_there(tmp_path: Path) -> None:
    """The last process may have brought it about before all were found waiting."""
    asked: list[bool] = []

    def is_there() -> bool:
        asked.append(True)
        return True

    with FakeSlurm(tmp_path, Settings(nodes=1, speed=1)) as slurm:
        job = slurm.submit("--time=1", wrap=SLEEP)
        slurm.wait_state(job, "RUNNING")
        moved: list[float] = []

        def skip() -> bool:
            moved.append(slurm.skip(unless=is_there))
            return bool(asked)

        wait_until(skip, "all processes to wait for something", timeout_s=DEADLINE_S)
        assert moved[-1] == 0
        wait_until(lambda: slurm.skip() > 0, "the time to be skipped", timeout_s=DEADLINE_S)


@pytest.mark.parametrize("fields", [{"tracker": "pgid"}, {"preempt": "SUSPEND"}, {"speed": 0}, {"nodes": 0}])
def test_settings_are_checked_before_anything_starts(tmp_path: Path, fields: dict[str, object]) -> None:
    """The error names the setting."""
    settings = Settings()._replace(**fields)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=next(iter(fields))):
        FakeSlurm(tmp_path, settings)


def test_sinfo_counts_nodes_by_state(fake_slurm: FakeSlurm) -> None:
    """As `hpc-elastic` hints at."""
    fake_slurm.drain("node4")
    shown = fake_slurm.command("sinfo", "-h", "-p", "low", "-o", "%P %D %c %G %t %N").splitlines()
    assert {"low* 3 8 gpu:2 idle node[1-3]", "low* 1 8 gpu:2 drain node4"} == set(shown)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ntasks=0"], 'srun: error: Invalid numeric value "0" for --ntasks.'),
        (["--ntasks=x"], 'srun: error: Invalid numeric value "x" for --ntasks.'),
        (["--wait=x"], "srun: error: could not convert string to float"),
        (["--nodelist=node["], "is not a host list"),
        (["--nodes=0"], "invalid number of nodes: 0"),
    ],
)
def test_a_step_that_is_refused_leaves_the_controller_as_it_was(
    fake_slurm: FakeSlurm, words: list[str], told: str
) -> None:
    """The next srun is served."""
    step = ["srun", f"--jobid={running(fake_slurm)}", "--overlap"]
    refused = fake_slurm.run([*step, *words, "hostname"])
    assert (1, True) == (refused.returncode, told in refused.stderr), refused.stderr
    assert "node1\n" == fake_slurm.run([*step, "hostname"]).stdout


LATE = """
import select, socket, sys
from hpc_elastic.testing.fake_slurm import client

send = socket.send_fds

def send_and_wait(connection, *asked):
    sent = send(connection, *asked)
    gone = select.poll()
    gone.register(connection, select.POLLHUP)
    return sent if gone.poll(30_000) else 0

socket.send_fds = send_and_wait
sys.exit(client.main(sys.argv[1:]))
"""


def test_a_refusal_that_comes_at_once_is_heard(fake_slurm: FakeSlurm) -> None:
    """The controller has answered and hung up before srun goes on."""
    *_, place, _, _ = shlex.split(Path(fake_slurm.bin, "srun").read_text(), comments=True)
    done = fake_slurm.run([sys.executable, "-c", LATE, place, "srun", "--jobid=77", "true"])
    assert (1, "Invalid job id specified") == (done.returncode, done.stderr)
