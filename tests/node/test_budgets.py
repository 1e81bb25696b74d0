"""When a failure is one more than its budget covers."""

from __future__ import annotations

import pytest

from hpc_elastic.node.decision import RestartBudgets, left_out, spent
from hpc_elastic.record.journal import Cause, Entry, NodeUnfit, RoundEnded
from hpc_elastic.record.state import RunState
from tests.meet.build import E0, REQUEUED, RESUBMITTED, after, formed, start


def ends(cause: Cause, times: int, *, saved: int | None = None) -> tuple[Entry, ...]:
    """Return so many rounds that ended alike."""
    rounds: list[Entry] = [start()]
    for number in range(1, times + 1):
        rounds += [formed(number), RoundEnded(number, cause, ("n1",), {"message": "x"}, saved)]
    return tuple(rounds)


def state_of(cause: Cause, times: int) -> RunState:
    """Return the state after so many rounds that ended alike."""
    return after(*ends(cause, times))


@pytest.mark.parametrize(
    ("cause", "budgets", "why"),
    [
        (Cause.CRASH, RestartBudgets(crash=2), "a worker failed and all 2 restarts are used"),
        (Cause.CRASH, RestartBudgets(crash=0), "a worker failed"),
        (Cause.CRASH, RestartBudgets(crash=1), "a worker failed and the 1 restart is used"),
        (Cause.HANG, RestartBudgets(hang=2), "the workers hung and all 2 restarts are used (max_hangs)"),
        (
            Cause.NODE_LOSS,
            RestartBudgets(node_loss=1),
            "nodes were lost 2 times, and max_node_losses = 1",
        ),
    ],
)
def test_each_cause_spends_its_own_budget(cause: Cause, budgets: RestartBudgets, why: str) -> None:
    """The one beyond the limit is the last, and the reason names what can be changed."""
    limit = budgets.of(cause)
    assert limit is not None
    assert spent(state_of(cause, limit), budgets) is None
    assert why == spent(state_of(cause, limit + 1), budgets)


def test_hangs_cost_no_restart_and_lost_nodes_cost_nothing() -> None:
    """Budgets do not mix, and there is none for lost nodes unless somebody sets it."""
    assert spent(state_of(Cause.HANG, 3), RestartBudgets(crash=0)) is None
    assert spent(state_of(Cause.NODE_LOSS, 9), RestartBudgets(crash=0, hang=0)) is None


def test_the_same_failure_again_ends_the_run_though_restarts_are_left() -> None:
    """Three times in a row with nothing saved; a run that is not asked for it goes on."""
    state = state_of(Cause.CRASH, 3)
    assert spent(state, RestartBudgets(crash=9)) is None
    why = spent(state, RestartBudgets(crash=9, same_failure=3)) or ""
    assert why.startswith("a worker failed: the same failure 3 times in a row, always on n1")
    assert spent(state_of(Cause.CRASH, 2), RestartBudgets(crash=9, same_failure=3)) is None


def test_counts_outlive_a_requeue_but_not_a_resubmission() -> None:
    """A requeue is no new run, and a new submission is a new try."""
    requeued = after(*ends(Cause.CRASH, 2), start(REQUEUED))
    assert 2 == requeued.used(Cause.CRASH)
    assert 2 == len(requeued.repeated)
    resubmitted = after(*ends(Cause.CRASH, 2), start(RESUBMITTED))
    assert (0, ()) == (resubmitted.used(Cause.CRASH), resubmitted.repeated)


def test_the_same_failure_spends_its_budget_at_once() -> None:
    """At the limit, not one later; also one that is its own limit."""
    for limit in (1, 2, 3):
        budgets = RestartBudgets(crash=9, same_failure=limit)
        assert spent(state_of(Cause.CRASH, limit), budgets)
        if limit > 1:
            assert spent(state_of(Cause.CRASH, limit - 1), budgets) is None
    assert spent(state_of(Cause.CRASH, 3), RestartBudgets(crash=9, same_failure=0)) is None


def test_another_ending_after_the_same_failures_is_not_held_for_one() -> None:
    """The newest round is what counts."""
    entries = (*ends(Cause.CRASH, 3), formed(4), RoundEnded(4, Cause.MEMBERSHIP, (), None))
    assert spent(after(*entries), RestartBudgets(crash=9, same_failure=3)) is None


def test_budgets_that_nobody_has_set() -> None:
    """Three restarts, three hangs; nodes may be lost as often as they like."""
    assert (3, 3, None, None) == tuple(RestartBudgets())
    assert [3, 3, None, None] == [
        RestartBudgets().of(cause) for cause in (Cause.CRASH, Cause.HANG, Cause.NODE_LOSS, Cause.PREEMPTION)
    ]
    assert spent(after(start(), formed(1)), RestartBudgets(crash=0)) is None


def test_the_only_node_of_a_run_is_not_to_blame() -> None:
    """A failure that keeps to one node of several may be that node's."""
    budgets = RestartBudgets(crash=9, same_failure=2)
    for nodes, words in (
        (("n1",), "on n1, the only node"),
        (("n1", "n2"), "always on n1: that node may be bad"),
    ):
        rounds: list[Entry] = [start()]
        for number in (1, 2):
            failure = {"message": "x", "ran_s": 60.0}
            rounds += [formed(number, nodes), RoundEnded(number, Cause.CRASH, ("n1",), failure)]
        assert words in (spent(after(*rounds), budgets) or "")


THREE = ("n1", "n2", "n3")
TWICE = RestartBudgets(crash=9, same_failure=2)


def failing(*nodes: str, of: tuple[str, ...] = THREE) -> tuple[Entry, ...]:
    """Return the rounds of a run whose workers have failed alike on these nodes, one after the other."""
    rounds: list[Entry] = [start(expected=of)]
    for number, node in enumerate(nodes, 1):
        rounds += [formed(number, of), RoundEnded(number, Cause.CRASH, (node,), {"message": "x"})]
    return tuple(rounds)


def test_a_node_that_always_fails_leaves_before_the_run_has_failed() -> None:
    """While enough others are left; whichever budget is spent."""
    state = after(*failing("n2", "n2"))
    assert "n2" == left_out(state, TWICE, 2)
    assert "n2" == left_out(state, RestartBudgets(crash=1), 2)
    assert [None, None] == [left_out(state, TWICE, least) for least in (3, None)]
    gone = after(NodeUnfit(E0, "n2", "x", by_failures=True), state=state)
    assert "n2" == left_out(gone, TWICE, 2)  # for those that have not gone on yet
    assert left_out(after(NodeUnfit(E0, "n1", "x"), state=state), TWICE, 2) is None  # n3 alone is left


@pytest.mark.parametrize(
    "entries",
    [
        failing("n2"),
        failing("n2", "n1"),
        failing("n2", "n2", "n1"),
        (*failing("n2", "n2"), formed(3, THREE)),
        (*failing("n2", "n2"), formed(3, THREE), RoundEnded(3, Cause.NODE_LOSS, ("n1",), None)),
        failing("n2", "n2", of=("n2",)),
    ],
    ids=["once", "elsewhere", "elsewhere-last", "goes-on", "another-end", "alone"],
)
def test_nobody_leaves_for_the_failures_of_a_program(entries: tuple[Entry, ...]) -> None:
    """What has hit others too, or only once, is no matter of one node."""
    assert left_out(after(*entries), TWICE, 1) is None


def test_nobody_leaves_while_restarts_are_left() -> None:
    """The next round may be spared."""
    assert left_out(after(*failing("n2", "n2")), RestartBudgets(crash=9, same_failure=3), 1) is None
