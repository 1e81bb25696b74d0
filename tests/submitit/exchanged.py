"""A plug-in of pytest with which submitit's own tests of its local executor get ours in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core import plugins
from submitit.local import local

_A_PROCESS = "looks at the process of a job, and a run here has several"
_SECONDS = "a time limit of some seconds is for submitit's local executor alone"
_REPOSITORY = "needs submitit's own repository"
_FOLDER = "Slurm takes no folder with such a name"

NOT_FOR_US = {
    "test_local_job": _A_PROCESS,
    "test_killed": _A_PROCESS,
    "test_cancel": _A_PROCESS,
    "test_get_first_task_error": "names the failure that came first, not that of the lowest rank",
    "test_as_completed": "takes it that two of three runs have started and ended within 1.5 s",
    "test_long_running_job": "takes two minutes",
    "test_make_subprocess": _A_PROCESS,
    "test_requeuing": _SECONDS,
    "test_custom_checkpoint": _SECONDS,
    "test_snapshot": _REPOSITORY,
    "test_snapshot_excludes": _REPOSITORY,
    "test_job_use_snapshot_cwd": _REPOSITORY,
    "test_job_use_snapshot_modules": _REPOSITORY,
    r"test_weird_dir[a\\=0]": _FOLDER,
    r"test_weird_dir[a\\=]": _FOLDER,
    r"test_weird_dir[a\n0]": _FOLDER,
}
"""Tests that are left out, and why; docs/reference/submitit.md says what differs for users."""


def exchanged(folder: Path | str, **_of_its_own: Any) -> submitit.AutoExecutor:
    """Return our executor, whose runs are on this machine, where submitit's local one is asked for."""
    executor = submitit.AutoExecutor(folder, cluster="hpcelastic", hpcelastic_local=1)
    executor.update_parameters(tasks_per_node=1)
    return executor


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not for us."""
    config.hook.pytest_deselected(items=[item for item in items if item.name in NOT_FOR_US])
    items[:] = [item for item in items if item.name not in NOT_FOR_US]


plugins.get_executors()  # is kept, and needs submitit's own
vars(local).update(LocalExecutor=exchanged)
