"""The facts that explain the state of a run, read from its directory. No sentence is made here."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from enum import Enum
from itertools import takewhile

from hpc_elastic.account.account import Account, StopCost
from hpc_elastic.account.spans import OF_A_START, Bucket
from hpc_elastic.account.stops import Stop
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import failed_saves
from hpc_elastic.record.checkpoint_files import read_facts as read_checkpoint
from hpc_elastic.record.checkpoints import newest, newest_step, save_times
from hpc_elastic.record.journal import Cause, Decision, NodeSlow, Record, RoundEnded, RoundFormed
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.same_failure import signature
from hpc_elastic.record.save_interval import SaveTimes, best_interval_s, disturbances
from hpc_elastic.slurm.run_jobs.run_files import RunFiles

MOST_STOPS = 8  # that are named one by one; the cost of all is in the table of causes
_LONG_S = 600.0  # runs that took less are tries, whose shares of time mean little
_WORKED_S = 300.0  # in which workers import their modules and do a step
_MUCH = 0.05  # share of the wall time that is worth an advice
_TWICE = 2


class Advice(str, Enum):
    """A thing that the user can do about a run."""

    SAVE_AT_ALL = "save_at_all"  # starts in a row have saved nothing newer than they began from
    SAVE_MORE = "save_more"  # much is computed again; `number` is the best time between two saves [s]
    MARK_SAVES = "mark_saves"  # no checkpoint is marked, so each start begins at step 0
    MEND_SAVES = "mend_saves"  # the last save has failed, that of `step`
    TELL_STEPS = "tell_steps"  # the workers tell no steps
    SUSPECT_NODE = "suspect_node"  # the same failure came always on one node of several
    FIX_PROGRAM = "fix_program"  # the same failure came again and again on several nodes
    FIND_KILLER = "find_killer"  # workers got SIGKILL again and again, which no program does to itself
    READ_STACKS = "read_stacks"  # the newest stops were hangs
    SHORTEN_START = "shorten_start"  # much is spent between the start of workers and their first step


class AdviceFact(NamedTuple):
    """An advice with the numbers that are its reason."""

    advice: Advice
    number: float = 0.0  # see `Advice`; of starts or failures: how many
    node: str = ""
    step: int | None = None


class StopFact(NamedTuple):
    """One stop, or several alike in a row."""

    first: Stop
    last: Stop
    times: int
    seconds: float  # without new steps, of all of them
    lost_steps: int
    nodes: tuple[str, ...]  # where it happened
    perhaps_lost: int = 0  # at most so many more, as the workers of the next round have not told so far
    lost_at_least: bool = False  # there may be more, as the agents that told of steps were gone first
    evidence: str = ""  # the file that shows more, below the run directory; empty: none


class Explanation(NamedTuple):
    """Everything that explains the state of a run."""

    account: Account
    stops: tuple[StopFact, ...]  # oldest first
    earlier: int  # stops before these, which are not named one by one
    advice: tuple[AdviceFact, ...]
    slow: tuple[Record, ...] = ()  # that name a slow node, the oldest first
    is_script: bool = False  # a job script of the user's own, which tells no steps


def explanation_of(run: RunFiles, account: Account) -> Explanation:
    """Return the facts that explain the state of a run, given the account of its time."""
    groups = _alike(account.stops)
    shown = tuple(_with_evidence(run.paths, group) for group in groups[-MOST_STOPS:])
    earlier = sum(group.times for group in groups) - sum(group.times for group in shown)
    slow = tuple(record for record in run.records if isinstance(record.entry, NodeSlow))
    return Explanation(account, shown, earlier, tuple(_advice(run, account, groups)), slow, run.is_script)


def _alike(stops: Sequence[StopCost]) -> list[StopFact]:
    """Return the stops, those that follow each other for the same reason as one."""
    found: list[StopFact] = []
    for one in stops:
        lost = one.lost_steps or 0
        if found and _kind(found[-1].last) == _kind(one.stop):
            group = found[-1]
            found[-1] = group._replace(
                last=one.stop,
                times=group.times + 1,
                seconds=group.seconds + one.seconds,
                lost_steps=group.lost_steps + lost,
                perhaps_lost=group.perhaps_lost + one.perhaps_lost,
                lost_at_least=group.lost_at_least or one.lost_at_least,
                nodes=tuple(dict.fromkeys((*group.nodes, *one.stop.nodes))),
            )
        else:
            found.append(fact_of(one))
    return found


def fact_of(one: StopCost) -> StopFact:
    """Return a stop by itself."""
    of_stop = one.stop.nodes, one.perhaps_lost, one.lost_at_least
    return StopFact(one.stop, one.stop, 1, one.seconds, one.lost_steps or 0, *of_stop)


def _kind(stop: Stop) -> object:
    if stop.word is not None:
        return stop.word
    if stop.failure is None or stop.cause is None:
        told = stop.setup, stop.drill, stop.leavers, tuple(stop.unfit), tuple(stop.taken)
        return stop.cause, stop.asker, *told
    return signature(RoundEnded(0, stop.cause, stop.nodes, dict(stop.failure)))


def _with_evidence(paths: RunPaths, group: StopFact) -> StopFact:
    found = (os.path.relpath(path, paths.root) for path in _places(paths, group.last) if os.path.exists(path))
    return group._replace(evidence=next(found, ""))


def _places(paths: RunPaths, stop: Stop) -> list[str]:
    """Return the files that may show more of a stop, the best one first."""
    agents = [paths.agent_log(node) for node in stop.nodes]
    if stop.cause is Cause.HANG:
        return [paths.hang_logs(stop.round, 1), *agents]
    rank = (stop.failure or {}).get("rank")
    if stop.cause is Cause.CRASH and isinstance(rank, int):
        logs = os.path.join(paths.attempt_logs(stop.round), str(rank))
        return [os.path.join(logs, name) for name in ("stderr.log", "error.json", "stdout.log")] + agents
    return agents


def _advice(run: RunFiles, account: Account, groups: Sequence[StopFact]) -> list[AdviceFact]:
    saves = [] if run.is_script else _about_saves(run, account)  # those of a script are its own
    found = [*_about_failures(run, account, groups), *saves]
    is_short = account.wall_s < _LONG_S
    start_s = sum(account.seconds.get(bucket, 0.0) for bucket in OF_A_START)
    if (
        not is_short
        and start_s / account.wall_s >= 2 * _MUCH
        and len(account.starts) + len(account.stops) > 1
    ):
        found.append(AdviceFact(Advice.SHORTEN_START, start_s / account.wall_s))
    if not account.series.ticks and _has_worked(run, account) and not run.is_untold:
        found.append(AdviceFact(Advice.TELL_STEPS))
    return found


def _has_worked(run: RunFiles, account: Account) -> bool:
    """Tell whether workers have run for so long that they must have done steps, or have finished."""
    ending = run.state.ending
    is_done = ending is not None and ending.decision is Decision.DONE
    worked_s = sum(account.seconds.get(bucket, 0.0) for bucket in (Bucket.WORKING, Bucket.DOWN))
    return account.series.ticks or is_done or worked_s >= _WORKED_S


def is_running(run: RunFiles) -> bool:
    """Tell whether the records say that workers run now, or are about to run again in this start."""
    state = run.state
    return state.ending is None and state.drained is None and not state.requeued and state.round is not None


def _about_saves(run: RunFiles, account: Account) -> list[AdviceFact]:
    failed = failed_saves(run.paths)
    if failed:
        return [AdviceFact(Advice.MEND_SAVES, step=max(one.step for one in failed.values()))]
    newest, progress = newest_step(run.paths, BEGINNING), run.state.progress
    vain = (progress.of_ended(newest) if is_running(run) else progress).starts_in_vain(newest)
    is_unmarked = newest == progress.newest == BEGINNING
    may_mark = bool(account.stops) and not run.is_torchruns and not account.series.begun
    mark = [AdviceFact(Advice.MARK_SAVES)] if is_unmarked and may_mark and _has_worked(run, account) else []
    if vain >= _TWICE:
        return [*mark, AdviceFact(Advice.SAVE_AT_ALL, vain, step=account.starts[-1].facts.began)]
    if is_unmarked:
        return mark
    wasted_s = sum(account.seconds.get(bucket, 0.0) for bucket in (Bucket.AGAIN, Bucket.LOST))
    if not account.lost_steps:  # the steps that are computed again were given up on purpose
        return []
    if account.wall_s < _LONG_S or wasted_s / account.wall_s < _MUCH:
        return []
    return [AdviceFact(Advice.SAVE_MORE, advised_interval_s(run, account) or 0.0)]


def advised_interval_s(run: RunFiles, account: Account) -> float | None:
    """Return the time between saves that costs least [s], as `Checkpoints` chooses it; None: not known."""
    has_lost = any(one.lost_steps for one in account.stops)
    found = _save_of(run.paths) if has_lost and account.wall_s >= _LONG_S else None
    if found is None:
        return None
    save, recovered = found
    past = disturbances(run.records, recovered)
    return best_interval_s(save, past.between_s(save, _running_s(run, account)))


def _save_of(paths: RunPaths) -> tuple[SaveTimes, tuple[int, ...]] | None:
    """Return the time of a save, and the rounds whose fault has lost next to nothing.

    It is that of the newest one of `Checkpoints`, else the median of those in the loop.
    """
    try:
        saved = newest(paths)
        facts = read_checkpoint(saved.path) if saved is not None and saved.path else None
        took = save_times(paths) if facts is None else []
    except (OSError, HpcElasticError):
        return None
    if facts is not None:
        return SaveTimes(facts.blocked_s, facts.took_s), facts.recovered
    if not took:
        return None
    from statistics import median  # noqa: PLC0415 - many runs have no such times

    return SaveTimes(median(took), median(took)), ()


def _running_s(run: RunFiles, account: Account) -> float:
    """Return for how long the newest round has run [s]; 0 if it is over."""
    if run.state.running is None or not account.series.spans:
        return 0.0
    formed: float = next(
        record.at for record in reversed(run.records) if isinstance(record.entry, RoundFormed)
    )
    begin, seconds = account.series.spans[-1][:2]
    return max(0.0, begin + seconds - formed)


def _about_failures(run: RunFiles, account: Account, groups: Sequence[StopFact]) -> list[AdviceFact]:
    """Return whether the newest failures point to a node that has not left, or to the program."""
    if groups and groups[-1].first.cause is Cause.HANG:
        hangs = takewhile(lambda group: group.first.cause is Cause.HANG, reversed(groups))
        return [AdviceFact(Advice.READ_STACKS, sum(group.times for group in hangs))]
    if not groups or groups[-1].first.failure is None or groups[-1].times < _TWICE:
        return []
    group = groups[-1]
    if group.last.drill:
        return []
    is_on_several = any(len(span.crew.members) > 1 for span in account.series.spans)
    if len(group.nodes) == 1 and is_on_several:
        has_left = group.nodes[0] in run.state.unfit
        return [] if has_left else [AdviceFact(Advice.SUSPECT_NODE, group.times, group.nodes[0])]
    failure = group.last.failure or {}
    is_killed = failure.get("exitcode") == -signal.SIGKILL and not failure.get("message")
    return [AdviceFact(Advice.FIND_KILLER if is_killed else Advice.FIX_PROGRAM, group.times)]
