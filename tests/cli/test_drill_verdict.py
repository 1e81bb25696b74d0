"""What ``hpc-elastic drill`` says of a run in Slurm that came back, and with which exit code."""

from __future__ import annotations

import json
import threading

import pytest

from hpc_elastic.cli import app
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Drained,
    DrainRequested,
    DrillBegan,
    EpochStarted,
    MarkedCheckpoint,
    Requeued,
    StopAgreed,
)
from hpc_elastic.record.run_log import read_records
from hpc_elastic.testing.waiting import wait_until
from tests.cli.test_drill_refused import EPOCH, ROUND, job, paths, write
from tests.slurm.stand_in import FakeJob

__all__ = ["job", "paths"]
LATER = EPOCH._replace(restart=1)
COMES_BACK = (
    DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM"),
    StopAgreed(1, 60),
    Drained(EPOCH, Cause.PREEMPTION, 60, "SIGTERM"),
    Requeued(EPOCH, Cause.PREEMPTION),
    EpochStarted(LATER, "7", ("n1", "n2"), sizes="2:2"),
    ROUND._replace(number=2, epoch=LATER, checkpoint=MarkedCheckpoint(60, "")),
)


@pytest.mark.parametrize(
    ("kill_wait", "told", "exit_code"),
    [
        ("1000 sec", "a preemption leaves 995 s to save (KillWait 1000 s, less 5 s for the end of the", 0),
        ("0 sec", "but a preemption would have ended its workers before they had saved\n", 1),
    ],
)
def test_a_save_that_a_preemption_would_cut_off_is_no_success(
    paths: RunPaths,
    job: FakeJob,
    capfd: pytest.CaptureFixture[str],
    kill_wait: str,
    told: str,
    exit_code: int,
) -> None:
    """Though the run came back, since Slurm does not end the job of a drill."""
    job.set(KillWait=kill_wait, Partition="low")

    def come_back() -> None:
        wait_until(lambda: isinstance(read_records(paths)[-1].entry, DrillBegan), "the drill", timeout_s=60)
        wait_until(lambda: bool(job.calls), "the signal", timeout_s=60)
        write(paths, *COMES_BACK)

    agents = threading.Thread(target=come_back)
    agents.start()
    code = app.run(["drill", paths.root, "--preempt", "--yes", "--json"])
    agents.join()
    said = capfd.readouterr()
    printed, found = said.err, json.loads(said.out)
    assert (1, "drill", "preempt") == (found["format"], found["kind"], found["drill"])
    assert (True, exit_code == 0, 0) == (found["came_back"], found["is_well"], found["lost_steps"])
    assert "noticed" == found["phases"][0]["name"]
    assert ["scancel --signal=TERM 7"] == job.calls
    assert exit_code == code, printed
    assert told in printed
    assert "the run came back" in printed
    app.run(["explain", paths.root, "--json"])
    assert f"\nnext: {json.loads(capfd.readouterr().out)['next']}\n" in printed
