"""Runs of an example on two nodes that this machine plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, RoundFormed
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.testing.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 250.0
STEPS = 40
SAVE_EVERY = 2
STEP_TIME_S = 0.7153  # of slow steps; nothing else sleeps so long
# Steps are slow until the run has been stopped: it cannot be over before, and the rest costs nothing. In a
# later start one rank is killed in the step whose number, counted from that start, the file names.
GATE = f"""
import os, signal, time
_sleep, _steps = time.sleep, 0
def sleep(seconds):
    global _steps
    if seconds != {STEP_TIME_S}:
        return _sleep(seconds)
    _steps += 1
    if os.path.exists(os.environ["SLOW_WHILE"]):
        return _sleep(seconds)
    place = os.environ["SLOW_WHILE"] + "-killed-in"
    if os.environ["RANK"] == "1" and os.path.exists(place) and int(open(place).read()) == _steps:
        os.unlink(place)
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep = sleep
"""


class LocalRun:
    """One run; starts of it follow one another.

    Args:
        directory: the run directory.
        example: which one.
    """

    def __init__(self, directory: Path, example: str) -> None:
        self.directory = directory
        self.paths = RunPaths(directory)
        self._script = REPOSITORY / "examples" / example / "train.py"
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, nodes: int, workers: int, *options: str, flags: tuple[str, ...] = (), restarts: int = 0
    ) -> LocalRun:
        """Start the run for the first time."""
        shape = ("--local", str(nodes), "--nodes", f"1:{nodes}", "--workers-per-node", str(workers))
        where = ("--allow-local-run-dir", "--run-dir", str(self.directory))
        budget = ("--max-restarts", str(restarts))
        sizes = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
        worker = (sys.executable, str(self._script), *sizes, *options)
        return self._submit(*shape, *where, *budget, *self._slow_at_first(), *flags, "--", *worker)

    def _slow_at_first(self) -> tuple[str, ...]:
        site = self.directory.with_name(f"{self.directory.name}-site")
        site.mkdir()
        (site / "sitecustomize.py").write_text(GATE)
        self._gate = site / "slow"
        self._gate.touch()
        given = ("OMP_NUM_THREADS=1", f"PYTHONPATH={site}", f"SLOW_WHILE={self._gate}")
        return tuple(word for pair in given for word in ("--env", pair))

    def resume(self, nodes: int) -> LocalRun:
        """Take the run up again."""
        return self._submit("--resume", str(self.directory), "--local", str(nodes))

    def _submit(self, *words: str) -> LocalRun:
        argv = [sys.executable, "-m", "hpc_elastic", "submit", *words]
        self._process = subprocess.Popen(argv, cwd=self.directory.parent, start_new_session=True)
        return self

    def stop(self) -> int:
        """Ask for a stop once a checkpoint is complete; return the step that was saved."""
        wait_until(lambda: checkpoints.latest(self.paths) is not None, "a checkpoint", timeout_s=LIMIT_S)
        self.ask_to_stop()
        return self.stopped()

    def ask_to_stop(self) -> None:
        """Ask for a stop now."""
        asked = DrainRequested(Cause.STOP, "test", AfterDrain.LEAVE, "a test")
        open_log(self.paths, "test").commit(lambda _: asked)

    def stopped(self) -> int:
        """Wait for the end of a start that was asked to stop; return the step that was saved."""
        self.wait()
        self._gate.unlink()
        saved = checkpoints.latest(self.paths)
        assert saved is not None
        return saved.step

    def kill_in_step(self, number: int) -> None:
        """Have rank 1 of the next start be killed in the middle of a step, counted from the start."""
        self._gate.with_name(f"{self._gate.name}-killed-in").write_text(str(number))

    def wait(self) -> int:
        """Wait for the end of a start and return its exit code."""
        assert self._process is not None
        return self._process.wait(LIMIT_S)

    def end(self) -> None:
        """Kill what is left."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def state(self) -> RunState:
        """Return the state of the run."""
        return read_state(self.paths)

    def rounds(self) -> list[RoundFormed]:
        """Return its rounds."""
        return [found.entry for found in read_records(self.paths) if isinstance(found.entry, RoundFormed)]

    def kinds(self) -> set[type]:
        """Return the kinds of its records."""
        return {type(found.entry) for found in read_records(self.paths)}

    def result(self) -> dict[str, Any] | None:
        """Return what the training has written, if it is complete."""
        path = self.directory / "result.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def agents_said(self) -> str:
        """Return what all agents have told."""
        return "".join(path.read_text() for path in Path(self.paths.agent_logs).glob("*.log"))

    def printed(self) -> str:
        """Return what all workers have printed."""
        return "".join(path.read_text() for path in (self.directory / "logs").rglob("std*.log"))
