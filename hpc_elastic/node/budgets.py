"""Limits of how often each cause may end a round before the run fails. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.same_failure import repeated_text
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.setting import usual
from hpc_elastic.settings.table import JobSettings

_WHAT = {Cause.CRASH: "a worker failed", Cause.HANG: "the workers hung"}


class RestartBudgets(NamedTuple):
    """How often each cause may end a round, counted in the run over all its requeues."""

    crash: int = usual(JobSettings.max_restarts)  # torchrun's --max-restarts
    hang: int = usual(JobSettings.max_hangs)
    node_loss: int | None = None  # None: no limit
    same_failure: int | None = None  # the same failure so often in a row with nothing saved; None: no limit

    def of(self, cause: Cause) -> int | None:
        """Return the budget of a cause; None: no limit."""
        limits = {Cause.CRASH: self.crash, Cause.HANG: self.hang, Cause.NODE_LOSS: self.node_loss}
        return limits.get(cause)


def spent(state: RunState, budgets: RestartBudgets) -> str | None:
    """Tell that the newest round ended by something that no budget covers.

    Args:
        state: the run.
        budgets: how often each cause may end a round.

    Returns:
        The reason in words; None: go on.
    """
    if state.ended is None:
        return None
    return _all_used(state, state.ended.cause, budgets) or _the_same_again(state, budgets)


def _all_used(state: RunState, cause: Cause, budgets: RestartBudgets) -> str | None:
    limit = budgets.of(cause)
    if limit is None or state.used(cause) <= limit:
        return None
    if cause is Cause.NODE_LOSS:
        return f"nodes were lost {state.used(cause)} times, and max_node_losses = {limit}"
    rounds = {0: "", 1: " and the 1 restart is used"}.get(limit, f" and all {limit} restarts are used")
    by = " (max_hangs)" if cause is Cause.HANG else ""
    return f"{_WHAT[cause]}{rounds}{by}"


def _the_same_again(state: RunState, budgets: RestartBudgets) -> str | None:
    ended, ends = state.ended, state.repeated
    is_newest = bool(ends) and ended is ends[-1]
    if not is_newest or not budgets.same_failure or len(ends) < budgets.same_failure:
        return None
    nodes = len({member.node for member in state.round.members}) if state.round else None
    return f"{_WHAT[ended.cause] if ended else ''}: {repeated_text(ends, nodes)} (same_failure)"
