"""``--tracker-ids`` puts the names of trackers into the environment of workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("WANDB_RUN_ID", "WANDB_RESUME", "COMET_EXPERIMENT_KEY")
WORKER = f"import json, os; print(json.dumps([os.environ.get(name) for name in {NAMES}]))"


def told(directory: Path, *flags: str, **given: str) -> list[str | None]:
    """Return what a worker has in its environment."""
    environ = {name: text for name, text in os.environ.items() if name not in NAMES}
    argv = [sys.executable, "-m", "hpc_elastic", "run", "--standalone", "--run-dir", str(directory), *flags]
    done = subprocess.run(
        [*argv, "--no-python", sys.executable, "-c", WORKER],
        env={**environ, **given},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    found: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_only_on_request(tmp_path: Path) -> None:
    """Nobody's experiments are joined unasked."""
    assert [None, None, None] == told(tmp_path / "run")


@pytest.mark.slow
def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    """The rest is of the run's own name."""
    mine, resume, key = told(tmp_path / "run", "--tracker-ids", WANDB_RUN_ID="mine")
    assert ("mine", "allow") == (mine, resume)
    assert key
    assert len(key) == 32
