"""Changing how many nodes a run uses while it runs.

A run that is one job uses fewer or more of the nodes that it holds. In array mode it gives nodes back,
and can have more than it was submitted for.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from hpc_elastic.errors import InputError
from hpc_elastic.ids import LOGIN
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, DrainRequested, Role, SizeWanted, Then
from hpc_elastic.record.run_log import open_log
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job.values import NodeRange, parse_nodes
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, is_array, read_run
from hpc_elastic.text import count_text

_WHO = "hpc-elastic scale"


def scale(
    paths: RunPaths,
    size: int,
    say: Callable[[str], None],
    *,
    slurm: Slurm | None = None,
    keep_spares: bool = False,
) -> None:
    """Have the run go on with another number of nodes, from the next round on.

    A round that is larger is paused: its workers save and stop at one step. A smaller one takes in
    nodes that stand by.

    Args:
        paths: the files of the run.
        size: how many nodes are wanted.
        say: prints a line.
        slurm: Slurm's commands, for array mode.
        keep_spares: in array mode nodes beyond the size stand by and are not given back.

    Raises:
        InputError: the run has ended, or cannot have that size.
        SlurmError: in array mode, Slurm is not there, refused, or does not answer.
    """
    run = read_run(paths)
    _check(run, size, keep_spares=keep_spares)
    slurm = slurm or Slurm()
    _look_for_room(run, size, slurm, say)
    spares = None
    if is_array(run):
        from hpc_elastic.slurm.operate.array_scale import provide  # noqa: PLC0415 - it loads the job spec

        spares = None if keep_spares else int(run.spec.get("spares") or 0)
        provide(run, size, slurm, say, spares=spares)
    log = open_log(paths, LOGIN, Role.COMMAND)
    submission = max(run.submission, run.state.epoch.submission, 0)
    state = log.commit(lambda now: SizeWanted(submission, size, _WHO, spares, _running(now) or None))
    log.commit(lambda now: _pause(now, size) if _running(now) > size else None)
    say(_told(state, size, run, gives_back=spares is not None))


def _running(state: RunState) -> int:
    return len(state.running.members) if state.running is not None else 0


def _pause(state: RunState, size: int) -> DrainRequested:
    words = f"scaled from {_running(state)} to {count_text(size, 'node')} by the user ({_WHO})"
    return DrainRequested(Cause.MEMBERSHIP, "", Then.REJOIN, words)


def _look_for_room(run: RunFiles, size: int, slurm: Slurm, say: Callable[[str], None]) -> None:
    """Say what the partition has for a larger run, before anything is changed.

    Raises:
        InputError: it never has so much.
    """
    held = set(run.state.expected) - run.state.lost
    if run.is_local or not run.job_id or size <= _running(run.state):
        return
    if not is_array(run) and size <= len(held):
        return  # the job has them
    from hpc_elastic.slurm.operate.scale_room import refuse_beyond, room  # noqa: PLC0415 - for a larger run only

    found = room(run, slurm)
    if found is None:
        return
    refuse_beyond(found, size)
    say(found.text())


def _told(state: RunState, size: int, run: RunFiles, *, gives_back: bool = False) -> str:
    now, nodes = _running(state), count_text(size, "node")
    if now == size:
        pauses = state.drain is not None and state.drain.cause is Cause.MEMBERSHIP
        how = f"the workers save and stop at one step all the same; the next round has {nodes}"
        return how if pauses else f"the run has {nodes} and stays so"
    if now > size:
        rest = "; the others leave" if gives_back else ""
        return f"the workers save and stop at one step; the next round has {size} of {now} nodes{rest}"
    return _told_more(state, size, run, now) if now else f"the next round has up to {nodes}"


def _told_more(state: RunState, size: int, run: RunFiles, now: int) -> str:
    if is_array(run):
        return f"the run takes in nodes as Slurm gives them, up to {size}; it has {now} now"
    if 0 < len(set(state.expected) - state.lost) <= now:
        return (
            f"no node stands by, so the run goes on with {now}: "
            f"its job can get up to {size} when it is queued again"
        )
    return f"the run takes in nodes that stand by, up to {size}; it has {now} now"


def _check(run: RunFiles, size: int, *, keep_spares: bool) -> None:
    if keep_spares and not is_array(run):
        raise InputError(
            "nodes beyond the size always stand by in a run that is one job",
            where="--keep-spares",
            fix="leave it out",
        )
    if run.state.ending is not None and run.state.epoch.submission >= run.submission:
        raise InputError(
            run.how_it_ended,
            where="RUN",
            fix=run.how_to_run_again,
        )
    if size < 1:
        root = shlex.quote(run.paths.root)
        raise InputError(
            f"a run has one node at least, and {size} are wanted",
            where="--nodes",
            fix=f"to have it save and end: hpc-elastic stop {root}; at once: hpc-elastic cancel {root}",
        )
    bounds = _bounds(run)
    if size < bounds.low or (size > bounds.high and not is_array(run)):  # an array can get more tasks
        raise InputError(_out_of(bounds, size, run), where="--nodes", fix=_fix(bounds, run))


def _out_of(bounds: NodeRange, size: int, run: RunFiles) -> str:
    wanted = f"{size} {'is' if size == 1 else 'are'} wanted"
    if run.is_local and bounds.high == len(run.state.expected) < size:
        return f"the run plays {count_text(bounds.high, 'node')} on this machine (--local), and {wanted}"
    told = parse_nodes(run.spec.get("nodes") or run.state.sizes)
    nodes = count_text(told.low, "node") if told.low == told.high else f"{told.low} to {told.high} nodes"
    how = "submitted" if run.spec.get("nodes") else "started"
    return f"the run was {how} for {nodes}, and {wanted}"


def _fix(bounds: NodeRange, run: RunFiles) -> str:
    if is_array(run):
        return f"give {bounds.low} or more"
    if bounds.low < bounds.high:
        return f"give a number from {bounds.low} to {bounds.high}"
    if run.spec.get("nodes"):
        return "submit with --nodes MIN:MAX to be able to change the size"
    return "start the agents with --nnodes MIN:MAX to be able to change the size"


def _bounds(run: RunFiles) -> NodeRange:
    """Return what the job was submitted for, or its agents were started for, as far as it is known."""
    nodes = run.spec.get("nodes") or run.state.sizes
    bounds = parse_nodes(nodes) if nodes else NodeRange(1, sys.maxsize)
    played = len(run.state.expected) if run.is_local else 0
    return bounds._replace(high=min(bounds.high, max(played, bounds.low))) if played else bounds
