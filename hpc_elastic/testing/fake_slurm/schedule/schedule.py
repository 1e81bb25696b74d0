"""Which pending job of a fake Slurm starts where, who makes room, and why the others wait. Pure.

Jobs are taken by partition tier, then in the order of submission. A job that fits is started, also when
an earlier one of the same tier waits for more nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from hpc_elastic.testing.fake_slurm.cluster.model import Job, Share, State, World
from hpc_elastic.testing.fake_slurm.schedule import endings
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn

NODES_DOWN = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
_SUCCEEDED = frozenset((State.COMPLETED,))


class Fit(NamedTuple):
    """What a node has left."""

    cpus: int
    gpus: tuple[int, ...]
    is_empty: bool


def schedule(turn: Turn) -> None:
    """Start what can start; preempt for what may."""
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
    """Return what a node has left, as if some jobs were gone."""
    shares = [job.shares[node] for job in world.on_node(node) if job.id not in without and node in job.shares]
    used = {gpu for share in shares for gpu in share.gpus}
    gpus = tuple(gpu for gpu in range(world.settings.gpus) if gpu not in used)
    return Fit(world.settings.cpus - sum(share.cpus for share in shares), gpus, not shares)


def share_for(world: World, job: Job, node: str, without: Collection[int] = ()) -> Share | None:
    """Return what a job would get of a node; None if it does not fit."""
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
