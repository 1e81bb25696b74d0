"""Stand-ins for Slurm's programs, as real programs on PATH, and recorded scripts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``pytest tests/slurm --record``."""
    parser.addoption("--record", action="store_true", help="write the golden job scripts anew")


class StandIn:
    """A Slurm made of one small program, which keeps its jobs and calls in a directory."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.bin = folder / "bin"
        self.state.mkdir(parents=True)
        self.bin.mkdir()
        for name in PROGRAMS:
            program = self.bin / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE}/slurm_programs.py" {name} "$@"\n')
            program.chmod(0o755)

    def calls(self, program: str) -> list[dict[str, Any]]:
        """Return the calls of a program: argv, env and stdin."""
        path = self.state / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["program"] == program]

    def submissions(self) -> list[dict[str, Any]]:
        """Return the calls of sbatch that were meant to queue a job."""
        unwanted = ({"--help"}, {"--test-only"})
        return [
            call for call in self.calls("sbatch") if not any(words & {*call["argv"]} for words in unwanted)
        ]

    def jobs(self) -> dict[str, dict[str, str]]:
        """Return the jobs by id."""
        path = self.state / "jobs.json"
        jobs: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        return jobs

    def set_state(self, job_id: str, state: str) -> None:
        """Change the state of a job."""
        jobs = self.jobs()
        jobs[job_id]["JobState"] = state
        (self.state / "jobs.json").write_text(json.dumps(jobs))

    def behave(self, *kinds: str) -> None:
        """Say how the next calls of sbatch go.

        Args:
            kinds: one per call: ``ok``, ``refuse``, ``refuse-test``, ``hang`` (no answer, nothing
                queued), ``queue-hang`` (queued, but no answer), ``socket-timeout`` (queued, but sbatch
                says it timed out), ``lost`` (the same, not queued), ``twin`` (queued twice, as when an
                earlier call arrived after all).
        """
        (self.state / "behaviour.json").write_text(json.dumps(kinds))


@pytest.fixture
def slurm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Put a stand-in for Slurm first on PATH."""
    stand_in = StandIn(tmp_path / "slurm")
    monkeypatch.setenv("STAND_IN_SLURM", str(stand_in.state))
    monkeypatch.setenv("PATH", f"{stand_in.bin}:{os.environ['PATH']}")
    return stand_in


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a PATH on which there is no Slurm, but a Python, a shell and its programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python3", "bash", "sh", "env", "dd", "sha256sum", "stat", "cat", "rm", "sleep"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory with a training script."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder
