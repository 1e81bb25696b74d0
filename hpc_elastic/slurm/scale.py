"""Changing how many nodes a run uses while it runs.

A run that is one job uses fewer or more of the nodes that it holds. In array mode it gives nodes back,
and can have more than it was submitted for.
"""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.journal import Cause, DrainRequested, SizeWanted, Then
from hpc_elastic.rendezvous.run_log import open_log
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.slurm.array_job import is_array
from hpc_elastic.slurm.commands import Slurm
from hpc_elastic.slurm.lifecycle import LOGIN
from hpc_elastic.slurm.run_files import RunFiles, read_run
from hpc_elastic.slurm.values import NodeRange, parse_nodes


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
    spares = None
    if is_array(run):
        from hpc_elastic.slurm.array_scale import provide  # noqa: PLC0415 - it loads the job spec

        spares = None if keep_spares else int(run.spec.get("spares") or 0)
        provide(run, size, slurm or Slurm(), say, spares=spares)
    log = open_log(paths, LOGIN)
    submission = max(run.submission, run.state.epoch.submission, 0)
    state = log.commit(lambda _: SizeWanted(submission, size, "hpc-elastic scale", spares))
    pause = DrainRequested(Cause.MEMBERSHIP, LOGIN, Then.REJOIN, f"scale to {_count(size)}")
    log.commit(lambda now: pause if now.running is not None and len(now.running.members) > size else None)
    say(_told(state, size, run, gives_back=spares is not None))


def _told(state: RunState, size: int, run: RunFiles, *, gives_back: bool = False) -> str:
    running = state.running
    now = len(running.members) if running is not None else 0
    if now == size:
        return f"the run has {_count(size)} and stays so"
    if now > size:
        rest = "; the others leave" if gives_back else ""
        return f"the workers save and stop at one step; the next round has {size} of {now} nodes{rest}"
    if now and is_array(run):
        return f"the run takes in nodes as Slurm gives them, up to {size}; it has {now} now"
    if now and 0 < len(set(state.expected) - state.lost) <= now:
        return (
            f"no node stands by, so the run goes on with {now}: "
            f"its job can get up to {size} when it is queued again"
        )
    if now:
        return f"the run takes in nodes that stand by, up to {size}; it has {now} now"
    return f"the next round has up to {_count(size)}"


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _check(run: RunFiles, size: int, *, keep_spares: bool) -> None:
    if keep_spares and not is_array(run):
        raise InputError(
            "nodes beyond the size always stand by in a run that is one job",
            where="--keep-spares",
            fix="leave it out",
        )
    if run.state.ending is not None and run.state.epoch.submission >= run.submission:
        raise InputError(
            f"the run in {run.paths.root} has ended already: {run.state.ending.decision.value}",
            where="RUN",
            fix=run.how_to_run_again,
        )
    bounds = _bounds(run)
    if bounds is not None and is_array(run) and size >= bounds.low:
        return  # an array can get more tasks
    if bounds is not None and not bounds.low <= size <= bounds.high:
        raise InputError(
            f"the run was submitted for {bounds.low} to {bounds.high} nodes, and {size} are wanted",
            where="--nodes",
            fix=f"give {bounds.low} or more"
            if is_array(run)
            else f"give a number from {bounds.low} to {bounds.high}"
            if bounds.low < bounds.high
            else "submit with --nodes MIN:MAX to be able to change the size",
        )


def _bounds(run: RunFiles) -> NodeRange | None:
    """Return what the job was submitted for; None if only its own command line knows."""
    nodes = run.spec.get("nodes")
    return None if nodes is None else parse_nodes(nodes)
