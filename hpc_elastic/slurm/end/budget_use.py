"""The budgets of a stored run, and how much of them is used. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.end.lifecycle import RequeueBudgets

_WORDS = {
    Cause.HANG: "hangs",
    Cause.NODE_LOSS: "node losses",
    Cause.PREEMPTION: "preemptions",
    Cause.TIME_LIMIT: "time limits",
    Cause.LAUNCH_FAILURE: "launch failures",
}


def budgets_of(spec: Mapping[str, Any]) -> RequeueBudgets:
    """Return how often each way to go on may be taken, by a job spec as it was stored."""
    given = {name: spec[name] for name in RequeueBudgets._fields if spec.get(name) is not None}
    holds = in_force(spec, "on_budget_spent") == "hold"
    return RequeueBudgets(**given)._replace(holds=holds, resubmits=in_force(spec, "resubmit"))


def use_of_causes(state: RunState, spec: Mapping[str, Any]) -> str:
    """Return how much of the budgets of single causes is used, crashes apart; it may be empty.

    A cause is told if it has come up and has a limit, or if the user has set its limit.

    Args:
        state: the run.
        spec: the job spec as it was stored.
    """
    budgets = budgets_of(spec)
    parts = []
    for cause, words in _WORDS.items():
        bound = budgets.of(cause)
        limit, name = (None, "") if bound is None else (bound[0], bound[1].value)
        if cause is Cause.HANG:
            limit, name = in_force(spec, "max_hangs"), "max_hangs"
        used = state.used(cause)
        if limit is not None and (used or name in spec):
            parts.append(f"{min(used, limit)} of {limit} {words}")
    return ", ".join(parts) if spec else ""
