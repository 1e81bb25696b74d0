"""The run that is meant by a word on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli.run_argument import find_run
from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RUNS_FOLDER, RunPaths
from hpc_elastic.slurm import links, submissions
from hpc_elastic.slurm.links import Link
from hpc_elastic.slurm.submissions import Submission

NAME = "toy-20261121-093000-77"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run below ./hpc_elastic_runs."""
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(f"{RUNS_FOLDER}/{NAME}")
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": NAME, "name": "toy", "user": "me"}))
    submissions.record(paths, Submission(0, "token", "4711", "2026-11-21 10:00:00"))
    return paths


@pytest.mark.parametrize("word", ["4711", "4712", "4712_3"])
def test_a_run_is_found_by_any_job_of_its_chain(paths: RunPaths, word: str) -> None:
    """Also by one that still waits: squeue shows its id."""
    links.record(paths, Link(0, 1, "other", "4712"))
    assert NAME == find_run(word).name


@pytest.mark.parametrize("word", ["4720", "4720_0"])
def test_a_run_is_found_by_an_array_that_was_added(paths: RunPaths, word: str) -> None:
    """By its batch logs: `scale` has queued it, which is no submission."""
    Path(paths.root, "slurm-4720_0.out").write_text("")
    assert NAME == find_run(word).name


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("toy-20261121-093000-78", f"fix: perhaps {RUNS_FOLDER}/{NAME}"),
        ("9999", "fix: hpc-elastic status shows those that are there"),
    ],
)
def test_only_a_name_that_is_near_is_proposed(paths: RunPaths, word: str, fix: str) -> None:
    """Any other run would be a guess."""
    with pytest.raises(RunDirError, match=fix):
        find_run(word)


def test_without_any_run_the_directory_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another directory than the one that submit ran in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirError, match="fix: give the directory that submit printed"):
        find_run("9999")
