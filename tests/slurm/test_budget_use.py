"""How much of the budgets of a stored run is used."""

from __future__ import annotations

from hpc_elastic.record.journal import Cause, Requeued, RoundEnded
from hpc_elastic.slurm.end.choices import RequeueBudgets, budgets_of, use_of_causes
from tests.meet.build import E0, after, formed, loss, start

PREEMPTED = after(start(), formed(1), Requeued(E0, Cause.PREEMPTION))
PREEMPTED_TWICE = Requeued(E0._replace(restart=1), Cause.PREEMPTION)


def test_a_stored_spec_has_the_budgets_that_finish_is_given() -> None:
    """Survivors of a lost batch host decide by the same ones."""
    assert RequeueBudgets() == budgets_of({})
    spec = {"max_requeues": 2, "max_preemptions": 1, "on_budget_spent": "fail", "resubmit": False}
    found = budgets_of(spec)
    assert (2, 1, RequeueBudgets().max_node_losses) == (
        found.max_requeues,
        found.max_preemptions,
        found.max_node_losses,
    )
    assert (False, False) == (found.holds, found.resubmits)
    assert RequeueBudgets().max_requeues == budgets_of({"max_requeues": None}).max_requeues


def test_only_what_matters_is_told() -> None:
    """What the user has limited, and what has come up and has a limit."""
    spec = {"name": "train"}
    assert "" == use_of_causes(PREEMPTED, spec)
    assert "1 of 2 preemptions" == use_of_causes(PREEMPTED, {**spec, "max_preemptions": 2})
    assert "0 of 5 time limits" == use_of_causes(PREEMPTED, {**spec, "max_time_limits": 5})
    lost = after(start(), formed(1), loss(1, "n2"))
    assert "1 of 100 node losses" == use_of_causes(lost, spec)
    assert "" == use_of_causes(lost, {})


def test_hangs_have_a_limit_of_their_own() -> None:
    """Also where the user has set none."""
    hung = after(start(), formed(1), RoundEnded(1, Cause.HANG, ("n2",), None))
    assert "1 of 3 hangs" == use_of_causes(hung, {"name": "train"})
    assert "1 of 7 hangs" == use_of_causes(hung, {"name": "train", "max_hangs": 7})


def test_each_budget_of_a_stored_spec_is_read() -> None:
    """Under its own name; what is none at all has its default, and zero is a limit."""
    for number, name in enumerate(RequeueBudgets._fields):
        if name in ("holds", "resubmits"):
            continue
        assert number == getattr(budgets_of({name: number}), name)
        assert RequeueBudgets() == budgets_of({name: None})
    assert (True, True) == (budgets_of({"on_budget_spent": "hold"}).holds, budgets_of({}).resubmits)


def test_no_more_is_told_than_the_limit() -> None:
    """Several causes stand beside each other; a limit of zero is told if the user has set it."""
    state = after(PREEMPTED_TWICE, state=PREEMPTED)
    spec = {"max_preemptions": 1, "max_time_limits": 0, "max_hangs": 0}
    assert "0 of 0 hangs, 1 of 1 preemptions, 0 of 0 time limits" == use_of_causes(state, spec)
