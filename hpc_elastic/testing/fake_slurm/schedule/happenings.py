"""What happens to a fake Slurm by itself or from outside: time passes, nodes come and go. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_elastic.testing.fake_slurm.cluster.model import BATCH, NEVER, Ending, Job, Node, Place, State, World
from hpc_elastic.testing.fake_slurm.schedule import endings, schedule, steps
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn

_FAILED = 1 << 8  # the wait status of exit code 1


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
            endings.end(turn, job, Ending(State.NODE_FAIL, requeue=again), "None" if again else "NodeDown")
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
    """Take notice of what a step daemon has said: ``ended RANK STATUS ...`` or ``gone``."""
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
    schedule.schedule(turn)
