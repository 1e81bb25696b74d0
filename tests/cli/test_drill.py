"""``hpc-elastic drill`` on real runs of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Cause, DrillBegan, DrillCalledOff, RoundEnded
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.drill import on_node
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.test_local_nodes import LONG, LocalRun, start, started

__all__ = ["started"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TWO = ("--local", "2", "--workers-per-node", "2", "--max-restarts", "3")


@pytest.fixture
def run(tmp_path: Path, started: list[LocalRun]) -> Iterator[LocalRun]:
    """Return a run on two pretended nodes whose workers have all made a step."""
    run = start(started, tmp_path, LONG, *TWO)
    run.wait_for_round(1, workers=4)
    yield run
    app.run(["cancel", run.paths.root])


def drill(run: LocalRun, *words: str) -> tuple[int, str]:
    """Drill a run; return the exit code and what was printed."""
    argv = [sys.executable, "-m", "hpc_elastic", "drill", run.paths.root, *words]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False
    )
    return done.returncode, done.stdout + done.stderr


def told(run: LocalRun) -> list[DrillBegan | DrillCalledOff]:
    """Return what the records tell of drills."""
    entries = (record.entry for record in read_records(run.paths))
    return [entry for entry in entries if isinstance(entry, DrillBegan | DrillCalledOff)]


def phases(text: str) -> list[str]:
    """Return the names of what happened, in order."""
    return re.findall(r"^ +\d+\.\d\d s  (.+?)  ", text, re.MULTILINE)


def test_a_worker_and_then_the_whole_job_are_drilled(run: LocalRun) -> None:
    """A killed worker costs a restart; a preemption is saved, requeued, and loses no step."""
    code, text = drill(run, "--crash", "--rank", "1", "--yes")
    assert (0, ["noticed", "running again"]) == (code, phases(text)), text
    assert "rank 1 on local1 is killed" in text
    assert "round 1 ended: a worker failed (local1; rank 1, signal 9)" in text
    run.wait_for_round(2)
    code, text = drill(run, "--preempt", "--yes")
    order = ["noticed", "workers told", "saved", "stopped", "requeued", "started again", "running again"]
    assert (0, sorted(order)) == (code, sorted(phases(text))), text
    assert "0 steps computed again" in text
    ended = [r.entry for r in read_records(run.paths) if isinstance(r.entry, RoundEnded)]
    assert [Cause.CRASH] == [entry.cause for entry in ended]
    assert 1 == read_state(run.paths).requeues


def test_a_node_is_drilled(run: LocalRun) -> None:
    """All of the chosen node is killed; the report says whose loss was noticed and that the run came back."""
    agent = run.agent("local2")
    code, text = drill(run, "--node-loss", "--node", "local2", "--yes")
    assert 0 == code, text
    assert "the agent and the workers on local2 are killed" in text
    assert "a node was lost (local2)" in text
    assert "the run came back" in text
    assert not os.path.exists(f"/proc/{agent}")
    (note,) = told(run)
    assert isinstance(note, DrillBegan)
    assert ("drill: the agent and the workers on local2 are killed (round 1)", "local2") == (
        note.detail,
        note.node,
    )


def test_a_hang_is_drilled(tmp_path: Path, started: list[LocalRun]) -> None:
    """A worker that makes no further step is found out, and the report says so."""
    run = start(started, tmp_path, LONG, *TWO, "--hang-timeout", "3s")
    run.wait_for_round(1, workers=4)
    code, text = drill(run, "--hang", "--rank", "2", "--yes")
    assert 0 == code, text
    assert "rank 2 on local2 makes no further step" in text
    assert "warning" not in text
    (ended,) = [r.entry for r in read_records(run.paths) if isinstance(r.entry, RoundEnded)]
    assert Cause.HANG is ended.cause
    app.run(["cancel", run.paths.root])


def test_a_run_that_does_not_come_back_is_told(run: LocalRun) -> None:
    """Where nobody notices within the time, the exit code is 1, and the worker goes on."""
    code, text = drill(run, "--hang", "--rank", "0", "--wait", "1s", "--yes")
    assert (1, []) == (code, phases(text)), text
    assert "no agent has noticed it" in text
    assert "rank 0 on local1 goes on" in text
    began, over = told(run)
    assert (DrillCalledOff, began.id) == (
        type(over),
        over.id,
    )  # what happens to the node from now on is no drill
    assert "a hang is found after half an hour at the earliest" in text
    error = Path(run.paths.attempt_logs(1), "0", "stderr.log")
    wait_until(lambda: "hangs after step" in error.read_text(), "the worker says so", timeout_s=120)
    code, text = drill(run, "--preempt", "--yes")
    assert 0 == code, text
    assert "0 steps computed again" in text


def test_a_crash_while_a_hang_is_waited_for_is_not_the_drills(run: LocalRun) -> None:
    """Another worker is killed meanwhile: it is named, and the drill has tried nothing."""
    argv = [sys.executable, "-m", "hpc_elastic", "drill", run.paths.root, "--hang", "--rank", "0", "--yes"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as drilling:
        assert drilling.stdout is not None
        assert "done: rank 0 on local1 makes no further step\n" == drilling.stdout.readline()
        on_node.do(run.paths.root, run.agent("local2"), on_node.Deed.CRASH, 3)
        text = drilling.stdout.read()
        assert 1 == drilling.wait(60)
    told = "round 1 ended: a worker failed (local2; rank 3, signal 9)"
    assert f"not the drill  {told}\n" in text
    assert f"another event came before an agent noticed the drill: {told}; try the drill again" in text


class Closing(io.StringIO):
    """An output at which the terminal is closed as soon as the drill says that it has struck."""

    def write(self, text: str) -> int:
        """Take a text, and send what a shell and a session that end send."""
        if text.startswith("done: "):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


def test_a_worker_goes_on_when_nobody_follows_the_drill_any_more(run: LocalRun) -> None:
    """The terminal is closed as soon as the worker hangs: the drill does not leave the run hanging."""
    before = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    with contextlib.redirect_stdout(Closing()) as said:
        assert 1 == app.run(["drill", run.paths.root, "--hang", "--rank", "0", "--yes"])
    assert "rank 0 on local1 goes on" in said.getvalue()
    assert before == [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    assert [DrillBegan, DrillCalledOff] == [type(entry) for entry in told(run)]


def test_a_drill_that_strikes_nothing_leaves_no_trace(tmp_path: Path, started: list[LocalRun]) -> None:
    """The worker is gone when it is to be killed: the note is called off, so that its end is no drill's."""
    run = start(started, tmp_path, LONG, "--local", "1", "--workers-per-node", "2", "--max-restarts", "3")
    run.wait_for_round(1)
    agent = run.agent("local1")
    os.kill(agent, signal.SIGSTOP)  # it does not see its worker end
    (worker,) = on_node.do(run.paths.root, agent, on_node.Deed.CRASH, 1)["pids"]
    status = Path(f"/proc/{worker}/status")
    wait_until(lambda: "State:\tZ" in status.read_text(), "the worker to end", timeout_s=120)
    code, text = drill(run, "--crash", "--rank", "1", "--yes")
    assert ExitCode.USAGE == code
    assert (
        "nothing was struck, and the run goes on as before:\nerror: --rank: there is no rank 1 here" in text
    )
    began, off = told(run)
    assert (DrillCalledOff, began.id) == (type(off), off.id)
    assert off.detail.startswith("the drill was called off, nothing was struck: --rank: there is no rank 1")
    os.kill(agent, signal.SIGCONT)
    run.wait_for_round(2)
    app.run(["cancel", run.paths.root])


def test_a_round_that_ends_while_its_owner_is_asked_is_left_alone(run: LocalRun) -> None:
    """What was asked about is not there any more."""
    asks, answers = os.openpty()
    argv = [sys.executable, "-m", "hpc_elastic", "drill", run.paths.root, "--crash"]
    with subprocess.Popen(argv, stdin=answers, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as drilling:
        assert drilling.stdout is not None
        assert b"rank 3 on local2 is killed" in drilling.stdout.readline()
        on_node.do(run.paths.root, run.agent("local1"), on_node.Deed.CRASH, 0)
        wait_until(lambda: read_state(run.paths).rounds == 2, "the next round", timeout_s=120)
        os.write(asks, b"y\n")
        assert b"round 1 ended while you were asked; nothing was struck" in drilling.stdout.read()
        assert ExitCode.USAGE == drilling.wait(60)
    os.close(asks)
    os.close(answers)
    assert [] == told(run)


def test_what_cannot_be_drilled_is_refused(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake gets one error that says what to do; nothing happens to the run."""
    root = run.paths.root
    refused = {
        (): "no drill is chosen",
        ("--crash", "--hang"): "2 drills are chosen",
        ("--requeue", "--yes"): "has no queue",
        ("--crash", "--rank", "4", "--yes"): "rank 4 is not in round 1",
        ("--crash", "--node", "local3", "--yes"): "node 'local3' is not in round 1",
        ("--crash", "--wait", "soon", "--yes"): "soon",
    }
    for words, told in refused.items():
        assert ExitCode.USAGE == app.run(["drill", root, *words])
        error = capsys.readouterr().err
        assert told in error
        assert "fix: " in error
    code, text = drill(run, "--crash")
    assert (2, True) == (code, "give --yes" in text), text
    assert [] == [r.entry for r in read_records(run.paths) if isinstance(r.entry, RoundEnded)]
