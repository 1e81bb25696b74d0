"""A preemption whose signal came before the agents of a job could hear it."""

from __future__ import annotations

from hpc_elastic.record.journal import Cause
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.test_job_watch import Answers, Listen, listen

__all__ = ["listen"]


def test_a_grace_that_began_before_the_agents_did_is_one(listen: Listen) -> None:
    """Its end is that of the job, too, and no time limit; the time in the environment is older."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[30.0])
    slurm.job |= {"PreemptTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:00:40"}
    heard = listen(slurm, clock, end_time_s=clock.wall() + 10_000)
    assert float("inf") == heard.watch._look_at_limit()
    told = heard.next()
    assert (Cause.PREEMPTION, clock.monotonic() + 30 + 15) == (told.cause, told.until)
    assert "preempted, with grace until 20:00:40" == told.detail
