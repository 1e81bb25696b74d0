"""A run of ``hpc-elastic run`` on this machine, whose workers tell their steps in files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from gpu_check_lib.machine import until

SCRIPTS = Path(__file__).resolve().parents[1]
TRAINING = Path(__file__).with_name("training.py")
PATIENCE = "GPU_CHECK_PATIENCE"  # a variable: how many times longer all limits are
START_S = 60.0 * float(os.environ.get(PATIENCE, "1"))


class CheckError(Exception):
    """A check has failed."""


def all_of(parts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the facts of all parts of a check.

    Raises:
        CheckError: one has failed; all were tried.
    """
    facts: dict[str, Any] = {}
    failed = []
    for name, part in parts.items():
        try:
            facts[name] = part()
        except Exception as error:  # noqa: BLE001 - it is the result
            failed.append(name)
            facts[name] = f"{type(error).__name__}: {error}"
    if failed:
        raise CheckError(f"{', '.join(failed)}: {json.dumps(facts)}")
    return facts


class Run:
    """One agent with its workers.

    Args:
        place: a directory for it.
        flags: of the agent.
        program: the training script and its arguments.
        environ: further variables.
    """

    def __init__(
        self, place: Path, flags: list[str], program: list[str], environ: dict[str, str] | None = None
    ) -> None:
        self.place = place
        place.mkdir(parents=True)
        self.run_dir = place / "run"
        path = os.pathsep.join([str(SCRIPTS.parent), str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(environ or {})}
        argv = [sys.executable, "-m", "hpc_elastic", "run", "--standalone", "--run-dir", str(self.run_dir)]
        with (place / "agent.log").open("wb") as log:
            self.agent = subprocess.Popen(
                [*argv, *flags, *program], cwd=place, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self: Run) -> Run:  # noqa: PYI034 - Self is not there before Python 3.11
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agent.pid, signal.SIGKILL)
        self.agent.wait()

    def told(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return what a rank has told."""
        path = self.place / f"told-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def pids(self) -> list[int]:
        """Return the processes that have been workers."""
        return [one["pid"] for rank in range(2) for one in self.told(rank) if "pid" in one]

    def wait_for(self, count: int, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """Return what a rank has told of one kind, as soon as it is so much.

        Raises:
            CheckError: it takes too long.
        """

        def found() -> list[dict[str, Any]]:
            return [one for one in self.told(rank) if kind in one]

        if until(lambda: len(found()) >= count or self.agent.poll() is not None, START_S) is None:
            raise CheckError(f"no {kind} number {count} of rank {rank} within {START_S:g} s: {self.log()}")
        if len(found()) < count:
            raise CheckError(f"the run ended with {self.agent.poll()}: {self.log()}")
        return found()

    def end(self, limit_s: float = START_S) -> int:
        """Return the exit code of the agent.

        Raises:
            CheckError: it takes too long.
        """
        try:
            return self.agent.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise CheckError(f"the run does not end within {limit_s:g} s: {self.log()}") from None

    def log(self, size: int = 1500) -> str:
        """Return the end of the agent's log."""
        return (self.place / "agent.log").read_text(errors="replace")[-size:]

    def output(self) -> str:
        """Return the agent's log and those of all workers."""
        texts = [self.log(1 << 20)]
        texts += [path.read_text(errors="replace") for path in sorted(self.run_dir.rglob("*.log"))]
        return "\n".join(texts)

    def explained(self) -> str:
        """Return what ``hpc-elastic explain`` says of it."""
        return self.command("explain")

    def command(self, *words: str) -> str:
        """Return what a command prints of it."""
        argv = [sys.executable, "-m", "hpc_elastic", *words, str(self.run_dir)]
        env = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env=env).stdout
