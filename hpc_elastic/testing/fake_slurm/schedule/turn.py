"""One turn of a fake Slurm: something happens, the state changes, things are to be done. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from hpc_elastic.testing.fake_slurm.cluster.model import Job, Place, Task, World

WARN_PAIR = (signal.SIGTERM, signal.SIGCONT)  # Slurm sends both, in no certain order


class ReachNode(Enum):
    """Who in a place gets a signal."""

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
    """Collects what one happening changes and what is to be done for it.

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
