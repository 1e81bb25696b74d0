"""Job steps of a fake Slurm: their start by srun, and srun's acts when tasks or nodes end. Pure."""

from __future__ import annotations

import os
import signal

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.testing.fake_slurm.cluster import endings
from hpc_elastic.testing.fake_slurm.cluster.endings import WARN_PAIR, StartTasks, Turn
from hpc_elastic.testing.fake_slurm.cluster.model import NEVER, Job, Place, State, Step, Task

LAUNCH_FAILED = 233
KILLED = 137


class StepRequest(NamedTuple):
    """The request to srun."""

    nodes: int
    ntasks: int
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    no_kill: bool = False
    kill_on_bad_exit: bool = False
    wait_s: float = 0.0
    overlap: bool = False
    gpus_per_task: int = 0


class Refused(NamedTuple):
    """Why there is no step; `wait` says that one may come later."""

    text: str
    code: int = 1
    wait: bool = False


def lay_out(nodes: tuple[str, ...], ntasks: int) -> tuple[Task, ...]:
    """Return the tasks in rank order, as evenly as possible, those of one node next to each other."""
    share, rest = divmod(ntasks, len(nodes))
    tasks: list[Task] = []
    for index, node in enumerate(nodes):
        tasks += [Task(len(tasks) + local, node, local) for local in range(share + (index < rest))]
    return tuple(tasks)


def create(turn: Turn, job: Job, request: StepRequest, srun: int) -> Step | Refused:
    """Create a step and have its tasks started."""
    if job.state is not State.RUNNING:
        why = "Job/step already completing or completed"
        return Refused(f"srun: error: Unable to create step for job {job.id}: {why}\n")
    wanted = [node for node in job.nodes if node not in request.exclude]
    if request.nodelist:
        wanted = [node for node in request.nodelist if node in wanted]
    if len(wanted) < request.nodes:
        why = "More processors requested than permitted"
        return Refused(f"srun: error: Unable to create step for job {job.id}: {why}\n")
    busy = {place.node for place in job.live if place.step.isdigit()}
    free = [node for node in wanted if request.overlap or node not in busy]
    if len(free) < request.nodes:
        why = "Requested nodes are busy"
        return Refused(f"srun: error: Unable to create step for job {job.id}: {why}\n", wait=True)
    nodes = tuple(free[: request.nodes])
    silent = [node for node in nodes if not turn.world.nodes[node].answers]
    if silent:
        where = f"StepId={job.id}.{job.next_step} failed on node {silent[0]}"
        text = f"srun: error: Task launch for {where}: Communication connection failure\n"
        return Refused(text, LAUNCH_FAILED)
    return _begin(turn, job, request, lay_out(nodes, request.ntasks), srun)


def _begin(turn: Turn, job: Job, request: StepRequest, tasks: tuple[Task, ...], srun: int) -> Step:
    step = Step(
        number=job.next_step,
        tasks=tasks,
        srun=srun,
        no_kill=request.no_kill,
        kill_on_bad_exit=request.kill_on_bad_exit,
        wait_s=request.wait_s,
        overlap=request.overlap,
        gpus_per_task=request.gpus_per_task,
    )
    places = places_of(job, step)
    turn.put(
        job._replace(steps=(*job.steps, step), next_step=job.next_step + 1, live=job.live | frozenset(places))
    )
    for place in places:
        turn.actions.append(StartTasks(place, tuple(task for task in tasks if task.node == place.node)))
    return step


def places_of(job: Job, step: Step) -> list[Place]:
    """Return where a step lives or lived."""
    return [Place(job.id, job.start, str(step.number), node) for node in step.nodes]


def _live(job: Job, step: Step) -> list[Place]:
    return [place for place in places_of(job, step) if place in job.live]


def task_ended(turn: Turn, place: Place, rank: int, status: int) -> None:
    """Take notice of the end of a task."""
    job = turn.world.jobs.get(place.job)
    step = None if job is None or job.start != place.start else job.step(place.step)
    if job is None or step is None:
        return
    tasks = tuple(task._replace(code=status) if task.rank == rank else task for task in step.tasks)
    step = step._replace(tasks=tasks)
    if status != 0:
        turn.tell(step.srun, _bad_exit_text(place.node, rank, status))
    if not step.is_over:
        step = _hasten(turn, step, status)
    turn.put(job.with_step(step))


def _hasten(turn: Turn, step: Step, status: int) -> Step:
    """Return the step with limits for the tasks that are left."""
    if status != 0 and step.kill_on_bad_exit and step.term_s == NEVER:
        wait_s = turn.world.settings.kill_wait
        return step._replace(term_s=turn.now + 1, kill_s=min(step.kill_s, turn.now + 1 + wait_s))
    if step.wait_s > 0 and step.kill_s == NEVER:
        return step._replace(kill_s=turn.now + step.wait_s)
    return step


def _bad_exit_text(node: str, rank: int, status: int) -> str:
    if os.WIFSIGNALED(status):
        how = signal.strsignal(os.WTERMSIG(status)) or "Killed"
    else:
        how = f"Exited with exit code {os.WEXITSTATUS(status)}"
    return f"srun: error: {node}: task {rank}: {how}\n"


def place_gone(turn: Turn, place: Place) -> None:
    """Take notice that no process of a step is left on a node; ends its srun when that was the last."""
    job = turn.world.jobs.get(place.job)
    if job is None or place not in job.live:
        return
    step = job.step(place.step)
    if step is not None:
        left = [one for one in _live(job, step) if one != place]
        if not left:
            end_srun(turn, job, step)
    endings.place_gone(turn, place)


def end_srun(turn: Turn, job: Job, step: Step) -> None:
    """Let the srun of a step return."""
    turn.tell(step.srun, "", exit_code(step))
    turn.put(turn.job(job.id).with_step(step._replace(srun=0, kill_s=NEVER, term_s=NEVER)))


def exit_code(step: Step) -> int:
    """Return srun's exit code: the highest of its tasks."""
    codes = [task.code for task in step.tasks if task.code is not None]
    return max(
        (os.WEXITSTATUS(c) if os.WIFEXITED(c) else 128 + os.WTERMSIG(c) for c in codes), default=KILLED
    )


def srun_signalled(turn: Turn, srun: int, number: int) -> None:
    """Take notice that an srun got a signal: SIGTERM kills its tasks, others are passed on.

    SIGINT only reports, unless another one has come within a second. While the job is
    COMPLETING the tasks are ended by Slurm anyway, and srun's wish changes nothing.
    """
    found = _step_of(turn, srun)
    if found is None:
        return
    job, step = found
    if number == signal.SIGINT and turn.now > step.interrupted_s + 1:
        turn.put(job.with_step(step._replace(interrupted_s=turn.now)))
        running = f"StepId={job.id}.{step.number} tasks 0-{len(step.tasks) - 1}: running"
        turn.tell(srun, f"srun: interrupt (one more within 1 sec to abort)\nsrun: {running}\n")
    elif number not in (signal.SIGTERM, signal.SIGQUIT):
        turn.signal(_live(job, step), (number,))
    elif job.state is State.RUNNING:
        turn.tell(srun, "srun: forcing job termination\n")
        turn.kill(_live(job, step))


def srun_gone(turn: Turn, srun: int, *, with_script: bool) -> None:
    """Take notice that an srun is dead: its tasks are killed.

    Args:
        turn: this turn.
        srun: its connection.
        with_script: it went together with its batch script; then Slurm ends the tasks with the job.
    """
    found = _step_of(turn, srun)
    if found is None:
        return
    job, step = found
    turn.put(job.with_step(step._replace(srun=0)))
    host = next(
        (place.node for place in job.live if place.step == "batch"), job.nodes[0] if job.nodes else ""
    )
    if host and not with_script and turn.world.nodes[host].answers:
        turn.kill(_live(job, step))


def _step_of(turn: Turn, srun: int) -> tuple[Job, Step] | None:
    for job in turn.world.jobs.values():
        for step in job.steps:
            if srun and step.srun == srun:
                return job, step
    return None


def node_lost(turn: Turn, job: Job, node: str) -> None:
    """Take a node out of all steps of a job that goes on without it."""
    for step in job.steps:
        if node not in step.nodes or step.is_over:
            continue
        tasks = tuple(
            task._replace(lost=True) if task.node == node and task.code is None else task
            for task in step.tasks
        )
        step = step._replace(tasks=tasks)  # noqa: PLW2901 - the same step, changed
        job = turn.put(turn.job(job.id).with_step(step))
        turn.tell(step.srun, f"srun: error: Node failure on {node}\n")
        if not step.no_kill:
            turn.kill(_live(job, step))
        if not _live(job, step):
            end_srun(turn, job, step)


def signal_tasks(turn: Turn, job: Job, numbers: tuple[int, ...], step: str = "") -> None:
    """Send signals to the tasks of a job, or of one step."""
    turn.signal([p for p in job.live if p.step.isdigit() and step in ("", p.step)], numbers)


def kill_step(turn: Turn, job: Job, number: str) -> bool:
    """SIGKILL a step; False if there is none."""
    step = job.step(number)
    if step is None or not _live(job, step):
        return False
    turn.kill(_live(job, step))
    return True


def pass_limits(turn: Turn, job: Job) -> None:
    """End the tasks of steps whose limit after a first end has come."""
    for step in job.steps:
        if step.term_s <= turn.now:
            turn.signal(_live(job, step), WARN_PAIR)
            job = turn.put(turn.job(job.id).with_step(step._replace(term_s=NEVER)))
        if step.kill_s <= turn.now:
            turn.kill(_live(job, step))
            job = turn.put(turn.job(job.id).with_step(step._replace(kill_s=NEVER)))
