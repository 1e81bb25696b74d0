"""Scheduling and events of a fake Slurm: pending jobs start or wait, time passes, nodes come and go. Pure.

Jobs are taken by partition tier, then in the order of submission. A job that fits is started, also when
an earlier one of the same tier waits for more nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.testing.fake_slurm.cluster import endings, steps
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import (
    BATCH,
    EXPEDITING,
    NEVER,
    Ending,
    Job,
    Node,
    Place,
    Share,
    State,
    World,
)

_FAILED = 1 << 8  # the wait status of exit code 1

NODES_DOWN = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
_SUCCEEDED = frozenset((State.COMPLETED,))


class Fit(NamedTuple):
    """The free part of a node."""

    cpus: int
    gpus: tuple[int, ...]
    is_empty: bool


def schedule(turn: Turn) -> None:
    """Start the jobs that can start; preempt for those that may."""
    reserved: set[str] = set()
    waiting = False
    for job in in_order(turn.world):
        reason = why_not(turn.world, turn.now, job)
        if reason is None:
            reason = _place(turn, job, reserved, waiting=waiting)
            waiting = waiting or reason is not None
        if reason is not None and reason != job.reason:
            turn.put(turn.job(job.id)._replace(reason=reason))


def in_order(world: World) -> list[Job]:
    """Return the pending jobs, the most urgent first."""

    def urgency(job: Job) -> tuple[float, ...]:
        tier = world.partitions[job.request.partition].tier
        return (-tier, job.submit_s, job.array or job.id, job.task or 0)

    return sorted((job for job in world.jobs.values() if job.state is State.PENDING), key=urgency)


def why_not(world: World, now: float, job: Job) -> str | None:
    """Return why a pending job may not start even on free nodes; None if it may."""
    if job.held:
        return job.reason if job.reason == "job_requeued_in_held_state" else "JobHeldUser"
    waits_for = dependency_reason(world, job) or ("BeginTime" if job.eligible_s > now else "")
    if waits_for:
        return waits_for
    if job.launch_s + world.settings.start_delay > now:
        return "None"
    if not world.partitions[job.request.partition].up:
        return "PartitionDown"
    limit = job.request.throttle
    if limit and sum(1 for one in world.tasks_of(job.array) if one.state.holds_nodes) >= limit:
        return "JobArrayTaskLimit"
    return "PartitionNodeLimit" if job.request.min_nodes > len(world.nodes) else None


def dependency_reason(world: World, job: Job) -> str:
    """Return the reason while a dependency is not met; empty if all are."""
    for part in filter(None, job.request.dependency.split(",")):
        met = _is_met(world, job, part)
        if met is None:
            return "Dependency"
        if not met:
            return "DependencyNeverSatisfied"
    return ""


def _is_met(world: World, job: Job, part: str) -> bool | None:
    """Tell whether a dependency is met; None if it still may be."""
    kind, *ids = part.split(":")
    if kind == "singleton":
        same = (one for one in world.jobs.values() if one.request.name == job.request.name)
        return None if any(one.id < job.id and not one.state.is_final for one in same) else True
    others = [one for text in ids for one in find_jobs(world, text.partition("+")[0])]
    if kind == "after":
        started = all(one.start_s is not None or one.state.is_final for one in others)
        return True if started else None
    if any(not one.state.is_final for one in others):
        return None
    if kind == "afterany":
        return True
    succeeded = all(one.state in _SUCCEEDED for one in others)
    return succeeded if kind == "afterok" else not succeeded


def find_jobs(world: World, text: str) -> list[Job]:
    """Return the jobs that ``12``, ``12_3`` or ``12_[1-3]`` names; of an array's id all its tasks."""
    match = re.fullmatch(r"(\d+)(?:_\[?([\d,-]+?)\]?|_\*)?", text)
    if match is None:
        return []
    number = int(match[1])
    if match[2]:
        wanted = set(numbers(match[2]))
        return [job for job in world.tasks_of(number) if job.task in wanted]
    tasks = world.tasks_of(number)
    if tasks:
        return tasks
    return [world.jobs[number]] if number in world.jobs else []


def numbers(text: str) -> list[int]:
    """Return the numbers in ``0-3,7,10-20:5``.

    Raises:
        ValueError: it is no such list.
    """
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        found.extend(range(int(first), int(last if dash else first) + 1, int(step or 1)))
    return found


def free_of(world: World, node: str, without: Collection[int] = ()) -> Fit:
    """Return the free part of a node, as if some jobs were gone."""
    shares = [job.shares[node] for job in world.on_node(node) if job.id not in without and node in job.shares]
    used = {gpu for share in shares for gpu in share.gpus}
    gpus = tuple(gpu for gpu in range(world.settings.gpus) if gpu not in used)
    return Fit(world.settings.cpus - sum(share.cpus for share in shares), gpus, not shares)


def share_for(world: World, job: Job, node: str, without: Collection[int] = ()) -> Share | None:
    """Return a job's part of a node; None if it does not fit."""
    request, fit = job.request, free_of(world, node, without)
    if request.exclusive:
        return Share(world.settings.cpus, tuple(fit.gpus)) if fit.is_empty else None
    if fit.cpus < request.cpus_per_node or len(fit.gpus) < request.gpus_per_node:
        return None
    return Share(request.cpus_per_node, fit.gpus[: request.gpus_per_node])


def candidates(world: World, job: Job) -> list[str]:
    """Return the nodes that a job may use and that are in order, by its wish first."""
    wanted = job.request.nodelist or tuple(world.nodes)
    usable = [name for name in wanted if name in world.nodes and name not in job.request.exclude]
    return [name for name in usable if not (world.nodes[name].is_down or world.nodes[name].drained)]


def _place(turn: Turn, job: Job, reserved: set[str], *, waiting: bool) -> str | None:
    """Start a job if it fits, else preempt for it; returns why it waits."""
    names = [name for name in candidates(turn.world, job) if name not in reserved]
    needed = set(job.request.nodelist)
    found = {name: share for name in names if (share := share_for(turn.world, job, name)) is not None}
    least = max(job.request.min_nodes, len(needed))
    if len(found) >= least and needed <= set(found):
        first = sorted(found, key=lambda name: (name not in needed, list(turn.world.nodes).index(name)))
        chosen = sorted(first[: max(least, job.request.max_nodes)], key=list(turn.world.nodes).index)
        endings.start(turn, job, {name: found[name] for name in chosen})
        return None
    if needed and not needed <= set(names):
        return f"ReqNodeNotAvail,_UnavailableNodes:{','.join(sorted(needed - set(names)))}"
    if len(names) < least:
        return NODES_DOWN if not reserved else "Priority"
    reserved |= _make_room(turn, job, names, least)
    return "Priority" if waiting else "Resources"


def _make_room(turn: Turn, job: Job, names: Iterable[str], least: int) -> set[str]:
    """Preempt jobs of lower tiers for a job; returns the nodes that are kept for it."""
    names = list(names)
    tier = turn.world.partitions[job.request.partition].tier
    leaving = {one.id for one in turn.world.jobs.values() if one.state is State.COMPLETING or one.in_grace}
    gone: set[int] = set(leaving)
    victims: list[Job] = []
    for victim in _victims(turn.world, tier):
        if len(_fitting(turn.world, job, names, gone)) >= least:
            break
        if victim.id not in gone and set(victim.nodes) & set(names):
            gone.add(victim.id)
            victims.append(victim)
    fitting = _fitting(turn.world, job, names, gone)
    if len(fitting) < least or (not victims and not leaving):
        return set()
    for victim in victims:
        endings.preempt(turn, victim)
    return set(fitting[:least])


def _fitting(world: World, job: Job, names: list[str], gone: Collection[int]) -> list[str]:
    return [name for name in names if share_for(world, job, name, gone) is not None]


def _victims(world: World, tier: int) -> list[Job]:
    """Return the jobs that may be preempted from a tier, the youngest first."""
    found = []
    for job in world.jobs.values():
        partition = world.partitions[job.request.partition]
        if (
            job.state is State.RUNNING
            and not job.in_grace
            and partition.tier < tier
            and partition.preempt != "OFF"
        ):
            found.append(job)
    return sorted(found, key=lambda job: -(job.start_s or 0.0))


def next_due(world: World) -> float:
    """Return when something will happen by itself; NEVER if nothing will."""
    return min(_due_times(world), default=NEVER)


def _due_times(world: World) -> Iterator[float]:
    for node in world.nodes.values():
        if node.silent_since is not None and not node.is_down:
            yield node.silent_since + world.settings.detection_s
    for job in world.jobs.values():
        if job.state is State.PENDING and not job.held and job.reason == "BeginTime":
            yield job.eligible_s
        elif job.state is State.PENDING and not job.held and job.reason == "None":
            yield job.launch_s + world.settings.start_delay
        elif job.state is State.RUNNING:
            yield job.end_s if job.end_s is not None else NEVER
            yield _warn_at(job)
            yield min((min(step.kill_s, step.term_s) for step in job.steps), default=NEVER)
        elif job.state is State.COMPLETING:
            yield job.kill_s


def _warn_at(job: Job) -> float:
    if job.request.warning is None or job.warned or job.end_s is None or job.in_grace:
        return NEVER
    return job.end_s - job.request.warning.before_s


def pass_time(turn: Turn) -> None:
    """Let everything happen that is due."""
    detection_s = turn.world.settings.detection_s
    for node in list(turn.world.nodes.values()):
        if node.silent_since is not None and not node.is_down and node.silent_since + detection_s <= turn.now:
            node_down(turn, node, "Not responding")
    for number in list(turn.world.jobs):
        _pass_time_of(turn, turn.job(number))


def _pass_time_of(turn: Turn, job: Job) -> None:
    if job.state is State.COMPLETING and job.kill_s <= turn.now:
        return endings.kill(turn, job)
    if job.state is not State.RUNNING:
        return None
    steps.pass_limits(turn, job)
    job = turn.job(job.id)
    if _warn_at(job) <= turn.now:
        endings.warn(turn, job)
    job = turn.job(job.id)
    if job.end_s is None or job.end_s > turn.now:
        return None
    if job.in_grace:
        return endings.end_preempted(turn, job)
    return endings.end(turn, job, Ending(State.TIMEOUT), "TimeLimit")


def node_down(turn: Turn, node: Node, reason: str) -> None:
    """Take a node down: its jobs end or go on without it."""
    turn.world = turn.world.with_node(node._replace(is_down=True, reason=reason))
    turn.say(f"node {node.name}: down, {reason}")
    for job in list(turn.world.on_node(node.name)):
        there = {place for place in job.live if place.node == node.name}
        if job.state is State.RUNNING and job.request.no_kill and len(job.nodes) > 1:
            _go_on_without(turn, job, node.name)
            if node.answers:
                turn.kill(there)
            continue
        if not node.answers:
            job = turn.put(job._replace(live=job.live - there))  # noqa: PLW2901 - the same job, changed
        if job.state is State.RUNNING:
            again = job.request.requeue
            waits_as = EXPEDITING if job.request.expedite else ""
            ending = Ending(State.NODE_FAIL, requeue=again, waits_as=waits_as)
            endings.end(turn, job, ending, "None" if again else "NodeDown")
        else:
            endings.settle(turn, job)


def _go_on_without(turn: Turn, job: Job, node: str) -> None:
    """Let a job go on with the nodes that are left; without its first node it has no script any more."""
    turn.say(f"job {job.ref}: goes on without {node}")
    job = _resized(turn, job, tuple(name for name in job.nodes if name != node))
    steps.node_lost(turn, job, node)


def _resized(turn: Turn, job: Job, nodes: tuple[str, ...]) -> Job:
    row = endings.row_of(job, State.RESIZING.value, turn.now)
    live = frozenset(place for place in job.live if place.node in nodes)
    shares = {name: share for name, share in job.shares.items() if name in nodes}
    return turn.put(
        job._replace(
            nodes=nodes,
            shares=shares,
            live=live,
            rows=(*job.rows, row),
            row=turn.new_row(),
            submit_s=turn.now,
        )
    )


def shrink(turn: Turn, job: Job, nodes: tuple[str, ...]) -> str:
    """Give up nodes of a running job; returns why not, in Slurm's words."""
    if job.state is not State.RUNNING or not set(nodes) <= set(job.nodes) or job.nodes[0] not in nodes:
        return "Invalid node name specified"
    gone = [name for name in job.nodes if name not in nodes]
    turn.kill(place for place in job.live if place.node in gone)
    job = _resized(turn, job, tuple(name for name in job.nodes if name in nodes))
    for step in job.steps:
        tasks = tuple(
            task._replace(code=task.code if task.code is not None else 9) if task.node in gone else task
            for task in step.tasks
        )
        job = turn.put(job.with_step(step._replace(tasks=tasks)))
    return ""


def silence(turn: Turn, name: str) -> None:
    """Let the slurmd of a node be heard no more."""
    node = turn.world.nodes[name]
    since = turn.now if node.silent_since is None else node.silent_since
    turn.world = turn.world.with_node(node._replace(answers=False, silent_since=since))
    turn.say(f"node {name}: silent")


def answer(turn: Turn, name: str) -> None:
    """Let the slurmd of a node be heard again; a node that was down for its silence is in order again."""
    node = turn.world.nodes[name]
    back = node._replace(answers=True, silent_since=None)
    if node.reason == "Not responding":
        back = back._replace(is_down=False, reason="")
    turn.world = turn.world.with_node(back)
    turn.say(f"node {name}: answers")


def drain(turn: Turn, name: str, reason: str) -> None:
    """Give a node no more jobs; those that it has go on."""
    turn.world = turn.world.with_node(turn.world.nodes[name]._replace(drained=True, reason=reason))


def resume(turn: Turn, name: str) -> None:
    """Put a node back into service."""
    node = turn.world.nodes[name]
    turn.world = turn.world.with_node(node._replace(drained=False, is_down=not node.answers, reason=""))


def daemon_said(turn: Turn, place: Place, words: list[str]) -> None:
    """Take notice of a step daemon's message: ``ended RANK STATUS ...`` or ``gone``."""
    if words[0] == "ended" and place.step == BATCH:
        endings.script_ended(turn, place, int(words[2]))
    elif words[0] == "ended":
        steps.task_ended(turn, place, int(words[1]), int(words[2]))
    elif words[0] == "gone":
        place_gone(turn, place)


def place_gone(turn: Turn, place: Place) -> None:
    """Take notice that no process is left in a place."""
    if place.step == BATCH:
        endings.place_gone(turn, place)
    else:
        steps.place_gone(turn, place)


def failed_to_start(turn: Turn, place: Place) -> None:
    """Take notice that a script or tasks could not be started at all, as a file could not be opened."""
    if place.step == BATCH:
        endings.script_ended(turn, place, _FAILED)
        return endings.place_gone(turn, place)
    step = turn.job(place.job).step(place.step)
    for task in step.tasks if step is not None else ():
        if task.node == place.node:
            steps.task_ended(turn, place, task.rank, _FAILED)
    return steps.place_gone(turn, place)


def run(turn: Turn) -> None:
    """Let time pass and jobs start."""
    pass_time(turn)
    schedule(turn)
