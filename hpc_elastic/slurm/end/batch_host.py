"""The actions of an agent after the loss of the batch script, alone or with its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError, InputError, SlurmCommandError, SlurmNotFoundError, StoreError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.commands import Slurm, look
from hpc_elastic.slurm.client.job_standing import Standing, standing
from hpc_elastic.slurm.client.parse import JobState, job_state
from hpc_elastic.slurm.end.bad_nodes import run_with_nodes
from hpc_elastic.slurm.end.choices import budgets_of
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.end.history import goodbye_of
from hpc_elastic.slurm.end.requeue import LastResort
from hpc_elastic.slurm.run_jobs.job_start import Patience, Say, Start
from hpc_elastic.slurm.run_jobs.run_files import stored_spec
from hpc_elastic.store import files

LIMIT_S = 1800.0  # SlurmdTimeout is 300 s by default; sites raise it
WATCH_S = 8.0  # the script counts every 2 s
STAGGER_S = 20.0  # between one survivor and the next that takes over
KILLED_STAGGER_S = 1.0  # the same where Slurm ends the job for want of its script: all die after KillWait
ASKING = 2  # so many survivors ask Slurm whether it ends the job, while they watch the script
_LOOK_S = 1.0  # between two looks at the run directory
_PAUSE_SHARE = 0.1  # of the time that a survivor has waited for Slurm: its next pause
_LEAST_PAUSE_S = 1.0  # between two questions of the first survivor to Slurm
_LEAST_PAUSE_OF_OTHERS_S = 5.0  # hundreds of them may ask
_LONGEST_PAUSE_S = 15.0


def requeue_in_its_place(
    paths: RunPaths, environ: Mapping[str, str], place: int, clock: Clock, say: Say
) -> None:
    """Finish this start of the job, as the batch script would have done.

    Args:
        paths: the run.
        environ: the environment of a task of the job.
        place: this node's place among the survivors; the first one acts, the others watch.
        clock: paces the questions.
        say: prints a line for people.
    """
    start = _start(paths, environ)
    known = Patience(clock, say)(lambda: read_state(paths))

    def handled() -> bool:
        try:
            state = read_state(paths)
        except StoreError:  # away for a moment: meanwhile no other agent is known to have acted
            return False
        return state.requeued or state.epoch > start.epoch or state.ending is not None

    slurm, killed = Slurm(), known.explained is not None and known.explained.is_end_of_script
    if not killed:
        if script_is_alive(paths, clock, lambda: place < ASKING and _ends_for_its_script(slurm, start)):
            say("its batch script is alive: it decides")
            return
        pause_s = _LEAST_PAUSE_OF_OTHERS_S if place else _LEAST_PAUSE_S
        wait_until_removed(slurm, start.job_ref, known.batch_host, clock, handled=handled, pause_s=pause_s)
        killed = _ends_for_its_script(slurm, start)
    turn = clock.monotonic() + place * (KILLED_STAGGER_S if killed else STAGGER_S)
    while clock.monotonic() < turn and (killed or not handled()):
        clock.sleep(_LOOK_S)
    # another agent may have recorded an act that failed, with its node cut off from Slurm
    if not handled() or (killed and _ends_for_its_script(slurm, start)):
        _finish(start, clock, say)


def requeue_task_in_its_place(paths: RunPaths, environ: Mapping[str, str], clock: Clock, say: Say) -> None:
    """Finish this start of a task of an array, as its batch script would have done; the others go on.

    Args:
        paths: the run.
        environ: the environment of the task.
        clock: paces the questions.
        say: prints a line for people.
    """
    _finish(_start(paths, environ), clock, say)


def task_lost_its_script(paths: RunPaths, task: TaskStart) -> bool:
    """Tell whether an agent of a task has left because Slurm ends the task for want of its batch script."""
    try:
        left = goodbye_of(read_records(paths), task)
    except HpcElasticError:
        return False
    return left is not None and left.cause is Cause.LAUNCH_FAILURE


def ends_for_its_script(paths: RunPaths, environ: Mapping[str, str]) -> bool:
    """Ask Slurm whether it ends the job of this process because its batch script was killed.

    Args:
        paths: the run.
        environ: the environment of a task of the job.
    """
    start = _start(paths, environ)
    return bool(start.job_ref) and not start.local and _ends_for_its_script(Slurm(), start)


def _start(paths: RunPaths, environ: Mapping[str, str]) -> Start:
    relaunch = int(environ.get(Env.RELAUNCH) or 0)
    start = Start.from_environ(paths, environ, relaunch=relaunch, srun_exit_code=0)
    return start._replace(chain=stored_spec(paths).get("chain") or 0)


def _finish(start: Start, clock: Clock, say: Say) -> None:
    slurm, budgets = Slurm(), budgets_of(stored_spec(start.paths))._replace(max_relaunch=0)
    with closing(_last_resort(start, slurm, clock)):
        finish = Finish(start, budgets, slurm, clock, say)
        run_with_nodes(finish.run, finish.log, start, slurm, clock, say)


def _last_resort(start: Start, slurm: Slurm, clock: Clock) -> LastResort:
    began = clock.monotonic()
    job = start.job_ref, start.restarts
    return LastResort(slurm, job, clock, lambda: clock.monotonic() - began)


def script_is_alive(paths: RunPaths, clock: Clock, was_killed: Callable[[], bool] = lambda: False) -> bool:
    """Tell whether the batch script still counts, though the agent on its node is gone.

    Args:
        paths: the run.
        clock: paces the looks.
        was_killed: tells whether Slurm ends the job for want of the script; the watch is cut short then,
            as Slurm kills this process too after KillWait.
    """
    first, until = _beat(paths), clock.monotonic() + WATCH_S
    while True:
        is_late = clock.monotonic() >= until  # before the look: this process may have stood still meanwhile
        now = _beat(paths)
        if None not in (now, first) and now != first:
            return True
        if is_late or was_killed():
            return False
        first = now if first is None else first
        clock.sleep(_LOOK_S)


def _ends_for_its_script(slurm: Slurm, start: Start) -> bool:
    """Tell whether Slurm ends the job because its batch script was killed; False while it does not answer."""
    try:
        return standing(look(slurm, start.job_ref), start.restarts) is Standing.SCRIPT_DIED
    except (SlurmCommandError, SlurmNotFoundError):
        return False


def _beat(paths: RunPaths) -> bytes | None:
    """Return how far the batch script has counted, empty if it has not begun; None if that is not known."""
    try:
        # A shell writes it by the user's umask; whether it changes is all that counts.
        return files.read(paths.batch_beat, alone=False) or b""
    except OSError:
        return None


def wait_until_removed(
    slurm: Slurm, job_ref: str, node: str, clock: Clock, *, handled: Callable[[], bool], pause_s: float
) -> None:
    """Wait until Slurm itself has noticed that a node of a job is lost.

    A job with GPUs that is requeued before that starts again without them: slurmctld (seen with
    22.05.8) loses the job's GPU records when the node goes down while the job is completing. Waiting
    costs no time, as the job cannot start again before Slurm has given the node up. So that the pauses
    cost little either, each is a tenth of the time waited so far.

    Args:
        slurm: Slurm's commands.
        job_ref: the job.
        node: the lost node.
        clock: paces the questions.
        handled: tells whether the job has been requeued meanwhile.
        pause_s: the shortest pause between two questions [s].
    """
    began = clock.monotonic()
    while clock.monotonic() < began + LIMIT_S and not handled():
        if not _holds(slurm, job_ref, node):
            return
        waited_s = clock.monotonic() - began
        clock.sleep(min(max(_PAUSE_SHARE * waited_s, pause_s), _LONGEST_PAUSE_S))


def _holds(slurm: Slurm, job_ref: str, node: str) -> bool:
    """Tell whether a running job still has a node; True while Slurm does not answer."""
    try:
        fields = slurm.show_job(job_ref)
        if fields is None or job_state(fields.get("JobState", "")) is not JobState.RUNNING:
            return False
        return node in parse.expand(fields.get("NodeList", ""))
    except (SlurmCommandError, SlurmNotFoundError, InputError):
        return True
