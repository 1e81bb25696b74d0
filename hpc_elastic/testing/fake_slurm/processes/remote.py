"""What `FakeSlurm` tells the controller to do to the cluster, beside Slurm's own commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError
from hpc_elastic.testing.fake_slurm.cluster.model import BATCH, State
from hpc_elastic.testing.fake_slurm.commands.call import Reply
from hpc_elastic.testing.fake_slurm.schedule import happenings, schedule
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn

if TYPE_CHECKING:
    from hpc_elastic.testing.fake_slurm.processes.controller import Controller


class Remote:
    """Faults, time, and questions that Slurm has no words for.

    Args:
        controller: what they happen to.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def answer(self, words: list[str]) -> Reply:
        """Carry out one wish."""
        verb, *rest = words
        verbs = {
            "advance": self._advance,
            "skip": self._skip,
            "crash": self._crash,
            "cut": self._cut,
            "heal": self._heal,
            "answering": self._answering,
            "pids": self._pids,
            "now": lambda: repr(self._controller.now),
        }
        try:
            return Reply(verbs[verb](*rest) or "")  # type: ignore[operator]
        except InputError as error:
            return Reply(err=str(error), code=1)

    def _require_node(self, name: str) -> None:
        nodes = self._controller.world.nodes
        if name not in nodes:
            raise InputError(f"{name!r} is no node", where="FakeSlurm", fix=f"choose from {', '.join(nodes)}")

    def _advance(self, seconds: str) -> None:
        self._controller.advance(float(seconds))

    def _skip(self, longest: str) -> str:
        left_s = happenings.next_due(self._controller.world) - self._controller.now
        if left_s > float(longest):
            return "0.0"
        self._controller.advance(max(0.0, left_s))
        return repr(max(0.0, left_s))

    def _crash(self, name: str) -> None:
        """Kill all processes of a node; nobody takes notice."""
        self._require_node(name)
        self._controller.turn(lambda turn: happenings.silence(turn, name))
        for daemon in [one for one in self._controller.daemons.values() if one.place.node == name]:
            self._controller.drop(daemon)

    def _cut(self, name: str) -> None:
        """Cut a node off; its processes live on."""
        self._require_node(name)
        self._controller.turn(lambda turn: happenings.silence(turn, name))

    def _heal(self, name: str) -> None:
        """Boot a node that crashed, or connect one that was cut off: what is out of date there is killed."""
        self._require_node(name)
        self._controller.turn(lambda turn: happenings.answer(turn, name))
        for daemon in [one for one in self._controller.daemons.values() if one.place.node == name]:
            job = self._controller.world.jobs[daemon.place.job]
            if daemon.place not in job.live:
                self._controller.drop(daemon)
                continue
            if job.state is State.COMPLETING:
                daemon.say("kill")
            self._controller.deliver(daemon)

    def _answering(self, wanted: str) -> None:
        self._controller.answering = wanted == "yes"
        if self._controller.answering:
            self._controller.turn(_nothing)

    def _pids(self, name: str) -> str:
        """Return node, step, rank and pid of the processes that Slurm has started for a job."""
        jobs = {job.id for job in schedule.find_jobs(self._controller.world, name)}
        found = []
        for place, daemon in self._controller.daemons.items():
            if place.job in jobs and place in self._controller.world.jobs[place.job].live:
                step = BATCH if place.step == BATCH else place.step
                found += [[place.node, step, rank, pid] for rank, pid in daemon.pids.items()]
        return json.dumps([*found, *self._controller.sruns(jobs)])


def _nothing(_turn: Turn) -> None:
    return
