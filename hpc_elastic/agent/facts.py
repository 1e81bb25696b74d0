"""Gathers what an agent's decision rests on."""

from __future__ import annotations

from hpc_elastic.agent.decision import Facts, Group
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.rendezvous.shared_run import SharedRun

GONE = (Phase.STOPPED, Phase.SUCCEEDED)  # phases of members whose workers are gone


def gather(
    run: SharedRun, number: int, group: Group, *, max_restarts: int, waited: bool, wedged: bool = False
) -> Facts:
    """Return the facts of an agent.

    Args:
        run: what it knows of the others.
        number: the round its workers are in.
        group: its workers.
        max_restarts: the restart budget.
        waited: the exit barrier's time is up.
        wedged: a worker of this node hangs in the kernel.
    """
    return Facts(
        state=run.state,
        epoch=run.membership.epoch,
        round=number,
        group=group,
        max_restarts=max_restarts,
        lost=run.lost,
        vanished=group.is_gone and bool(run.vanished()),
        everyone_stopped=group.is_gone and run.everyone_in(*GONE),
        everyone_succeeded=group is Group.SUCCEEDED and run.everyone_succeeded(),
        waited_for_others=waited,
        wedged=wedged,
    )
