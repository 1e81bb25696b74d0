"""What was stored of a job, read again. What is wrong with it is told as `submit --resume` tells it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.submit.stored_job import read_script, read_spec


def test_a_file_server_that_is_away_is_no_damage(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finish` tries again; a run that it took for damaged would have failed for good."""
    for path in (run_paths.job, run_paths.script):
        Path(path).write_text("{}")

    def fail(*_words: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(StoreError, match=r"job\.json cannot be read now"):
        read_spec(run_paths, None)
    with pytest.raises(StoreError, match=r"job\.sbatch cannot be read now"):
        read_script(run_paths)


def test_what_is_gone_stays_gone(run_paths: RunPaths) -> None:
    """Trying again would bring nothing."""
    with pytest.raises(RunDirError, match=r"job\.json cannot be read: No such file"):
        read_spec(run_paths, None)
    with pytest.raises(RunDirError, match=r"job\.sbatch cannot be read: No such file"):
        read_script(run_paths)


def test_the_spec_of_another_version_names_it(run_paths: RunPaths) -> None:
    """It can be mended, or that version be used."""
    Path(run_paths.job).write_text('{"spec": {"command": ["true"], "nodes": 2}}')
    assert ("true",) == tuple(read_spec(run_paths, None).command)
    Path(run_paths.job).write_text('{"spec": {"command": ["true"], "wings": 2}}')
    with pytest.raises(RunDirError, match="what this version does not take") as error:
        read_spec(run_paths, "9.9")
    assert "use hpc_elastic 9.9 for this run" in str(error.value)
