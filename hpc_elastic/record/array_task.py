"""Which start of which task of a job array an agent belongs to, as its id among the members tells. Pure.

Slurm may start a task anew while its last agent still runs somewhere: on a node that is cut off, or
whose slurmd is dead. Of two agents of one task only that of the newest start takes part.
"""

from __future__ import annotations

import re

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Cause, Decision, Epoch, StopKind
from hpc_elastic.record.state import RunState

_FOR_GOOD = (Cause.STOP, Cause.INTERRUPT, Cause.CANCEL)  # no start of the run follows by itself
MARK = "@"  # in the ids of such agents, and in no others
_N = "[0-9]{1,18}"
_TAG = rf".+@({_N}_{_N})-({_N})-({_N})"


class TaskStart(NamedTuple):
    """One start of one array task."""

    task: str  # <id of the array>_<index>
    restart: int  # SLURM_RESTART_COUNT of the task
    relaunch: int  # srun started again in the same start

    @property
    def tag(self) -> str:
        """The end of an agent's id."""
        return f"{MARK}{self.task}-{self.restart}-{self.relaunch}"

    @property
    def array(self) -> str:
        """The id of the array."""
        return self.task.partition("_")[0]


def start_of(node_id: str) -> TaskStart | None:
    """Return the start that an agent belongs to, None if it is no array task's."""
    found = re.fullmatch(_TAG, node_id)
    return TaskStart(found[1], int(found[2]), int(found[3])) if found else None


def is_newer(node_id: str, than: str) -> bool:
    """Tell whether an agent is of a later start of the same task than another one."""
    one, other = start_of(node_id), start_of(than)
    if one is None or other is None or one.task != other.task:
        return False
    return one[1:] > other[1:]


def was_released(state: RunState, start: TaskStart) -> bool:
    """Tell whether the user has released a task that was put on hold with its run."""
    if state.ending is None or state.ending.decision is not Decision.HELD:
        return False
    held = [one for one in state.tasks_stopped if one.how is StopKind.HELD and one.task == start.task]
    return any(one.restart < start.restart for one in held)


def epoch_now(state: RunState, submission: int, start: TaskStart | None = None) -> Epoch:
    """Return the start of the run that an agent of an array belongs to.

    Slurm counts the starts of each task, so the run counts its own: all tasks share the newest start,
    and the first start after all have left begins the next one.

    Args:
        state: the run.
        submission: how often it was submitted before.
        start: that of the agent's task, if there is one.
    """
    known = state.epoch
    if submission > known.submission:
        return Epoch(submission, 0, 0, 0)
    drained = state.drained is not None and state.drained.cause not in _FOR_GOOD
    was_left = state.ending is None and (drained or (state.drained is None and state.deserted))
    goes_on = was_left or (start is not None and was_released(state, start))
    return Epoch(known.submission, 0, known.restart + goes_on, 0)
