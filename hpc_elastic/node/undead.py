"""Workers that SIGKILL has not ended: they wait in the kernel, and others would wait beside them.

What a broken device or a dead mount holds is no process to start another one next to. It gets some
time, for a file server may only be slow; then its node leaves the run to the others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.errors import StoreError
from hpc_elastic.processes.procfs import read_stat
from hpc_elastic.record.journal import NodeUnfit

if TYPE_CHECKING:
    from hpc_elastic.meet.shared_run import SharedRun
    from hpc_elastic.node.setup.agent_setup import AgentParts
    from hpc_elastic.node.workers.local_group import LocalGroup

PATIENCE_S = 60.0
_PAUSE_S = 0.5


def undead_of(group: LocalGroup) -> tuple[int, ...]:
    """Return the workers of an ended group that are still there, in state D."""
    pids = group.context.pids().values() if group.context.unkillable() else ()
    stats = (read_stat(pid) for pid in pids)
    return tuple(stat.pid for stat in stats if stat is not None and stat.state == "D")


def wait_for_undead(group: LocalGroup, parts: AgentParts, patience_s: float = PATIENCE_S) -> tuple[int, ...]:
    """Return the workers that are still there after some time; the agent stays alive meanwhile.

    Args:
        group: the workers, all of which have been sent SIGKILL.
        parts: of the agent.
        patience_s: how long they have [s].
    """
    clock, run = parts.clock, parts.rendezvous.run
    if undead_of(group):
        parts.log.say(f"no other worker is started beside it; it has {patience_s:g} s to end after all")
    limit = clock.monotonic() + patience_s
    while (pids := undead_of(group)) and clock.monotonic() < limit and not parts.loop.signals:
        parts.loop.wait(_PAUSE_S)
        try:
            run.tick()
        except StoreError:
            continue
    return pids


def leave_word(run: SharedRun, words: str) -> None:
    """Tell the others not to wait for this node; it leaves whether that works or not."""
    with suppress(StoreError):
        run.commit(NodeUnfit(run.membership.epoch, run.node, words))
