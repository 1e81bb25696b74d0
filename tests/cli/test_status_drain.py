"""What `status` tells of stopping a run."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_elastic.cli.status.facts import drain_facts
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Cause, Drained, Epoch, EpochStarted
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.grace_times import keep_site


def test_a_run_that_has_saved_nothing_tells_nothing(tmp_path: Path) -> None:
    """Nor does one whose directory is not there."""
    assert [] == drain_facts(RunPaths(tmp_path))
    assert [] == drain_facts(RunPaths(tmp_path / "none"))


def test_how_long_it_takes_and_how_long_there_is(tmp_path: Path) -> None:
    """The slowest rank of a checkpoint counts; beside it what Slurm grants."""
    paths, epoch = RunPaths(tmp_path), Epoch(0, 0, 0, 0)
    os.mkdir(paths.checkpoints)
    for step, rank, took_s in ((5, 0, 2.0), (5, 1, 7.0), (9, 0, 3.0), (9, 1, None)):
        write_mark(paths, MarkName(step, 1, rank, 2), None, 2, took_s)
    log = open_log(paths, "n1")
    log.commit(lambda _state: EpochStarted(epoch, "7", ()))
    log.commit(lambda _state: Drained(epoch, Cause.STOP, 9, "", 12.0))
    keep_site(paths, Site(kill_wait_s=30.0, grace_s=120.0))
    ((label, text),) = drain_facts(paths)
    assert "saving" == label
    assert text.startswith("takes up to 7.0 s (2 checkpoints); a drain up to 12 s (1 drain); ")
    assert text.endswith("a preempted job has GraceTime 2 min 0 s and KillWait 30 s")


def test_a_save_that_takes_no_time_is_not_called_nothing(tmp_path: Path) -> None:
    """A small checkpoint takes less than is shown."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.checkpoints)
    write_mark(paths, MarkName(5, 1, 0, 1), None, 1, 0.004)
    assert [("saving", "takes less than 0.1 s (1 checkpoint)")] == drain_facts(paths)


def test_what_holds_an_end_up_is_shown(tmp_path: Path) -> None:
    """Once for each node, in the agent's words."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.nodes)
    Path(paths.nodes, "n2.gpu.17.held").write_text("rank 3 is in 'saving' since 12 s: the end waits\n")
    assert [("held up", "n2.gpu: rank 3 is in 'saving' since 12 s: the end waits")] == drain_facts(paths)
