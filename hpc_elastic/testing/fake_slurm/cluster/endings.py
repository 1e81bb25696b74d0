"""One turn of a fake Slurm: a job starts, is warned, preempted, ended and put back. Pure.

    submitted -> PENDING -> RUNNING -> COMPLETING (SIGTERM, SIGKILL after KillWait) -> final state
                    ^                      |
                    +---- put back --------+   Restarts counts at once, PENDING follows when all processes
                                               on the nodes that answer are gone

It follows recordings of Slurm 22.05, and of 24.11 and 26.05 where they differ. The docs of
`hpc_elastic.testing` list the differences.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.testing.fake_slurm.cluster.model import (
    BATCH,
    NEVER,
    REQUEUE_HOLD,
    Ending,
    Job,
    Place,
    SacctRow,
    Share,
    State,
    Task,
    World,
)

WARN_PAIR = (signal.SIGTERM, signal.SIGCONT)  # Slurm sends both, in no certain order


def start(turn: Turn, job: Job, shares: Mapping[str, Share]) -> None:
    """Start a pending job on some nodes."""
    nodes = tuple(shares)
    limit = job.request.limit_s
    turn.put(
        job._replace(
            state=State.RUNNING,
            reason="None",
            start=job.restarts,
            start_s=turn.now,
            end_s=None if limit is None else turn.now + limit,
            preempt_s=None,
            nodes=nodes,
            shares=shares,
            live=frozenset((Place(job.id, job.restarts, BATCH, nodes[0]),)),
            steps=(),
            next_step=0,
            exit_code=0,
            ending=None,
            kill_s=NEVER,
            warned=False,
            waits_as="",
        )
    )
    turn.actions.append(StartScript(job.id))
    turn.say(f"job {job.ref}: starts on {','.join(nodes)}, start {job.restarts}")


def script_ended(turn: Turn, place: Place, status: int) -> None:
    """Take notice that a batch script has ended."""
    job = turn.world.jobs.get(place.job)
    if job is None or place not in job.live:
        return None
    job = turn.put(job._replace(exit_code=status))
    turn.say(f"job {job.ref}: its script ended with {exit_text(status)}")
    sent_back = os.WIFEXITED(status) and os.WEXITSTATUS(status) in turn.world.settings.requeue_exit
    if job.state is State.RUNNING:
        if sent_back and job.request.requeue:
            return end(turn, job, Ending(State.REQUEUED, requeue=True))
        return _end_by_script(turn, job, status)
    ending = job.ending
    if ending is None or ending.requeue or ending.state is State.CANCELLED:
        return None
    if _is_held_for(job, status):
        turn.put(_counted(job)._replace(ending=_HELD))
    elif ending.state is State.TIMEOUT and sent_back and job.request.requeue:
        turn.put(_counted(job)._replace(ending=Ending(State.REQUEUED, requeue=True)))
    return None


_HELD = Ending(State.REQUEUED, requeue=True, hold=True, waits_as=REQUEUE_HOLD)


def _is_held_for(job: Job, status: int) -> bool:
    """Tell whether Slurm takes an exit code for a fault of a node, of which no Epilog knows."""
    is_failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    return is_failed and job.request.expedite and job.request.requeue


def _end_by_script(turn: Turn, job: Job, status: int) -> None:
    is_newer = turn.world.settings.is_newer
    if is_newer and job.in_grace:
        return end_preempted(turn, job)
    if status == 0:
        return end(turn, job, Ending(State.COMPLETED))
    if _is_held_for(job, status):
        return end(turn, job, _HELD)
    reason = "NonZeroExitCode"
    if os.WIFSIGNALED(status) and is_newer:
        number = os.WTERMSIG(status)
        reason = f"RaisedSignal:{number}({signal.strsignal(number)})"
    elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        reason = "JobLaunchFailure"
    return end(turn, job, Ending(State.FAILED), reason)


def _counted(job: Job) -> Job:
    """Return the job with one restart more, unless this ending has been counted."""
    is_counted = job.restarts > job.start
    return job if is_counted else job._replace(restarts=job.restarts + 1, preempt_s=None)


def end(turn: Turn, job: Job, ending: Ending, reason: str = "None") -> None:
    """Let a running job be COMPLETING: SIGTERM and SIGCONT to all, SIGKILL after KillWait."""
    kill_s = turn.now + turn.world.settings.kill_wait
    job = job._replace(state=State.COMPLETING, ending=ending, reason=reason, kill_s=kill_s, end_s=turn.now)
    if ending.requeue:
        job = _counted(job)
    elif ending.state is State.PREEMPTED:
        job = job._replace(preempt_s=turn.now)
    turn.put(job)
    turn.say(f"job {job.ref}: ends as {ending.state.value}" + (", to be put back" if ending.requeue else ""))
    turn.signal(job.live, WARN_PAIR)
    settle(turn, job)


def settle(turn: Turn, job: Job) -> None:
    """Finish a completing job of which no process is left."""
    if job.state is State.COMPLETING and not job.live:
        _finish(turn, job)


def place_gone(turn: Turn, place: Place) -> None:
    """Take notice that no process is left in a place."""
    job = turn.world.jobs.get(place.job)
    if job is None or place not in job.live:
        return
    settle(turn, turn.put(job._replace(live=job.live - {place})))


def _finish(turn: Turn, job: Job) -> None:
    ending = job.ending or Ending(State.FAILED)
    shown = State.REQUEUED if ending.requeue and ending.state is State.COMPLETED else ending.state
    word = f"{shown.value} by {ending.by}" if shown is State.CANCELLED else shown.value
    job = job._replace(rows=(*job.rows, row_of(job, word)))
    if ending.requeue:
        return _put_back(turn, job, hold=ending.hold, waits_as=ending.waits_as)
    turn.put(job._replace(state=ending.state, kill_s=NEVER, row=0))
    turn.say(f"job {job.ref}: is {ending.state.value}")
    return None


def _put_back(turn: Turn, job: Job, *, hold: bool, waits_as: str = "") -> None:
    delay_s = 0.0 if job.request.expedite else turn.world.settings.requeue_delay_s
    delay_s = max(delay_s, job.eligible_s - turn.now)  # its owner may have put the start off already
    turn.put(
        job._replace(
            state=State.PENDING,
            reason="job_requeued_in_held_state" if hold else "BeginTime",
            held=hold,
            waits_as=waits_as,
            submit_s=turn.now,
            eligible_s=turn.now + delay_s,
            row=turn.new_row(),
            start_s=None,
            end_s=None,
            preempt_s=None,
            nodes=(),
            shares={},
            live=frozenset(),
            steps=(),
            exit_code=0,
            ending=None,
            kill_s=NEVER,
        )
    )
    turn.say(f"job {job.ref}: is back in the queue" + (", held" if hold else f" for {delay_s:.1f} s"))


def row_of(job: Job, word: str, end_s: float | None = None) -> SacctRow:
    """Return the line of sacct for a job as it is.

    Args:
        job: the job.
        word: the state in sacct's words.
        end_s: when it ended; by the job if None.
    """
    by_itself = word in ("COMPLETED", "FAILED")
    return SacctRow(
        number=job.row,
        state=word,
        exit_code=account_code(job.exit_code) if by_itself else "0:0",
        submit_s=job.submit_s,
        start_s=job.start_s,
        end_s=job.end_s if end_s is None else end_s,
        nodes=job.nodes,
        reason=job.reason if word not in ("RESIZING", "REQUEUED") else "None",
        steps=step_rows(job, word),
    )


def step_rows(job: Job, word: str) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    """Return name, state, exit code and nodes of the batch step and of each step."""
    if not job.nodes:
        return ()
    runs = word == "RUNNING"
    batch = word if runs or word == "RESIZING" else _step_state(job.exit_code, word)
    rows = [(BATCH, batch, "0:0" if runs else account_code(job.exit_code), job.nodes[:1])]
    for step in job.steps:
        worst = max((task.code or 0 for task in step.tasks), default=0)
        state = "RUNNING" if runs and not step.is_over else _step_state(worst, word)
        rows.append((str(step.number), state, account_code(worst), step.nodes))
    return tuple(rows)


def _step_state(status: int, word: str) -> str:
    if os.WIFSIGNALED(status):
        return "CANCELLED"
    if status:
        return "FAILED"
    return "CANCELLED" if word.startswith("CANCELLED") else "COMPLETED"


def exit_text(status: int) -> str:
    """Return a wait status as scontrol shows it: code and signal."""
    return f"0:{os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"{os.WEXITSTATUS(status)}:0"


def account_code(status: int) -> str:
    """Return a wait status as sacct shows it: a code of 137 is a 9 there."""
    code = exit_text(status)
    number, _, by = code.partition(":")
    return f"{int(number) & 127 if int(number) > 128 else number}:{by}"  # noqa: PLR2004 - the shell's 128 + n


# Wishes


def preempt(turn: Turn, job: Job) -> None:
    """Begin to preempt a running job: its steps are warned, the batch script hears nothing."""
    grace_s = turn.world.partitions[job.request.partition].grace_s
    if grace_s <= 0:
        return end_preempted(turn, job, warn_by_wish=True)
    job = turn.put(job._replace(preempt_s=turn.now, end_s=turn.now + grace_s))
    turn.say(f"job {job.ref}: is preempted, {grace_s:.0f} s of grace")
    steps = [place for place in job.live if place.step != BATCH]
    if _has_own_signal(turn, job):
        return send_warning(turn, job)
    return turn.signal(steps, WARN_PAIR)


def _has_own_signal(turn: Turn, job: Job) -> bool:
    return turn.world.settings.user_signal and job.request.warning is not None


def send_warning(turn: Turn, job: Job) -> None:
    """Send the signal that the job has asked for, to its steps or to its script."""
    wish = job.request.warning
    if wish is None:
        return
    places = [place for place in job.live if (place.step == BATCH) is wish.to_script]
    reach = ReachNode.FIRST if wish.to_script else ReachNode.TRACKED
    turn.signal(places, (wish.number, signal.SIGCONT), reach)


def end_preempted(turn: Turn, job: Job, *, warn_by_wish: bool = False) -> None:
    """End a preempted job whose grace is over."""
    mode = turn.world.partitions[job.request.partition].preempt
    if warn_by_wish and _has_own_signal(turn, job):
        send_warning(turn, job)
    end(turn, job, Ending(State.PREEMPTED, requeue=mode == "REQUEUE" and job.request.requeue))


def cancel(turn: Turn, job: Job, uid: int) -> None:
    """Cancel a job."""
    ending = Ending(State.CANCELLED, by=uid)
    if job.state is State.PENDING:
        ended = job._replace(state=State.CANCELLED, end_s=turn.now, ending=ending, held=False)
        row = row_of(ended, f"CANCELLED by {uid}")
        turn.put(ended._replace(rows=(*job.rows, row), row=0))
        turn.say(f"job {job.ref}: cancelled while it was pending")
    elif job.state is State.RUNNING:
        end(turn, job._replace(preempt_s=None) if job.in_grace else job, ending)
    elif job.state is State.COMPLETING and job.ending is not None and job.ending.requeue:
        turn.put(job._replace(ending=ending))


def requeue(turn: Turn, job: Job, *, hold: bool = False) -> str:
    """Put a job back.

    Returns:
        Why it is refused, in Slurm's words; empty if it is not.
    """
    if not job.request.requeue:
        return "Requested operation is presently disabled"
    ending = Ending(State.REQUEUED, requeue=True, hold=hold)
    reason = "job_requeued_in_held_state" if hold else "None"
    if job.state is State.PENDING:
        if hold:
            turn.put(job._replace(held=True, reason=reason))
            return ""
        return "Job is pending execution"
    if job.state is State.RUNNING:
        end(turn, job._replace(exit_code=0), ending, reason)
    elif job.state is State.COMPLETING:
        turn.put(_counted(job)._replace(ending=ending))
    else:
        _put_back(turn, job._replace(restarts=job.restarts + 1), hold=hold)
    return ""


def warn(turn: Turn, job: Job) -> None:
    """Warn a job ahead of its time limit."""
    turn.say(f"job {job.ref}: is warned, its time limit nears")
    send_warning(turn, turn.put(job._replace(warned=True)))


def kill(turn: Turn, job: Job) -> None:
    """SIGKILL the rest of a completing job."""
    turn.say(f"job {job.ref}: KillWait is over")
    turn.kill(turn.put(job._replace(kill_s=NEVER)).live)


class ReachNode(Enum):
    """The processes of a place that get a signal."""

    TRACKED = "tracked"  # cgroup: the tasks or the batch script; linuxproc: all below them, too
    FIRST = "first"  # only the tasks or the batch script
    WHOLE = "whole"  # everything


class StartScript(NamedTuple):
    """Start the batch script of a job."""

    job: int


class StartTasks(NamedTuple):
    """Start the tasks of a step on one node."""

    place: Place
    tasks: tuple[Task, ...]


class SendSignals(NamedTuple):
    """Send signals to the processes of some places."""

    places: tuple[Place, ...]
    numbers: tuple[int, ...]
    reach: ReachNode = ReachNode.TRACKED


class KillAll(NamedTuple):
    """SIGKILL every process of some places."""

    places: tuple[Place, ...]


class TellSrun(NamedTuple):
    """Let an srun print to its stderr, and end if there is an exit code."""

    srun: int
    text: str
    code: int | None = None


Action = StartScript | StartTasks | SendSignals | KillAll | TellSrun


class Turn:
    """Collects the changes of one event and the acts that it asks for.

    Args:
        world: the state before.
        now: Slurm's time [s since the epoch].
    """

    def __init__(self, world: World, now: float) -> None:
        self.world = world
        self.now = now
        self.actions: list[Action] = []
        self.story: list[str] = []

    def job(self, number: int) -> Job:
        """Return a job as it is now."""
        return self.world.jobs[number]

    def put(self, job: Job) -> Job:
        """Change a job."""
        self.world = self.world.with_job(job)
        return job

    def new_row(self) -> int:
        """Return a number for another row of sacct."""
        number = self.world.next_row
        self.world = self.world._replace(next_row=number + 1)
        return number

    def signal(
        self, places: Iterable[Place], numbers: tuple[int, ...], reach: ReachNode = ReachNode.TRACKED
    ) -> None:
        """Have signals sent."""
        found = tuple(sorted(places))
        if found:
            self.actions.append(SendSignals(found, numbers, reach))

    def kill(self, places: Iterable[Place]) -> None:
        """Have all processes of some places killed."""
        found = tuple(sorted(places))
        if found:
            self.actions.append(KillAll(found))

    def tell(self, srun: int, text: str, code: int | None = None) -> None:
        """Have an srun print a line."""
        if srun:
            self.actions.append(TellSrun(srun, text, code))

    def say(self, text: str) -> None:
        """Write a line into the controller's log."""
        self.story.append(text)
