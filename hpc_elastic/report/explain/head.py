"""The head of the page of a run: the figures that are read first. Pure."""

from __future__ import annotations

from hpc_elastic.account.account import pace_of
from hpc_elastic.clock import date_text
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.report.explain.facts import Explanation
from hpc_elastic.report.explain.words import (
    costs_text,
    goodput_text,
    left_at,
    progress_text,
    rate_text,
    share_text,
)
from hpc_elastic.report.run_facts import SeenRun
from hpc_elastic.report.run_status import RunPhase
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.run_jobs.run_files import SavedCheckpoint
from hpc_elastic.text import count_text

_UNKNOWN = "?"


class Figure(NamedTuple):
    """A number with its name; texts are for people."""

    name: str
    value: str
    note: str = ""
    share: float | None = None  # that a bar shows, from 0 to 1; None: there is no bar


class HeadFacts(NamedTuple):
    """The facts of the moment at which a page is made, beside those of the run."""

    now_s: float  # [s since the epoch]
    saved: SavedCheckpoint | None
    used: str = ""  # of the budgets; empty: not known


def figures_of(seen: SeenRun, why: Explanation, facts: HeadFacts) -> list[Figure]:
    """Return the figures of a run, those that are not known with a question mark and the reason."""
    saved = facts.saved
    checkpoint = Figure("last checkpoint", "none", "none is marked")
    if saved is not None:
        checkpoint = Figure("last checkpoint", f"{span_text(saved.age_s)} ago", f"step {saved.step}")
    return [
        _step(seen),
        *_pace(seen, facts.now_s),
        _goodput(seen),
        *([] if saved is None and seen.run.is_untold else [checkpoint]),
        _nodes(seen),
        Figure("stops", str(why.earlier + sum(stop.times for stop in why.stops)), facts.used),
    ]


def _step(seen: SeenRun) -> Figure:
    """Return where the workers are; while they compute again, how far they have been, too."""
    series = seen.account.series
    best = series.progress[-1][1] if series.progress else None
    told = [step for step in (series.current, seen.newest.step if seen.newest else None) if step is not None]
    now = max(told, default=best)
    if now is None:
        return Figure("step", _UNKNOWN, "the workers tell no steps so far")
    note = f"again; has reached step {best}" if best is not None and best > now else ""
    if not series.total:
        return Figure("step", str(now), note or "of how many is not told: tick(step, total=…)")
    share = min(1.0, now / series.total)
    value = progress_text(now, series.total).removeprefix("step ")
    return Figure("step", value, note or share_text(share), share)


def _pace(seen: SeenRun, now_s: float) -> list[Figure]:
    """Return the rate, and when the run is done; of one that is over, how long it took."""
    account = seen.account
    pace = pace_of(account.series)
    over = "" if pace is None else f"over {span_text(pace.seconds)}, with its stops"
    rate = Figure("rate", _UNKNOWN if pace is None else rate_text(pace.per_s), over)
    if seen.where.phase.is_final:
        return [rate, Figure("took", span_text(account.wall_s), count_text(len(account.starts), "start"))]
    left_s = None if pace is None else left_at(pace, account, seen.newest.step if seen.newest else None)
    if left_s is None:
        return [rate, Figure("time left", _UNKNOWN, "no rate, or no total of steps is known")]
    done = f"done about {date_text(now_s + left_s)} at this rate"
    is_still = seen.where.phase in (RunPhase.GONE, RunPhase.SILENT)
    return [rate, Figure("time left", span_text(left_s), "at this rate, if it runs" if is_still else done)]


def _goodput(seen: SeenRun) -> Figure:
    account = seen.account
    costs = costs_text(account, 2)
    note = f"cost most: {costs}" if costs else "time in which new steps were computed"
    if account.goodput is None:
        return Figure("goodput", _UNKNOWN, goodput_text(account))
    return Figure("goodput", share_text(account.goodput), note, account.goodput)


def _nodes(seen: SeenRun) -> Figure:
    """Return the nodes that work now, of those that the start has."""
    state = seen.run.state
    running = state.running if state.ending is None else None
    if running is None:
        size = "" if state.round is None else f"the last round had {len(state.round.members)}"
        return Figure("nodes", "0", size)
    here = len(running.members)
    all_of = len(set(state.expected) | {member.node for member in running.members})
    workers = "" if running.is_script else count_text(running.workers, "worker")
    return Figure("nodes", f"{here} of {all_of}", workers)
