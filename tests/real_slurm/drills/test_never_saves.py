"""A run that saves nothing is started again: each start says so, at whatever moment the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.state import RunState
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES, flags
from tests.real_slurm.jobs import PYTHON, Run, elastic, installed_for_users, submit

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

GAPS_S = (0.0, 1.5, 6.0)
STRIKES = ("a preemption", "a signal by hand")
WORKER = """
import os, sys, time
from hpc_elastic import worker

asks, path = sys.argv[1] == "asks", os.path.join(worker.run_dir(), "at." + os.environ["RANK"])
for step in range(1, 100_000):
    time.sleep(0.05)
    if asks:
        worker.tick(step)
        if worker.should_stop():
            break
    open(path, "w").close()
"""
"""Works for ever and saves nothing; asks whether to stop, or does not."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strike", STRIKES)
def test_three_starts_that_save_nothing_are_enough(
    cluster: Cluster, tell: Tell, mode: str, strike: str
) -> None:
    """Each one says that nothing was saved; the third one in a row holds the run."""
    run = working(cluster, mode, "asks")
    counted = []
    for gap_s in GAPS_S:
        strike_at_work(run, mode, strike, gap_s)
        counted.append(in_vain(run.state()))
        if run.state().ending is not None:
            break
        told = elastic(cluster, "status", str(run.directory)).stdout
        told += elastic(cluster, "timeline", str(run.directory)).stdout
        assert "saved nothing" in told or "nothing was saved" in told, told
    ending = run.wait(lambda state: state.ending is not None, "the hold", 60).ending
    assert ending is not None
    assert Decision.HELD is ending.decision, run.journal()
    assert "in a row saved nothing (max_starts_without_save = 3)" in run.log()
    assert " has saved nothing (held after 3: max_starts_without_save)" in run.log()
    cluster.wait_for(lambda: "held" in held_reason(run), 40, "the job to be held")
    gaps = ", ".join(f"{gap_s:g}" for gap_s in GAPS_S[: len(counted)])
    tell(mode, f"{strike} {gaps} s after the first step", "each told, then held")


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_tells_nothing_is_never_held(cluster: Cluster, tell: Tell, mode: str) -> None:
    """It may save by itself: each start says that nothing is known, with the lines that would change it."""
    run = working(cluster, mode, "is silent")
    for gap_s in (*GAPS_S, 0.0):
        strike_at_work(run, mode, STRIKES[1], gap_s)
        assert run.state().ending is None, run.journal()
    status = elastic(cluster, "status", str(run.directory)).stdout
    assert "worker.should_stop()" in status, status
    begins = "start" if mode == "step" else "round"  # the start of an array outlasts what its tasks meet
    said = f"nothing is known of its saves, so each {begins} may begin anew: worker.tick(step), "
    assert 4 == run.log().count(said), run.log()
    tell(mode, "4 signals by hand, 0 to 6 s after the first step", "told at each start, not held")


def working(cluster: Cluster, mode: str, what: str) -> Run:
    """Submit a run of two nodes that saves nothing."""
    nodes = "1:2" if mode == "array" else "2"
    return submit(cluster, flags(mode, nodes, "--partition", "low"), [PYTHON, "-c", WORKER, what])


def strike_at_work(run: Run, mode: str, strike: str, gap_s: float) -> None:
    """Strike so long after all have worked, and wait until they work again, or the run has ended [s]."""
    run.wait(is_whole, "a round of two", 120)
    worked(run)
    SystemClock().sleep(gap_s)
    before = run.state()
    with struck(run, mode, strike):
        run.wait(lambda state: stands(state) != stands(before), "the end of the round", 60)

    def goes_on(state: RunState) -> bool:
        return state.ending is not None or (is_whole(state) and state.rounds > before.rounds)

    run.wait(goes_on, "the next start", 120)


def stands(state: RunState) -> tuple[object, ...]:
    """Return what changes as a round ends."""
    return state.running, state.drained, state.ending


@contextmanager
def struck(run: Run, mode: str, strike: str) -> Iterator[None]:
    """Strike all nodes of a run, of an array one; what takes its place is taken back afterwards."""
    if strike == STRIKES[1]:
        one = f"{run.job_id}_0" if mode == "array" else run.job_id
        run.cluster.as_root("scancel", "--signal=TERM", one)
        yield
        return
    high = run.cluster.submit_high(4)
    try:
        yield
    finally:
        run.cluster.wait_state(high, "RUNNING")
        run.cluster.as_root("scancel", high)


def is_whole(state: RunState) -> bool:
    """Tell whether both nodes work."""
    return state.running is not None and len(state.running.members) == 2


def worked(run: Run) -> None:
    """Wait until both ranks have done a step from now on."""
    for path in run.directory.glob("at.*"):
        path.unlink()
    run.cluster.wait_for(lambda: len([*run.directory.glob("at.*")]) == 2, 60, "both ranks to work")


def in_vain(state: RunState) -> int:
    """Return how many starts or stops in a row have saved nothing, by the records."""
    return max(state.progress.in_vain, state.progress.stops)


def held_reason(run: Run) -> str:
    """Return why the job of a run, or a task of it, waits."""
    return run.cluster.as_root(
        "squeue", "--noheader", "--array", "--format=%R", f"--jobs={run.job_id}"
    ).lower()
