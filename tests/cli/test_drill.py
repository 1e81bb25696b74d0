"""``hpc-elastic drill`` on real runs of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Cause, Note, RoundEnded
from hpc_elastic.rendezvous.run_log import read_records, read_state
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.test_local_nodes import LONG, LocalRun, start, started

__all__ = ["started"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TWO = ("--local", "2", "--workers-per-node", "2", "--max-restarts", "3")


@pytest.fixture
def run(tmp_path: Path, started: list[LocalRun]) -> Iterator[LocalRun]:
    """Return a run on two pretended nodes whose workers run."""
    run = start(started, tmp_path, LONG, *TWO)
    run.wait_for_round(1)
    yield run
    app.run(["cancel", run.paths.root])


def drill(run: LocalRun, *words: str) -> tuple[int, str]:
    """Drill a run; return the exit code and what was printed."""
    argv = [sys.executable, "-m", "hpc_elastic", "drill", run.paths.root, *words]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False
    )
    return done.returncode, done.stdout + done.stderr


def phases(text: str) -> list[str]:
    """Return the names of what happened, in order."""
    return re.findall(r"^ +\d+\.\d\d s  (.+?)  ", text, re.MULTILINE)


def test_a_worker_and_then_the_whole_job_are_drilled(run: LocalRun) -> None:
    """A killed worker costs a restart; a preemption is saved, requeued, and loses no step."""
    code, text = drill(run, "--crash", "--rank", "1", "--yes")
    assert (0, ["noticed", "running again"]) == (code, phases(text)), text
    assert "rank 1 on local1 is killed" in text
    assert "round 1 ended: a worker failed (local1)" in text
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
    (note,) = [r.entry for r in read_records(run.paths) if isinstance(r.entry, Note)]
    assert ("drill: the agent and the workers on local2 are killed", "local2") == (note.text, note.node)


def test_a_hang_is_drilled(tmp_path: Path, started: list[LocalRun]) -> None:
    """A worker that makes no further step is found out, and the report says so."""
    run = start(started, tmp_path, LONG, *TWO, "--hang-timeout", "3s")
    run.wait_for_round(1)
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
    assert "nobody has noticed" in text
    assert "a hang is found after half an hour at the earliest" in text
    error = Path(run.paths.attempt_logs(1), "0", "stderr.log")
    wait_until(lambda: "hangs after step" in error.read_text(), "the worker says so", timeout_s=30)
    code, text = drill(run, "--preempt", "--yes")
    assert 0 == code, text
    assert "0 steps computed again" in text


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
