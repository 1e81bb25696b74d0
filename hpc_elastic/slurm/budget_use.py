"""The budgets of a stored run, and how much of them is used. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_elastic.rendezvous.journal import Cause
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.slurm.lifecycle import Budgets

_MAX_RESTARTS = 3  # of a job spec, as the following
_MAX_HANGS = 3
_WORDS = (
    (Cause.NODE_LOSS, "node losses"),
    (Cause.PREEMPTION, "preemptions"),
    (Cause.TIME_LIMIT, "time limits"),
    (Cause.LAUNCH_FAILURE, "launch failures"),
)


def budgets_of(spec: Mapping[str, Any]) -> Budgets:
    """Return how often each way to go on may be taken, by a job spec as it was stored."""
    given = {name: spec[name] for name in Budgets._fields if spec.get(name) is not None}
    holds = spec.get("on_budget_spent", "hold") != "fail"
    return Budgets(**given)._replace(holds=holds, resubmits=bool(spec.get("resubmit", True)))


def use_text(state: RunState, spec: Mapping[str, Any]) -> str:
    """Return how much of the budgets is used; of a run without a job spec nobody knows the limits.

    Causes that have not come up and have no limit of their own are left out.
    """
    budgets = budgets_of(spec)
    known = bool(spec)
    restarts = spec.get("max_restarts", _MAX_RESTARTS)
    hangs = spec.get("max_hangs", _MAX_HANGS)
    parts = [_part(state.crashes, restarts if known else None, "restarts" if known else "failures")]
    if state.used(Cause.HANG):
        parts.append(_part(state.used(Cause.HANG), hangs if known else None, "hangs"))
    parts.append(_part(state.requeues, budgets.max_requeues if known else None, "requeues"))
    for cause, words in _WORDS:
        limit = budgets.of(cause)[0] if known else None
        if state.used(cause) or (limit is not None and cause in (Cause.PREEMPTION, Cause.TIME_LIMIT)):
            parts.append(_part(state.used(cause), limit, words))
    return ", ".join(parts)


def _part(used: int, limit: int | None, words: str) -> str:
    if limit is None:
        return f"{used} {words[:-1] if used == 1 and not words.endswith('ss') else words}"
    return f"{min(used, limit)} of {limit} {words}"
