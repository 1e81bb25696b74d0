"""Slurm's commands without programs: the fake Slurm's own answers, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.testing.fake_slurm import Settings
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import (
    BATCH,
    Ending,
    Job,
    JobRequest,
    Place,
    Share,
    State,
    World,
)
from hpc_elastic.testing.fake_slurm.commands import control, queries
from hpc_elastic.testing.fake_slurm.commands.options import Answer, Call, Refusal, Reply

NOW_S = 1767225700.0
JOB = 7
_COMMANDS: Mapping[str, Callable[[Turn, Call], Answer]] = {
    "squeue": queries.squeue,
    "sacct": queries.sacct,
    "sinfo": queries.sinfo,
    "scontrol": control.scontrol,
    "scancel": control.scancel,
    "sacctmgr": queries.sacctmgr,
}
_QUEUING = ("requeue", "requeuehold", "release")


class SlurmHere:
    """A fake Slurm with one job.

    Args:
        world: the cluster; None where no command of Slurm is on PATH.
        mangle: changes what the commands print.

    Attributes:
        calls: the commands that were run.
    """

    def __init__(self, world: World | None, mangle: Callable[[str], str] = lambda text: text) -> None:
        self._world = world
        self._mangle = mangle
        self.calls: list[tuple[str, ...]] = []

    @property
    def brought_back(self) -> bool:
        """Whether something was done by which a job runs again."""
        return any(call[0] == "sbatch" or (call[1:2][:1] and call[1] in _QUEUING) for call in self.calls)

    def run(self, argv: Sequence[str]) -> str:
        """Return what a command prints.

        Raises:
            SlurmNotFoundError: there is no such command.
            SlurmCommandError: it fails.
        """
        if self._world is None:
            raise SlurmNotFoundError(argv[0])
        self.calls.append(tuple(argv))
        if argv[0] == "sbatch":
            return "1234\n"
        if argv[0] not in _COMMANDS:
            raise SlurmNotFoundError(argv[0])
        turn = Turn(self._world, NOW_S)
        user = {"USER": "alice", "UID": str(os.getuid()), "GID": "0"}
        try:
            reply = _COMMANDS[argv[0]](turn, Call(argv[0], tuple(argv[1:]), {}, "/", user, ""))
        except Refusal as refusal:
            reply = Reply(err=str(refusal), code=1)
        self._world = turn.world
        if not isinstance(reply, Reply) or reply.code:
            raise SlurmCommandError(tuple(argv), 1, reply.err if isinstance(reply, Reply) else "")
        return self._mangle(reply.out)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have all of the package's calls of Slurm's commands answered here."""
        here = self

        def run(_slurm: Slurm, *argv: str, **_options: Any) -> str:
            return here.run(argv)

        before = Slurm._run  # noqa: SLF001 - the one place that runs programs
        Slurm._run = run  # type: ignore[method-assign,assignment] # noqa: SLF001
        try:
            yield
        finally:
            Slurm._run = before  # type: ignore[method-assign] # noqa: SLF001


def world_with(state: State, *, name: str, comment: str, reason: str, restarts: int, held: bool) -> World:
    """Return a cluster with one job of two nodes.

    Args:
        state: of the job.
        name: of the job, as its owner may have chosen it.
        comment: of the job.
        reason: why it waits or has ended.
        restarts: how often it was requeued.
        held: whether it waits for its user.
    """
    world = World.new(Settings(nodes=2))
    nodes = world.settings.node_names if state.holds_nodes else ()
    job = Job(
        JOB,
        JobRequest(name=name, comment=comment, min_nodes=2, max_nodes=2, limit_s=3600.0, environ={}),
        NOW_S - 200,
        NOW_S - 200,
        1,
        state=state,
        reason=reason,
        restarts=restarts,
        start=restarts,
        start_s=None if state is State.PENDING else NOW_S - 100,
        end_s=None if state is State.PENDING else NOW_S + (3500 if state is State.RUNNING else 0),
        nodes=nodes,
        shares={node: Share(8, ()) for node in nodes},
        live=frozenset({Place(JOB, restarts, BATCH, nodes[0])}) if nodes else frozenset(),
        ending=Ending(State.CANCELLED) if state is State.COMPLETING else None,
        held=held,
    )
    return world.with_job(job)
