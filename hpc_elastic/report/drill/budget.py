"""The cost of a drill in the budgets of a run: it counts as the fault that it plays. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.table import in_force
from hpc_elastic.slurm.end.choices import budgets_of

_REQUEUED = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE)
_NEXT = {
    Cause.CRASH: "crash",
    Cause.HANG: "hang",
    Cause.NODE_LOSS: "lost node",
    Cause.PREEMPTION: "preemption",
    Cause.TIME_LIMIT: "time limit",
}
_FAILS = "ends the run as failed"
_UNKNOWN = (
    "submit has not started this run, so its --max-restarts is not known here: "
    f"with 0, the default of torchrun's flags, this drill {_FAILS}"
)


class _Budget(NamedTuple):
    name: str
    limit: int
    used: int
    what: str  # the counted thing, in the singular
    then: str  # the fate of the run with one more


def budget_warnings(
    cause: Cause,
    state: RunState,
    spec: Mapping[str, Any],
    *,
    has_queue: bool,
    task_restarts: int | None = None,
) -> list[str]:
    """Return the warnings before a drill: which budgets it exceeds, and of which it is the last.

    Args:
        cause: that the run counts it as.
        state: the run.
        spec: its job spec as it was stored; empty if the budgets are not known.
        has_queue: whether Slurm has a queue in which the run may wait.
        task_restarts: how often the array task that is struck was started again; None: the run is one job.
    """
    if not spec:
        return [_UNKNOWN] if cause in (Cause.CRASH, Cause.HANG) else []
    warnings = []
    for budget in _budgets(cause, state, spec, has_queue, task_restarts):
        limit = f"{budget.name} = {budget.limit}"
        if budget.used >= budget.limit:
            warnings.append(f"{limit} is spent: this drill counts, too, and {budget.then}")
        elif budget.used + 1 == budget.limit:
            last = f"this drill counts, and is the last {budget.what} of {limit}"
            warnings.append(f"{last}: the next one, be it a real one, {budget.then}")
    return warnings


def _budgets(
    cause: Cause,
    state: RunState,
    spec: Mapping[str, Any],
    has_queue: bool,  # noqa: FBT001 - as it was given
    task_restarts: int | None,
) -> Iterator[_Budget]:
    """Give the budgets that a cause counts in."""
    budgets = budgets_of(spec)
    is_held = budgets.holds and has_queue and not spec.get("chain")
    then = "holds the run until you release it" if is_held else _FAILS
    used = state.used(cause)
    if cause is Cause.CRASH:
        yield _Budget("max_restarts", in_force(spec, "max_restarts"), used, _NEXT[cause], _FAILS)
    if cause is Cause.HANG:
        yield _Budget("max_hangs", in_force(spec, "max_hangs"), used, _NEXT[cause], _FAILS)
    own = budgets.of(cause)
    if own is not None:  # nodes that are lost count when the job is requeued for one
        limit, budget = own
        lost = f"{then}, if the job is requeued for it" if cause is Cause.NODE_LOSS else then
        yield _Budget(budget.value, limit, used, _NEXT[cause], lost)
    if cause in _REQUEUED and task_restarts is None:
        yield _Budget("max_requeues", budgets.max_requeues, state.requeues, "requeue", then)
    elif cause in _REQUEUED:
        yield _Budget(
            "max_requeues", budgets.max_requeues, task_restarts or 0, "requeue", "gives the task up"
        )
