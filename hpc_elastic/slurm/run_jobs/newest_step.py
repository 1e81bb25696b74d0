"""The newest step of workers that run, by the heartbeats of their agents, and whether steps still come.

The account has a line only now and then; the names of the agents have the steps of each second. Both files
get their times from the file server, so that no clock of a node or of this machine counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_elastic.account.account import NewestStep
from hpc_elastic.account.facts import Doing, WorkFact, parse_facts
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.slurm.run_jobs.signs_of_life import member_times
from hpc_elastic.store.files import read

_LEAST_S = 10.0  # a shorter pause is not worth a word: a save, a look at the validation data
_LEAST_STEPS = 5.0  # a pause is longer than so many steps
_LEAST_SHARE = 0.25  # of the time since the last line: the rate is not known better
_WRITERS = 2  # nodes of a round that write the account
_CAPPED = 9  # steps ahead: as many or more


def newest_step_of(run: RunFiles) -> NewestStep | None:
    """Return how far the workers are; None if none run, or they report no steps."""
    running, epoch = run.state.running, run.state.epoch
    if running is None:
        return None
    seen = {
        name.node_id: (name, at)
        for name, at in member_times(run.paths)
        if (name.phase, name.round, name.epoch) == (Phase.RUNNING, running.number, epoch) and name.rank_steps
    }
    steps = [step for name, _ in seen.values() for step in name.rank_steps if step is not None]
    if not steps:
        return None
    writers = [seen[one.node_id] for one in running.members[:_WRITERS] if one.node_id in seen]
    still = [_of_writer(run.paths, name, at) for name, at in writers if at is not None]
    known = [one for one in still if one is not None]
    return NewestStep(max(steps), min(known) if known and len(known) == len(still) else None)


def _of_writer(paths: RunPaths, name: MemberName, beat_at: float) -> float | None:
    """Return for how long the first rank of a node has done no step [s]."""
    path = os.path.join(paths.account, f"{name.node}.log")
    step = name.rank_steps[0]
    try:
        facts = parse_facts(read(path) or b"")
        since_s = beat_at - os.stat(path).st_ctime  # later: NFS asks the server only as it opens the file
    except OSError:
        return None
    lines = [one for one in facts if (one.round, one.agent) == (name.round, name.node_id)]
    is_capped = step is not None and step - min(one for one in name.rank_steps if one is not None) >= _CAPPED
    if step is None or is_capped or not lines or lines[-1].doing is not Doing.STEP:
        return None
    return still_s([one for one in lines if one.doing is Doing.STEP], step, since_s)


def still_s(lines: Sequence[WorkFact], step: int, since_s: float) -> float | None:
    """Return for about how long no step was done [s]; None if that is no longer than usual, or unknown. Pure.

    Args:
        lines: about steps, of one agent in one round, the oldest first.
        step: the newest one by its heartbeat.
        since_s: the time from the last line to that heartbeat [s].
    """
    first, last = lines[0], lines[-1]
    if first.step is None or last.step is None or step < last.step:
        return None
    done, took_s = last.step - first.step, last.mono - first.mono
    step_s = took_s / done if done > 0 and took_s > 0 else None
    more = step - last.step
    if more and step_s is None:
        return None
    pause_s = since_s - more * (step_s or 0.0)
    least_s = max(_LEAST_S, _LEAST_STEPS * (step_s or 0.0), _LEAST_SHARE * since_s)
    return pause_s if pause_s >= least_s else None
