"""What was stored of a job, read again. What is wrong with it is told as `submit --resume` tells it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import plan, read_template
from hpc_elastic.slurm.submit.run_dir import read_functions, read_request, read_script, read_spec


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
    with pytest.raises(RunDirError, match="a value that this version does not take: wings") as error:
        read_spec(run_paths, "9.9")
    assert "use hpc_elastic 9.9 for this run" in str(error.value)


def submitted(folder: Path) -> RunPaths:
    """Make a run directory as `submit` does."""
    spec = JobSpec(command="true", name="train", run_dir=str(folder / "run"))
    wanted = plan(spec, read_template(), now_s=0)
    run_dir.create(wanted, now_s=0)
    return wanted.paths


def test_the_functions_of_a_script_are_stored_beside_it(tmp_path: Path) -> None:
    """They are read again with it."""
    assert read_template().functions == read_request(submitted(tmp_path)).functions


def test_functions_that_were_changed_are_refused_before_anything_is_queued(tmp_path: Path) -> None:
    """The job would end at once."""
    paths = submitted(tmp_path)
    with Path(paths.functions).open("a") as file:
        file.write("# mine\n")
    with pytest.raises(RunDirError, match=r"batch\.sh was changed: it is not the file that .*job\.sbatch"):
        read_request(paths)
    Path(paths.functions).unlink()
    with pytest.raises(RunDirError, match=r"batch\.sh cannot be read: No such file") as error:
        read_request(paths)
    assert "bring the file back" in str(error.value)


def test_a_script_of_an_older_version_needs_no_functions(tmp_path: Path) -> None:
    """It has all in itself, and is queued as it is."""
    paths = submitted(tmp_path)
    Path(paths.functions).unlink()
    old = f"#!/bin/bash\nexport HPC_ELASTIC_RUN_DIR={paths.root}\nsrun true\n"
    Path(paths.script).write_text(old)
    assert (old, "") == (read_request(paths).script, read_functions(paths, old))
