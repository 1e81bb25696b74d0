"""Trackers know a run again."""

from __future__ import annotations

import re

import pytest

from hpc_elastic.node.workers.worker_env import tracker_env


def test_the_same_run_has_the_same_names() -> None:
    """After each start, and another run others, even one with the same id."""
    first = tracker_env("digits", "/scratch/a")
    assert first == tracker_env("digits", "/scratch/a")
    for other in (tracker_env("digits", "/scratch/b"), tracker_env("digit", "/scratch/a")):
        assert all(first[name] != other[name] for name in first if name.endswith(("_ID", "_KEY")))


@pytest.mark.parametrize("run_id", ["digits-20260101-4f", "a/b c#d?e%f:g", "é" * 300, "/", "\udcff"])
def test_every_tracker_takes_them(run_id: str) -> None:
    """Whatever the run is called: no longer than allowed, and of letters that are allowed."""
    names = tracker_env(run_id, "/scratch/a")
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", names["WANDB_RUN_ID"])
    assert re.fullmatch(r"[A-Za-z0-9]{32,50}", names["COMET_EXPERIMENT_KEY"])
    assert len(names["NEPTUNE_CUSTOM_RUN_ID"]) <= 36


def test_a_run_without_a_letter_in_its_id_has_a_name() -> None:
    """A name that begins with a dash is none to a tracker."""
    assert tracker_env("/", "/scratch/a")["WANDB_RUN_ID"].startswith("run-")


def test_the_run_can_be_recognized_in_the_tracker() -> None:
    """What people see begins with the run's own name."""
    assert tracker_env("digits-20260101", "/scratch/a")["WANDB_RUN_ID"].startswith("digits-20260101-")
