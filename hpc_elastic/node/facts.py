"""Gathers what an agent's decision rests on."""

from __future__ import annotations

from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.budgets import RestartBudgets
from hpc_elastic.node.decision import AgentFacts, Group
from hpc_elastic.record.member_names import Phase

GONE = (Phase.STOPPED, Phase.SUCCEEDED)  # phases of members whose workers are gone


def gather(
    run: SharedRun, number: int, group: Group, *, budgets: RestartBudgets, waited: bool, wedged: bool
) -> AgentFacts:
    """Return the facts of an agent.

    Args:
        run: what it knows of the others.
        number: the round its workers are in.
        group: its workers.
        budgets: how often what may end a round.
        waited: the exit barrier's time is up.
        wedged: a worker of this node hangs in the kernel.
    """
    # Time passes between the two: who falls silent in it must not count as stopped and not as vanished.
    everyone_stopped = group.is_gone and run.everyone_in(*GONE)
    vanished = group.is_gone and bool(run.vanished())
    return AgentFacts(
        state=run.state,
        epoch=run.membership.epoch,
        round=number,
        group=group,
        budgets=budgets,
        lost=run.lost,
        vanished=vanished,
        moved_on=group.is_gone and _someone_has_moved_on(run),
        everyone_stopped=everyone_stopped,
        everyone_succeeded=group is Group.SUCCEEDED and run.everyone_succeeded(),
        waited_for_others=waited,
        wedged=wedged,
    )


def _someone_has_moved_on(run: SharedRun) -> bool:
    """Tell whether a member of the newest round waits for the next one."""
    formed = run.state.round
    known = (run.membership.roster.get(member.node_id) for member in formed.members) if formed else ()
    return any(
        entry.name.phase is Phase.JOINING and formed is not None and entry.name.round > formed.number
        for entry in known
        if entry is not None
    )
