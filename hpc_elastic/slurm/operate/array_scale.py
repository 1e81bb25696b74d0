"""Changing how many nodes a run in array mode has: fewer or more tasks of its array may run.

Tasks beyond the size that is wanted save, leave and give their nodes back; they wait in the queue,
where the throttle of the array keeps them, until more nodes are wanted. For more nodes than there
are tasks a further array of the same script and submission is queued.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hpc_elastic.errors import InputError, SlurmCommandError
from hpc_elastic.slurm.client.answers import SlurmTask, arrays_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, tasks_of
from hpc_elastic.slurm.submit.resubmit import queue, with_measured_lead
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.text import are_text

Say = Callable[[str], None]


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
    wanted = with_measured_lead(replace(stored, submission=newest.number, token=newest.token))
    arguments = (f"--array=0-{tasks - 1}", *wanted.sbatch_arguments)
    array = queue(slurm, wanted, arguments)
    more = are_text(tasks, "more task")
    say(f"{more} queued as array {array}")
