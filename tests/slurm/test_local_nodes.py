"""``submit --local``: real agents as nodes, through the rendered script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Decision, Drained, Requeued, RoundFormed
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.local.nodes import Screen, run_local
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.testing.waiting import wait_until

WORKER = """
import os, sys, time
from hpc_elastic import worker
saved = worker.latest_checkpoint()
step = saved.step if saved else 0
print("starts at", step, flush=True)
while step < int(sys.argv[1]):
    time.sleep(0.02)
    step += 1
    worker.tick(step)
    if worker.should_stop():
        worker.checkpoint_saved(step)
        sys.exit(0)
    print("goes on", flush=True)  # from here on it stops when it is asked to
print("finished", flush=True)
"""
LONG = 100_000


def test_a_name_acts_on_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A mark of the direction of text, or an escape, is shown as one."""
    (tmp_path / "log").touch()
    Screen(str(tmp_path / "log"), SystemClock()).say("ü\u202egpj\x1b runs here\nas local-1")
    assert "ü\\u202egpj\\x1b runs here\nas local-1\n" == capfd.readouterr().out


class LocalRun:
    """A foreground run of its own process, in an empty directory."""

    def __init__(self, home: Path, steps: int, *flags: str) -> None:
        self.paths = RunPaths(home / "run")
        script = home / "train.py"
        script.write_text(WORKER)
        argv = [
            sys.executable,
            "-m",
            "hpc_elastic",
            "submit",
            "--allow-local-run-dir",
            f"--run-dir={self.paths.root}",
        ]
        argv += [*flags, "--", sys.executable, str(script), str(steps)]
        self.output = home / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                argv, cwd=home, stdout=output, stderr=output, start_new_session=True
            )

    def wait_for_round(self, number: int, workers: int = 1) -> None:
        """Wait until so many workers of a round have made a step."""
        logs = Path(self.paths.attempt_logs(number))
        wait_until(
            lambda: sum("goes on" in log.read_text() for log in logs.glob("*/stdout.log")) >= workers,
            f"round {number}",
            timeout_s=120,
        )

    def agent(self, node: str) -> int:
        """Return the process id of the agent of a node."""
        found: list[str] = []

        def is_listed() -> bool:  # a listing taken during a rename may show neither name
            found[:] = [name for name in os.listdir(self.paths.members) if name.startswith(f"{node}.")]
            return bool(found)

        wait_until(is_listed, f"the agent of {node} is listed")
        return int(found[0].split("+")[0].rpartition(".")[2])

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was printed."""
        return self.process.wait(60), self.output.read_text()


def test_the_script_of_a_run_here_is_looked_up_nowhere_else(tmp_path: Path) -> None:
    """Whoever can rename a directory above the run's could put a script of his own there."""
    job = tmp_path / "job.toml"
    job.write_text('command = ["true"]\nsetup = ["echo from $BASH_SOURCE; exit 3"]\n')
    root = tmp_path / "run"
    argv = [sys.executable, "-m", "hpc_elastic", "submit", str(job), f"--run-dir={root}", "--local=1"]
    done = subprocess.run(
        [*argv, "--allow-local-run-dir"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    (said,) = {line for line in done.stdout.splitlines() if line.startswith("from ")}
    assert said.startswith(f"from {gettempdir()}/hpc_elastic-local-")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[LocalRun]]:
    """Return a list of runs that are ended with the test."""
    runs: list[LocalRun] = []
    yield runs
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


def start(started: list[LocalRun], home: Path, steps: int, *flags: str) -> LocalRun:
    """Start a run that ends with the test."""
    started.append(LocalRun(home, steps, *flags))
    return started[-1]


def test_a_run_on_two_nodes_is_done(tmp_path: Path, started: list[LocalRun]) -> None:
    """It prints what submit prints, where the logs are, and the output of each node's first worker."""
    run = start(started, tmp_path, 3, "--local=2", "--workers-per-node=2")
    code, output = run.finish()
    assert 0 == code, output
    shown = {line for line in output.splitlines() if line.endswith("] finished")}
    assert {"[rank 0] finished", "[rank 2] finished"} == shown
    logs = sorted(Path(run.paths.attempt_logs(1)).glob("*/stdout.log"))
    assert 4 * ["starts at 0"] == [log.read_text().partition("\n")[0] for log in logs]
    formed = next(record.entry for record in read_records(run.paths) if isinstance(record.entry, RoundFormed))
    assert [("local1", 2), ("local2", 2)] == [(member.node, member.slots) for member in formed.members]
    assert f"hpc-elastic logs -f {run.paths.root}" in output
    assert run.paths.logs in output


def test_who_chooses_the_output_sees_that(tmp_path: Path, started: list[LocalRun]) -> None:
    """With --redirects all goes to the files alone, as on Slurm."""
    code, output = start(started, tmp_path, 1, "--local=1", "--redirects=3").finish()
    assert 0 == code, output
    assert "finished" not in output


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["mkdir", "mkfifo", "ln -s /dev/full"])
def test_an_agent_that_cannot_begin_is_not_waited_for(
    tmp_path: Path, started: list[LocalRun], damage: str
) -> None:
    """Its log cannot be written: the epilog of its task tells the others, long before the join timeout."""
    place = '"$HPC_ELASTIC_RUN_DIR/logs/agents'
    setup = f'mkdir -p {place}"; [ -e {place}/local2.log" ] || {damage} {place}/local2.log"'
    run = start(started, tmp_path, 3, "--local=2", "--workers-per-node=1", f"--setup={setup}")
    code, output = run.finish()
    assert code not in (0, None), output
    assert "the agent's log" in output
    assert "local2.log cannot be written on" in output
    assert "1 of 2 nodes joined, and no other agent runs; missing: local2" in output


def test_the_loss_of_a_node_is_survived(tmp_path: Path, started: list[LocalRun]) -> None:
    """The others go on; srun's code does not decide."""
    run = start(started, tmp_path, 120, "--local=2", "--nodes=1:2", "--heartbeat-interval=0.2", "--lease=2")
    run.wait_for_round(1)
    os.kill(run.agent("local2"), signal.SIGKILL)
    code, output = run.finish()
    assert 0 == code, output
    assert 1 == read_state(run.paths).counts.get(Cause.NODE_LOSS)


def test_a_preempted_run_is_requeued_and_goes_on(tmp_path: Path, started: list[LocalRun]) -> None:
    """Exit code 75 of the script starts it again with a restart count."""
    run = start(started, tmp_path, 100, "--local=2")
    run.wait_for_round(1)
    os.kill(run.agent("local1"), signal.SIGTERM)
    code, output = run.finish()
    kinds = [type(record.entry) for record in read_records(run.paths)]
    assert 0 == code, output
    assert [1, 1] == [kinds.count(Drained), kinds.count(Requeued)]
    assert 1 == read_state(run.paths).epoch.restart


def test_ctrl_c_saves_and_stops(tmp_path: Path, started: list[LocalRun]) -> None:
    """The run is stopped, not requeued."""
    run = start(started, tmp_path, LONG, "--local=2")
    run.wait_for_round(1)
    os.kill(run.process.pid, signal.SIGINT)
    code, output = run.finish()
    state = read_state(run.paths)
    assert 0 == code, output
    assert state.ending is not None
    assert Decision.STOPPED == state.ending.decision
    assert state.drained is not None
    assert state.drained.step is not None


def test_a_second_ctrl_c_ends_everything(tmp_path: Path, started: list[LocalRun]) -> None:
    """Nothing is left running and the run is recorded as cancelled."""
    run = start(started, tmp_path, LONG, "--local=2")
    run.wait_for_round(1)
    agents = [run.agent("local1"), run.agent("local2")]
    os.kill(run.process.pid, signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in run.output.read_text(), "the hint")
    os.kill(run.process.pid, signal.SIGINT)
    code, output = run.finish()
    ending = read_state(run.paths).ending
    assert ending is not None
    assert (code, ending.decision) in [(130, Decision.CANCELLED), (0, Decision.STOPPED)], output
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in agents), "agents are gone")


def test_a_terminated_run_drains_and_can_be_resumed(tmp_path: Path, started: list[LocalRun]) -> None:
    """Whoever ends the runner does not want another start of it."""
    run = start(started, tmp_path, LONG, "--local=1")
    run.wait_for_round(1)
    os.kill(run.process.pid, signal.SIGTERM)
    code, output = run.finish()
    assert 75 == code, output
    assert "asked to end by SIGTERM" in output
    state = read_state(run.paths)
    assert state.drained is not None
    ended = f"ended by SIGTERM; checkpoint of step {state.drained.step}"
    assert f"{ended}; to go on: hpc-elastic submit --resume {run.paths.root}" in output
    assert "Slurm" not in output
    assert 0 == state.epoch.restart
    assert [] == [record for record in read_records(run.paths) if isinstance(record.entry, Requeued)]
    assert state.ending is not None
    assert ended == state.ending.reason  # what `status` shows
    assert ExitCode.REQUEUE == state.ending.exit_code


def test_a_terminated_run_whose_directory_is_gone_leaves(tmp_path: Path, started: list[LocalRun]) -> None:
    """Nothing is started again under the old name, and nobody waits for what does not come back."""
    run = start(started, tmp_path, LONG, "--local=2", "--stop-timeout=2")
    run.wait_for_round(1)
    away = f"{run.paths.root}.away"
    os.rename(run.paths.root, away)
    os.kill(run.process.pid, signal.SIGTERM)
    code, output = run.finish()
    log = next(Path(away).glob("slurm-*.out")).read_text()
    assert ExitCode.FAILED == code, output
    assert f"run directory {run.paths.root}: it is gone" in log
    assert not os.path.exists(run.paths.root)


def test_a_failed_run_whose_directory_cannot_be_read_has_the_code_of_its_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after an exchange of the directory: `finish` has told why, and nothing is added to that."""
    paths = RunPaths(tmp_path / "run")
    for directory in (paths.root, *paths.directories()):
        os.mkdir(directory)
    script = f"cd {tmp_path} && mv run away && touch run && echo it is said; exit 76"
    spec = JobSpec(command=["true"], name="train")
    assert 76 == run_local(SubmitRequest(spec, paths, "train-1", "token", 0, script), nodes=1)
    said = capfd.readouterr()
    assert f"hpc_elastic: to go on: hpc-elastic submit --resume {paths.root}\n" in said.out
    assert "" == said.err


def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path, started: list[LocalRun]) -> None:
    """Agents follow the script, the script follows the runner."""
    run = start(started, tmp_path, LONG, "--local=2")
    run.wait_for_round(1)
    agents = [run.agent("local1"), run.agent("local2")]
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in agents), "agents are gone")
