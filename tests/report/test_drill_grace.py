"""Whether a drill has shown that workers save in time for a preemption by Slurm."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.report.drill_report import Course, DrillPhase, Judgement, judge, verdict
from hpc_elastic.slurm.client.deadlines import Site

BACK = RoundFormed(2, Epoch(0, 0, 1, 0), (Member("n1.1", "n1", 1),), "n1", 1, None)
SHORT = Site(kill_wait_s=5.0, grace_s=8.0)
LONG = Site(kill_wait_s=30.0, grace_s=300.0)
BARE = Site(kill_wait_s=30.0)


def took(resumed: RoundFormed | None = BACK, **spans_s: float) -> Course:
    """Return what followed a drill, by the names of the phases."""
    phases = [DrillPhase(name, after_s, "") for name, after_s in spans_s.items()]
    return Course(phases, resumed, None, 0, agreed=True)


def judged(course: Course, site: Site, given_s: float | None = None) -> Judgement:
    """Return what is to be said."""
    found = judge(course, site, given_s)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("course", "site", "given_s", "told"),
    [
        (took(stopped=10.6), SHORT, None, "stopped after 10.6 s: in time"),
        (took(saved=16.1, stopped=16.2), SHORT, None, "saved after 16.1 s: TOO LATE"),
        (took(saved=5.0, stopped=16.2), SHORT, None, "saved after 5.0 s: in time"),
        (took(stopped=12.0), SHORT, None, "stopped after 12.0 s: TOO LATE"),
        (took(saved=0.3, stopped=12.0)._replace(agreed=False), SHORT, None, "stopped after 12.0 s: TOO LATE"),
        (took(stopped=12.0), SHORT, 20, "stopped after 12.0 s: in time"),
        (took(stopped=14.0), SHORT, 20, "stopped after 14.0 s: TOO LATE"),
        (took(stopped=6.1), SHORT, 6, "stopped after 6.1 s: TOO LATE for --stop-timeout 6"),
        (took(stopped=24.0), BARE, None, "stopped after 24.0 s: in time"),
        (took(stopped=25.1), BARE, None, "stopped after 25.1 s: TOO LATE"),
        (took(stopped=25.1), LONG, None, "stopped after 25.1 s: NOT KNOWN, as this drill leaves 25 s only"),
        (
            took(stopped=0.5)._replace(had_nothing_to_save=True),
            SHORT,
            None,
            "the workers had completed no step since the last checkpoint",
        ),
        (took(noticed=0.1), SHORT, None, "when the workers had stopped is not on record"),
    ],
)
def test_the_time_that_workers_took_is_held_against_what_a_preemption_leaves(
    course: Course, site: Site, given_s: float | None, told: str
) -> None:
    """Only what is in time lets the drill end well, though the run came back."""
    found = judged(course, site, given_s)
    assert found.text.endswith(f"; {told}")
    came_back, text = verdict(course, found.but)
    assert came_back == told.endswith("in time") == (found.but == "")
    assert text == "the run came back; 0 steps computed again" + (f"; but {found.but}" if found.but else "")


def test_kill_wait_comes_after_the_grace() -> None:
    """The agents leave workers both, but for their own end; a time that was given leaves all of it."""
    of_both = "a preemption leaves 11.75 s to save (GraceTime 8 s and KillWait 5 s, less 1.25 s for the"
    assert judged(took(stopped=1.0), SHORT).text.startswith(of_both)
    assert judged(took(stopped=1.0), BARE).text.startswith("a preemption leaves 25 s to save (KillWait 30 s,")
    given = "a preemption leaves 13 s to save (GraceTime 8 s and KillWait 5 s); "
    assert judged(took(stopped=1.0), SHORT, 40).text.startswith(given)


def test_workers_that_still_save_are_not_judged() -> None:
    """The drill is no longer followed, and the run is not back."""
    assert judge(took(None, noticed=0.1), SHORT) is None
    assert judge(took(None, saved=20.0), SHORT) is not None
