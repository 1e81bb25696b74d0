"""What every run promises, whatever happened to it; each check returns what was broken, in words."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos_lib.training import Mark, Shape
from hpc_elastic.account.account import Account, seconds_of_nodes
from hpc_elastic.account.spans import History
from hpc_elastic.record.checkpoints import complete_marks
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    Epoch,
    EpochStarted,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.state import NO_EPOCH, RunState
from hpc_elastic.settings.setting import usual
from hpc_elastic.settings.table import JobSettings
from hpc_elastic.slurm.client.parse import expand

SLACK_S = 1.0  # a round's checkpoint is chosen a moment before the round's record is written
SECOND = 1.0  # the account of time is as exact as that [s]; submissions are recorded in whole seconds
SAME_FAILURE = usual(JobSettings.same_failure)  # in a row, with nothing saved in between: enough to give up
_ENDS = (RoundEnded, Drained, EpochStarted, RunEnded)
_ENDING_ANYWAY = ("TIMEOUT", "PREEMPTED")  # Slurm's words for who is done while it is being ended
_KILLED = "0:9"  # Slurm's exit code of a script that got SIGKILL
_OURS = re.compile(r'File "[^"]*/hpc_elastic/(?!frameworks/)[^"]*"')
_TRACEBACK = "Traceback (most recent call last):\n"


def ending(state: RunState, shape: Shape, *, may_crash: int) -> list[str]:
    """Check that the run finished, or failed for a reason that the faults explain.

    Args:
        state: of the run.
        shape: what was asked for.
        may_crash: how many of the faults may have cost a restart.
    """
    if state.ending is None:
        return ["the run has no ending"]
    decision, reason = state.ending.decision, state.ending.reason
    if decision is Decision.DONE:
        return []
    crashed = state.crashes > shape.max_restarts
    again = "same_failure" in reason and may_crash >= SAME_FAILURE
    given_up = (crashed and may_crash > shape.max_restarts) or again
    if decision in (Decision.FAILED, Decision.HELD) and given_up:
        return []
    return [f"the run ended {decision.value} ({reason}), which the faults do not explain"]


def result(state: RunState, found: dict[str, Any] | None, expected: dict[str, Any]) -> list[str]:
    """Check that a finished run computed what an undisturbed one computes."""
    if state.ending is None or state.ending.decision is not Decision.DONE or found == expected:
        return []
    return [f"the result {found} differs from the undisturbed {expected}"]


def journal(records: Sequence[Record]) -> list[str]:
    """Check that no record is missing and that every round has an end."""
    broken = []
    if [record.number for record in records] != list(range(1, len(records) + 1)):
        broken.append(f"records are missing: there are {[record.number for record in records]}")
    open_round: int | None = None
    for record in records:
        entry = record.entry
        if isinstance(entry, RoundFormed):
            if open_round is not None:
                broken.append(f"round {open_round} has no end before round {entry.number}")
            open_round = entry.number
        elif isinstance(entry, _ENDS):
            open_round = None
    return broken + ([f"round {open_round} has no end"] if open_round is not None else [])


def steps(
    records: Sequence[Record], marks: Sequence[Mark], stalls: Sequence[tuple[float, float]]
) -> list[str]:
    """Check that every round went on from the newest checkpoint that was durable when it was formed.

    Args:
        records: the journal.
        marks: all marks of the run.
        stalls: when the disk stalled, from and to [s since the epoch]; a round that is formed then may
            have been chosen before it.
    """
    broken = []
    for record, before in zip(records, [None, *records], strict=False):
        entry = record.entry
        if not isinstance(entry, RoundFormed):
            continue
        chosen_at = record.at - SLACK_S
        for began, ended in stalls:
            if began <= record.at <= ended + SLACK_S:
                chosen_at = min(chosen_at, began - SLACK_S)
        if before is not None:
            chosen_at = min(chosen_at, before.at)
        durable = _newest(mark for mark in marks if mark.at <= chosen_at)
        at_all = _newest(mark for mark in marks if mark.name.round < entry.number)
        step = entry.checkpoint.step if entry.checkpoint is not None else 0
        if step < durable:
            broken.append(f"round {entry.number} began at step {step}, but step {durable} was durable")
        if step > at_all:
            broken.append(f"round {entry.number} began at step {step}, which nobody had saved ({at_all})")
    return broken


def _newest(marks: Iterable[Mark]) -> int:
    names = [f"{m.step:012d}.{m.round}.{m.rank}.{m.shards}.json" for m in (mark.name for mark in marks)]
    return next((mark.step for mark in complete_marks(names)), 0)


def account(found: Account, history: History) -> list[str]:
    """Check that each second from the submission of the run to its end is in one bucket, on each node too.

    Args:
        found: the account of the run.
        history: its source; all its clocks are that of this machine.
    """
    ends = [record.at for record in history.records if isinstance(record.entry, RunEnded)]
    if not ends or not history.submissions:
        return ["the account has no submission, or no end"]
    wall_s = ends[-1] - min(submission.at for submission in history.submissions)
    spans = found.series.spans
    broken = [
        f"the account has a gap or counts twice at {after.begin:.3f}: {after.bucket.value}"
        for before, after in pairwise(spans)
        if abs(before.begin + before.seconds - after.begin) >= SECOND
    ]
    sums = {"the run": sum(found.seconds.values())}
    sums |= {node: sum(seconds.values()) for node, seconds in seconds_of_nodes(spans).items()}
    return broken + [
        f"the account of {whose} has {sum_s:.3f} s, but the run took {wall_s:.3f} s"
        for whose, sum_s in sums.items()
        if abs(sum_s - wall_s) >= SECOND
    ]


def lock(path: str) -> list[str]:
    """Check that nobody holds the run's lock."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return [f"{path} is still locked"]
    return []


def logs(directory: Path) -> list[str]:
    """Check that no agent and no script of ours ended by an exception."""
    broken = []
    for log in [*directory.glob("logs/agents/*.log"), *directory.glob("slurm-*.out")]:
        for part in log.read_text(errors="replace").split(_TRACEBACK)[1:]:
            trace = part[:4000].split("\n\n")[0]
            if _OURS.search(trace) and "/hpc_elastic/worker/" not in trace:
                last = [line for line in trace.splitlines() if line and not line.startswith(" ")]
                broken.append(f"{log.name} has a traceback of ours: {last[0] if last else trace[-200:]}")
    return broken


def job(state: RunState, fields: dict[str, str]) -> list[str]:
    """Check that Slurm's last word on the job is that of the run."""
    word, code = fields.get("JobState", "unknown to Slurm"), fields.get("ExitCode", "")
    if state.ending is None:
        return []
    if state.ending.decision is Decision.DONE:
        # no run can change the state of a job whose script Slurm has killed with its node
        is_killed = code == _KILLED and has_lost_its_host(fields)
        is_well = word == "COMPLETED" or (word in _ENDING_ANYWAY and code == "0:0") or is_killed
        return [] if is_well else [f"the run is done, but its job is {word} ({code})"]
    return [] if word in ("FAILED", "PENDING") else [f"the run has failed, but its job is {word} ({code})"]


def has_lost_its_host(fields: dict[str, str]) -> bool:
    """Tell whether Slurm has removed the node of the batch script from a job, and kept the others."""
    nodes = expand(fields.get("NodeList", ""))
    return bool(nodes) and fields.get("BatchHost") not in nodes


def counts(records: Sequence[Record]) -> dict[str, int]:
    """Return rounds, restarts in place, and starts of the job."""
    epochs: set[Epoch] = {r.entry.epoch for r in records if isinstance(r.entry, EpochStarted)} - {NO_EPOCH}
    ended = [record.entry for record in records if isinstance(record.entry, RoundEnded)]
    return {
        "rounds": sum(isinstance(record.entry, RoundFormed) for record in records),
        "restarts": sum(entry.cause is Cause.CRASH for entry in ended),
        "requeues": len({epoch.restart for epoch in epochs}) - 1 if epochs else 0,
        "relaunches": sum(epoch.relaunch > 0 for epoch in epochs),
    }
