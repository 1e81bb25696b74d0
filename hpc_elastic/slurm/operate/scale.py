"""Changing how many nodes a run uses while it runs.

A run that is one job uses fewer or more of the nodes that it holds. In array mode it gives nodes back,
and can have more than it was submitted for: tasks beyond the size that is wanted save and leave; they
wait in the queue, where the throttle of the array keeps them, until more nodes are wanted. For more nodes
than there are tasks a further array of the same script and submission is queued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.ids import LOGIN
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, Role, SizeWanted
from hpc_elastic.record.run_log import open_log
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.values import NodeRange, parse_nodes
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.answers import ListedNode, SlurmTask, arrays_of, features_of, gpus_in
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, is_array, read_run, tasks_of
from hpc_elastic.slurm.submit.resubmit import queue, with_measured_lead
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.text import are_text, count_text, for_shell

Say = Callable[[str], None]
_WHO = "hpc-elastic scale"


class TaskShare(NamedTuple):
    """How many tasks of one array may run."""

    array: str
    tasks: int  # that it has
    may_run: int


def shares(tasks: list[SlurmTask], wanted: int) -> list[TaskShare]:
    """Return how many tasks of each array may run; older arrays come first. Pure."""
    found, rest = [], wanted
    for array in arrays_of(tasks):
        size = sum(task.array == array for task in tasks)
        found.append(TaskShare(array, size, min(size, rest)))
        rest -= found[-1].may_run
    return found


def provide(run: RunFiles, size: int, slurm: Slurm, say: Say, *, spares: int | None) -> None:
    """Have Slurm run as many tasks as are wanted from now on.

    Args:
        run: the run.
        size: how many nodes a round is to have.
        slurm: Slurm's commands.
        say: prints a line.
        spares: how many tasks beyond that may run; None: all that there are.

    Raises:
        InputError: the cluster allows no array of so many tasks.
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    tasks = tasks_of(run, slurm)
    if not tasks:
        raise InputError(
            f"array {run.job_id} has no task left in Slurm",
            where="RUN",
            fix=f"to run it again: {run.command_to_go_on}",
        )
    wanted = size + (spares or 0)
    missing = wanted - len(tasks)
    if missing > 0:
        _add(run, missing, slurm, say)
    for share in shares(tasks, len(tasks) if spares is None else wanted):
        _limit(share, slurm, say)


def _limit(share: TaskShare, slurm: Slurm, say: Say) -> None:
    if share.may_run == 0:  # a throttle of 0 means none
        slurm.cancel_waiting(share.array)
        say(f"array {share.array} is not needed: its tasks end")
        return
    is_all = share.may_run == share.tasks
    try:
        slurm.throttle(share.array, 0 if is_all else share.may_run)
    except SlurmCommandError as error:
        if not is_all:
            raise
        say(f"the throttle of array {share.array} could not be lifted: {error}")
        return
    if not is_all:
        say(f"Slurm runs at most {share.may_run} of the {share.tasks} tasks of array {share.array}")


def _add(run: RunFiles, tasks: int, slurm: Slurm, say: Say) -> None:
    """Queue a further array of the same script and submission."""
    most = slurm.max_array_size()
    if most is not None and tasks > most:
        raise InputError(
            f"{tasks} more tasks are needed, and this cluster allows {most} in an array (MaxArraySize)",
            where="--nodes",
            fix=f"scale in steps of at most {most} nodes",
        )
    newest, stored = run.submissions[-1], read_request(run.paths)
    wanted = with_measured_lead(stored._replace(submission=newest.number, token=newest.token))
    array = queue(slurm, wanted, (f"--array=0-{tasks - 1}", *wanted.sbatch_options))
    more = are_text(tasks, "more task")
    say(f"{more} queued as array {array}")


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
    return DrainRequested(Cause.MEMBERSHIP, "", AfterDrain.REJOIN, words)


def _look_for_room(run: RunFiles, size: int, slurm: Slurm, say: Callable[[str], None]) -> None:
    """Print the nodes of the partition for a larger run, before anything is changed.

    Raises:
        InputError: it never has so much.
    """
    held = set(run.state.expected) - run.state.lost
    if run.is_local or not run.job_id or size <= _running(run.state):
        return
    if not is_array(run) and size <= len(held):
        return  # the job has them

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
    if run.is_script:
        raise InputError(
            f"{run.name} is a job script of your own, and uses the nodes that it asks for",
            where="RUN",
            fix="stop it, and submit the script again with another --nodes",
        )
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
        root = for_shell(run.paths.root)
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
    """Return the size that the job was submitted for, or its agents started for, as far as it is known."""
    nodes = run.spec.get("nodes") or run.state.sizes
    bounds = parse_nodes(nodes) if nodes else NodeRange(1, sys.maxsize)
    played = len(run.state.expected) if run.is_local else 0
    return bounds._replace(high=min(bounds.high, max(played, bounds.low))) if played else bounds


class Room(NamedTuple):
    """The room of a partition for a run.

    Attributes:
        partition: its name, or several as ``a,b``; empty for the default one.
        nodes: that fit the requests of the job for each.
        up: how many of them can run something, now or when other jobs have ended.
        most: how many nodes of the run they hold at once if there is no other job; None: not known.
        each: the bound of that number, for people.
    """

    partition: str
    nodes: int
    up: int
    most: int | None
    each: str = ""

    @property
    def name(self) -> str:
        """The partition for people."""
        return f"partition {self.partition}" if self.partition else "the default partition"

    def text(self) -> str:
        """Return the room, as a line."""
        text = f"{self.name} has {count_text(self.nodes, 'node')} for this run, {self.up} of them up"
        return f"{text}; room for {self.most} at once ({self.each})" if self.each else text


def room(run: RunFiles, slurm: Slurm) -> Room | None:
    """Return the room for a run; None if it is not known."""
    try:
        job = slurm.show_job(run.job_id)
        if job is None:
            return None
        name = str(run.spec.get("partition") or job.get("Partition") or "")
        nodes = slurm.nodes(name or None)
        known = [slurm.show_partition(one) for one in name.split(",")]
    except (SlurmCommandError, SlurmNotFoundError):
        return None
    return room_of(run.spec, name, nodes, known, tasks=is_array(run)) if nodes else None


def room_of(
    spec: Mapping[str, Any],
    partition: str,
    nodes: Iterable[ListedNode],
    settings: Iterable[Mapping[str, str]],
    *,
    tasks: bool,
) -> Room:
    """Return the room for a job spec. Pure.

    Args:
        spec: as it is stored, without its defaults.
        partition: name of the partition, or several as ``a,b``.
        nodes: of the partitions.
        settings: the fields of ``scontrol show partition``, for each of them.
        tasks: whether each node of the run is a job of its own, so that a host may hold several.
    """
    gpus, features = gpus_in(f"gpu:{spec.get('gpus_per_node') or 0}"), features_of(spec.get("constraint"))
    never = parse.expand(spec["exclude"]) if spec.get("exclude") else ()
    fits = [
        node
        for node in nodes
        if node.name not in never and (features or frozenset()) <= node.features and node.gpus >= gpus
    ]
    found = list(settings)
    is_whole = spec.get("exclusive") or all(_says(one, "OverSubscribe", "EXCLUSIVE") for one in found)
    most: int | None = len(fits)
    each = ""
    if not tasks:
        limits = [int(one["MaxNodes"]) for one in found if one.get("MaxNodes", "").isdecimal()]
        if limits and len(limits) == len(found) and max(limits) < len(fits):
            most, each = max(limits), "MaxNodes, for one job"
    elif not is_whole and gpus:
        most, each = sum(node.gpus // gpus for node in fits), f"GPUs: {gpus} each"
    elif not is_whole:
        most, each = _by_cpus(spec, found)
    return Room(partition, len(fits), sum(node.is_up for node in fits), most, each)


def _by_cpus(spec: Mapping[str, Any], settings: list[Mapping[str, str]]) -> tuple[int | None, str]:
    """Return how many tasks the CPUs of the partitions are enough for."""
    cpus = int(spec.get("cpus_per_node") or spec.get("cpus_per_task") or 1)
    totals = [one.get("TotalCPUs", "") for one in settings]
    is_known = all(total.isdecimal() for total in totals)
    if not is_known or any(_says(one, "OverSubscribe", "FORCE") for one in settings):
        return None, ""
    return sum(map(int, totals)) // cpus, f"CPUs: {cpus} each"


def _says(fields: Mapping[str, str], name: str, start: str) -> bool:
    return fields.get(name, "").startswith(start)


def refuse_beyond(found: Room, size: int) -> None:
    """Refuse a size that the partition never holds.

    Raises:
        InputError: with both numbers.
    """
    if found.most is None or size <= found.most:
        return
    raise InputError(
        f"{are_text(size, 'node')} wanted, which can never run at once: {found.text()}",
        where="--nodes",
        fix=f"give {found.most} or less"
        if found.most
        else "look at the job's request for each node: sinfo -o '%P %D %c %m %G'",
    )
