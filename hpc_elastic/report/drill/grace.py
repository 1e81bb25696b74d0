"""Whether workers that were drilled with SIGTERM would have saved in time in a preemption by Slurm. Pure.

Slurm says of a drill's signal that the job runs on, so that the agents leave the workers other times than
in a preemption: the drill alone does not show what a preemption cuts off.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.report.drill.report import Course
from hpc_elastic.slurm.client.deadlines import Site, margin_s, stop_s

_SAVED, _STOPPED = "saved", "stopped"  # phases; without an agreed step nobody knows which save was the last


class Judgement(NamedTuple):
    """What a drill has shown about the time to save.

    Attributes:
        text: the times, for people.
        but: what is wrong, as the end of a sentence; empty if the time suffices.
    """

    text: str
    but: str = ""


def judge(course: Course, site: Site, given_s: float | None = None) -> Judgement | None:
    """Compare the time that workers took with what a preemption leaves them; None while they take it.

    Args:
        course: what followed the drill.
        site: what Slurm grants the job.
        given_s: ``--stop-timeout`` of the run, which holds whatever Slurm says [s]; None: not given.
    """
    names = (_SAVED, _STOPPED) if course.agreed else (_STOPPED,)
    done = [phase for phase in course.phases if phase.name in names]
    if not done and course.resumed is None:
        return None
    limit_s = site.grace_s + (site.kill_wait_s if given_s is not None else stop_s(site))
    own_s = DrainTimes().stop if given_s is None else given_s
    leaves = f"a preemption leaves {limit_s:g} s to save ({_of_what(site, given_s)})"
    if not done or course.had_nothing_to_save:
        return _shows_nothing(leaves, course)
    first = min(done, key=lambda phase: phase.after_s)
    took = f"{leaves}; {first.name} after {first.after_s:.1f} s"
    if first.after_s > limit_s:
        late = "a preemption would have ended its workers before they had saved"
        return Judgement(f"{took}: TOO LATE", late)
    if first.after_s < own_s:
        return Judgement(f"{took}: in time")
    if given_s is not None:
        by_flag = f"--stop-timeout {given_s:g} has ended its workers, as it would in a preemption"
        return Judgement(f"{took}: TOO LATE for --stop-timeout {given_s:g}", by_flag)
    return Judgement(
        f"{took}: NOT KNOWN, as this drill leaves {own_s:g} s only",
        f"its workers were ended after {own_s:g} s, before it was known whether they save in time",
    )


def _shows_nothing(leaves: str, course: Course) -> Judgement:
    """Say why this drill does not tell how long a save takes."""
    if course.had_nothing_to_save:
        nothing = "the workers had completed no step since the last checkpoint"
        return Judgement(f"{leaves}; {nothing}", f"{nothing}: drill again when they have, to see them save")
    unknown = "when the workers had stopped is not on record"
    return Judgement(f"{leaves}; {unknown}", f"{unknown}, so it has not shown that they save in time")


def _of_what(site: Site, given_s: float | None) -> str:
    grace = f"GraceTime {site.grace_s:g} s and " if site.grace_s else ""
    granted = f"{grace}KillWait {site.kill_wait_s:g} s"
    if given_s is not None:
        return granted
    return f"{granted}, less {margin_s(site.kill_wait_s):g} s for the end of the agents"
