"""What an agent does next, for everything it can know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.meet.rules import PeerView
from hpc_elastic.node.decision import Action, AgentFacts, Group, Hang, OwnFacts, RestartBudgets, decide, spent
from hpc_elastic.record.journal import AfterDrain, Cause, Drained, Entry, RoundEnded, Verdict, WorkerWord
from hpc_elastic.record.state import RunState
from tests.meet.build import E0, REQUEUED, after, crash, drain, ending, formed, loss, start
from tests.record import records

RUNNING = after(start(), formed(1))
CRASHED = after(start(), formed(1), crash(1))
MOVED_ON = after(start(), formed(1), crash(1), formed(2))
LEAVING = after(start(), formed(1), drain())
PAUSING = after(start(), formed(1), drain(AfterDrain.REJOIN, Cause.MEMBERSHIP))
DRAINED = after(start(), formed(1), drain(), Drained(E0, Cause.PREEMPTION, None, ""))
ENDED = after(start(), formed(1), ending())
FENCED = after(start(), formed(1), start(REQUEUED))

ALL = tuple(Group)
PRESENT = (Group.RUNNING, Group.FAILED)
GONE = (Group.STOPPED, Group.SUCCEEDED)


def facts(state: RunState, group: Group, **more: Any) -> AgentFacts:
    """Return the facts of an agent in round 1 with three restarts."""
    return changed(AgentFacts(state, E0, OwnFacts(1, group)), **more)


def changed(told: AgentFacts, **more: Any) -> AgentFacts:
    """Return facts with others in the place of some, which may be of the node or of the other nodes."""
    own = {name: more.pop(name) for name in OwnFacts._fields if name in more}
    others = {name: more.pop(name) for name in PeerView._fields if name in more}
    return told._replace(own=told.own._replace(**own), others=told.others._replace(**others), **more)


STATES = pytest.mark.parametrize(
    "state",
    [RUNNING, CRASHED, MOVED_ON, LEAVING, PAUSING, DRAINED, ENDED, FENCED],
    ids=["running", "crashed", "moved-on", "leaving", "pausing", "drained", "ended", "fenced"],
)


@STATES
def test_workers_that_are_ending_are_waited_for(state: RunState) -> None:
    """While workers end nothing else is done, whatever happens around them."""
    told = facts(state, Group.STOPPING, lost=("n2",), everyone_stopped=True, waited_for_others=True)
    assert Action.WAIT == decide(told)


@pytest.mark.parametrize("state", [FENCED, ENDED, DRAINED, CRASHED, MOVED_ON])
@pytest.mark.parametrize("group", PRESENT)
def test_workers_end_with_their_round(state: RunState, group: Group) -> None:
    """Workers of a round that is over are stopped before anything else, failed ones too."""
    assert Action.STOP_WORKERS == decide(facts(state, group))


@pytest.mark.parametrize("group", GONE)
def test_an_older_start_stands_down(group: Group) -> None:
    """An agent that sees a newer start leaves as soon as its workers are gone."""
    assert Action.STAND_DOWN == decide(facts(FENCED, group))


@pytest.mark.parametrize("group", GONE)
def test_a_newer_start_beats_the_end(group: Group) -> None:
    """The end of a newer start is none of the older agent's business."""
    assert Action.STAND_DOWN == decide(facts(after(ending(), state=FENCED), group))


@pytest.mark.parametrize("state", [ENDED, DRAINED])
@pytest.mark.parametrize("group", GONE)
def test_a_run_that_is_over_is_left(state: RunState, group: Group) -> None:
    """After the last word on the run or this start of it, agents leave."""
    assert Action.LEAVE == decide(facts(state, group, lost=("n2",)))


# In the round


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("group", [Group.RUNNING, Group.FAILED, Group.SUCCEEDED])
@pytest.mark.parametrize("state", [RUNNING, LEAVING, PAUSING])
def test_a_word_of_a_worker_ends_the_round(state: RunState, group: Group, verdict: Verdict) -> None:
    """It comes before a failure, a loss and a request to stop."""
    word = WorkerWord(verdict, 3, "n2", "why")
    assert Action.REPORT_WORD == decide(facts(state, group, word=word, lost=("n2",)))


@pytest.mark.parametrize("more", [(), (drain(),)], ids=["in-peace", "beside-a-drain"])
def test_a_run_that_a_worker_has_given_up_ends(more: tuple[Entry, ...]) -> None:
    """With all restarts left, and in place of a requeue; the reason is the worker's."""
    word = WorkerWord(Verdict.GIVE_UP, 3, "n2", "the loss is nan")
    state = after(start(), formed(1), *more, RoundEnded(1, Cause.CRASH, ("n2",), {}, None, word))
    assert Action.STOP_WORKERS == decide(facts(state, Group.RUNNING))
    assert Action.WAIT == decide(facts(state, Group.STOPPED))
    assert Action.GIVE_UP == decide(facts(state, Group.STOPPED, everyone_stopped=True))
    assert "rank 3 on n2 has given the run up: the loss is nan" == spent(state, RestartBudgets())


def test_a_word_counts_though_its_round_ended_for_another_reason() -> None:
    """Others may wait for the next round already."""
    word = WorkerWord(Verdict.GIVE_UP, 3, "n2", "the loss is nan")
    assert Action.GIVE_UP == decide(facts(CRASHED, Group.STOPPED, word=word, moved_on=True))


def test_a_run_goes_on_without_a_bad_node() -> None:
    """The others meet anew; the node is lost and unfit in this start of the run."""
    word = WorkerWord(Verdict.BAD_NODE, 3, "n2", "ECC")
    state = after(start(), formed(1), RoundEnded(1, Cause.NODE_LOSS, ("n2",), None, None, word))
    assert Action.REJOIN == decide(facts(state, Group.STOPPED))
    assert ({"n2": "rank 3 says: ECC"}, frozenset({"n2"})) == (state.unfit, state.lost)
    assert 1 == state.used(Cause.NODE_LOSS)


def test_healthy_workers_are_left_alone() -> None:
    """While workers run and nothing has happened there is nothing to do."""
    assert Action.WAIT == decide(facts(RUNNING, Group.RUNNING, waited_for_others=True))


@pytest.mark.parametrize("state", [RUNNING, PAUSING])
@pytest.mark.parametrize("lost", [(), ("n2",)])
def test_a_failure_is_told_first(state: RunState, lost: tuple[str, ...]) -> None:
    """A failed worker is reported at once, during a pause and beside a lost node as well."""
    assert Action.REPORT_CRASH == decide(facts(state, Group.FAILED, lost=lost))


def test_a_failure_on_the_way_out_ends_only_the_workers() -> None:
    """Workers that fail while the run is being left are no crash of the run."""
    assert Action.STOP_WORKERS == decide(facts(LEAVING, Group.FAILED))


@pytest.mark.parametrize("group", [Group.RUNNING, Group.STOPPED, Group.SUCCEEDED])
@pytest.mark.parametrize("state", [RUNNING, PAUSING])
def test_a_lost_member_ends_the_round(state: RunState, group: Group) -> None:
    """A member that has vanished is reported, by those who have finished as well."""
    assert Action.REPORT_LOSS == decide(facts(state, group, lost=("n2",)))


def test_a_lost_member_does_not_stop_leaving() -> None:
    """On the way out nobody forms a new round for the sake of a lost node."""
    assert Action.DRAIN == decide(facts(LEAVING, Group.RUNNING, lost=("n2",)))


def test_success_waits_for_everybody() -> None:
    """A node that is done waits for the others; the last one ends the run."""
    assert Action.WAIT == decide(facts(RUNNING, Group.SUCCEEDED))
    assert Action.REPORT_DONE == decide(facts(RUNNING, Group.SUCCEEDED, everyone_succeeded=True))


@pytest.mark.parametrize("state", [LEAVING, PAUSING])
def test_success_beats_a_drain(state: RunState) -> None:
    """If all workers have finished while a stop was asked for, the run is done."""
    told = facts(state, Group.SUCCEEDED, everyone_succeeded=True, everyone_stopped=True)
    assert Action.REPORT_DONE == decide(told)


def test_success_beats_a_loss() -> None:
    """If everybody is known to have succeeded, a node lost afterwards does no harm."""
    assert Action.REPORT_DONE == decide(
        facts(RUNNING, Group.SUCCEEDED, everyone_succeeded=True, lost=("n2",))
    )


def test_a_finished_node_waits_a_bounded_time() -> None:
    """The exit barrier has an end: then a node that is done leaves."""
    assert Action.LEAVE == decide(facts(RUNNING, Group.SUCCEEDED, waited_for_others=True))


@pytest.mark.parametrize("state", [LEAVING, PAUSING])
def test_a_drain_goes_on_until_the_workers_are_gone(state: RunState) -> None:
    """While workers run, the stop is agreed on and watched."""
    told = facts(state, Group.RUNNING, everyone_stopped=True, waited_for_others=True)
    assert Action.DRAIN == decide(told)


@pytest.mark.parametrize(
    ("state", "report"), [(LEAVING, Action.REPORT_DRAINED), (PAUSING, Action.REPORT_PAUSED)]
)
@pytest.mark.parametrize("group", GONE)
def test_a_drain_ends_when_all_have_stopped(state: RunState, report: Action, group: Group) -> None:
    """The word that all have stopped is given when it is so, or when the barrier's time is up."""
    assert Action.WAIT == decide(facts(state, group))
    assert report == decide(facts(state, group, everyone_stopped=True))
    assert report == decide(facts(state, group, waited_for_others=True))


@pytest.mark.parametrize("group", GONE)
def test_a_node_that_is_called_away_leaves_the_others_at_once(group: Group) -> None:
    """It does not wait for their workers; if those have ended, too, the round is over as any other."""
    away = facts(after(start(), formed(1), drain(AfterDrain.REJOIN)), group, leaves_alone=True)
    assert Action.LEAVE_ALONE == decide(away)
    assert Action.REPORT_PAUSED == decide(changed(away, everyone_stopped=True))
    assert Action.WAIT == decide(changed(away, leaves_alone=False))
    assert Action.WAIT == decide(changed(away, state=LEAVING))
    assert Action.DRAIN == decide(changed(away, group=Group.RUNNING))


# After the round


@pytest.mark.parametrize("state", [CRASHED, MOVED_ON, after(start(), formed(1), loss(1, "n2"))])
@pytest.mark.parametrize("group", GONE)
def test_the_next_round_is_joined(state: RunState, group: Group) -> None:
    """When a round is over and the workers are gone, the agent joins the next one."""
    assert Action.REJOIN == decide(facts(state, group))


@pytest.mark.parametrize("group", GONE)
def test_a_spent_budget_ends_the_run(group: Group) -> None:
    """After one failure more than there are restarts the run is given up, once all workers are gone."""
    assert Action.REJOIN == decide(facts(CRASHED, group, budgets=RestartBudgets(crash=1)))
    assert Action.WAIT == decide(facts(CRASHED, group, budgets=RestartBudgets(crash=0)))
    assert Action.GIVE_UP == decide(
        facts(CRASHED, group, budgets=RestartBudgets(crash=0), everyone_stopped=True)
    )
    assert Action.GIVE_UP == decide(
        facts(CRASHED, group, budgets=RestartBudgets(crash=0), waited_for_others=True)
    )


@pytest.mark.parametrize("group", GONE)
def test_a_crash_beside_a_lost_node_costs_no_run(group: Group) -> None:
    """Workers that fail because a peer's node vanished do not spend the budget: the others go on."""
    for stopped in (True, False):
        known = facts(
            CRASHED, group, budgets=RestartBudgets(crash=0), everyone_stopped=stopped, vanished=True
        )
        assert Action.REJOIN == decide(known)
    assert Action.REJOIN == decide(facts(CRASHED, group, budgets=RestartBudgets(crash=0), moved_on=True))


def test_a_node_that_always_fails_is_left_out_before_the_run_is_given_up() -> None:
    """All rejoin, and that node leaves instead; with too few others the run has failed."""
    state = after(start(), formed(1), crash(1), formed(2), crash(2))
    known = facts(state, Group.STOPPED, round=2, budgets=RestartBudgets(crash=1), everyone_stopped=True)
    assert Action.REJOIN == decide(known._replace(min_nodes=1))
    assert Action.GIVE_UP == decide(known._replace(min_nodes=3))


def _is_spent(state: RunState, crashes: int) -> bool:
    return spent(state, RestartBudgets(crash=crashes)) is not None


def test_only_failures_spend_the_budget() -> None:
    """A lost node costs no restart, even if the budget was used up before."""
    assert not _is_spent(after(start(), formed(1), loss(1, "n2")), 0)
    assert not _is_spent(after(start(), formed(1), crash(1), formed(2), loss(2, "n2")), 0)
    assert not _is_spent(after(start(), formed(1), RoundEnded(1, Cause.MEMBERSHIP, (), None)), 0)
    assert _is_spent(after(start(), formed(1), crash(1), formed(2), crash(2)), 1)


@pytest.mark.parametrize("last", [crash(1), loss(1, "n2")])
def test_a_round_that_breaks_while_leaving_is_the_end_of_the_start(last: Entry) -> None:
    """If the round ends during a drain, the agents still wait for each other and leave."""
    state = after(last, state=LEAVING)
    assert Action.WAIT == decide(facts(state, Group.STOPPED))
    assert Action.REPORT_DRAINED == decide(facts(state, Group.STOPPED, everyone_stopped=True))
    assert Action.REPORT_DRAINED == decide(facts(state, Group.STOPPED, waited_for_others=True))


# Over everything

ANY_FACTS = st.builds(
    AgentFacts,
    state=st.lists(records.entries, max_size=12).map(lambda entries: after(start(), *entries)),
    epoch=st.just(E0) | records.epochs,
    own=st.builds(
        OwnFacts,
        round=records.rounds,
        group=st.sampled_from(Group),
        hang=st.sampled_from(Hang),
        waited_for_others=st.booleans(),
    ),
    others=st.builds(
        PeerView,
        lost=st.just(()) | st.just(("n2",)),
        everyone_stopped=st.booleans(),
        everyone_succeeded=st.booleans(),
    ),
    budgets=st.builds(RestartBudgets, crash=records.small, hang=records.small),
)


@given(told=ANY_FACTS)
def test_nobody_leaves_workers_behind(told: AgentFacts) -> None:
    """An agent rejoins, leaves or stands down only when its workers are gone."""
    if decide(told) in (Action.REJOIN, Action.LEAVE, Action.STAND_DOWN, Action.GIVE_UP, Action.REPORT_DONE):
        assert told.own.group.is_gone


@given(told=ANY_FACTS)
def test_only_the_newest_round_keeps_workers(told: AgentFacts) -> None:
    """Workers that are not in the newest round, or not of the newest start, are always stopped."""
    running = told.state.running
    is_newest = running is not None and running.number == told.own.round and told.state.epoch <= told.epoch
    if not is_newest and told.own.group in PRESENT:
        assert Action.STOP_WORKERS == decide(told)


@given(told=ANY_FACTS)
def test_a_wait_ends_with_the_barrier(told: AgentFacts) -> None:
    """Once the workers are gone and the exit barrier's time is up, no agent waits any longer."""
    state, own = told.state, told.own
    if own.group.is_gone and own.waited_for_others:
        stuck = own.group is Group.STOPPED and state.drain is None and state.running is not None
        assert stuck or Action.WAIT != decide(told)


@pytest.mark.parametrize(
    "state", [RUNNING, LEAVING, PAUSING, DRAINED], ids=["on", "leaving", "pausing", "drained"]
)
@pytest.mark.parametrize("group", [*PRESENT, *GONE])
def test_a_wedge_ends_the_round(state: RunState, group: Group) -> None:
    """A worker that nobody can end: first the others are told, who then go on without this node."""
    assert Action.REPORT_WEDGE == decide(facts(state, group, wedged=True))


@pytest.mark.parametrize("state", [CRASHED, MOVED_ON, ENDED], ids=["crashed", "moved-on", "ended"])
def test_a_wedged_node_leaves_for_good(state: RunState) -> None:
    """Its other workers are ended; it does not join again, and does not wait for anybody."""
    for group in PRESENT:
        assert Action.STOP_WORKERS == decide(facts(state, group, wedged=True))
    for group in GONE:
        assert Action.ABANDON == decide(facts(state, group, wedged=True))


def test_a_wedge_changes_nothing_for_a_fenced_agent() -> None:
    """A newer start of the run comes before everything."""
    assert Action.STAND_DOWN == decide(facts(FENCED, Group.STOPPED, wedged=True))


@pytest.mark.parametrize(
    ("hang", "action"),
    [(Hang.NONE, Action.WAIT), (Hang.SUSPECTED, Action.ASK_FOR_STACKS), (Hang.PROVEN, Action.REPORT_HANG)],
)
def test_a_hang_is_looked_into_then_told(hang: Hang, action: Action) -> None:
    """While the round runs and nothing else has happened."""
    assert action == decide(facts(RUNNING, Group.RUNNING, hang=hang))


@pytest.mark.parametrize("hang", Hang)
def test_what_else_has_happened_comes_before_a_hang(hang: Hang) -> None:
    """A failure or a lost node is why the others wait; who is asked to stop has other times."""
    assert Action.REPORT_CRASH == decide(facts(RUNNING, Group.FAILED, hang=hang))
    assert Action.REPORT_LOSS == decide(facts(RUNNING, Group.RUNNING, hang=hang, lost=("n2",)))
    assert Action.DRAIN == decide(facts(LEAVING, Group.RUNNING, hang=hang))
    assert Action.WAIT == decide(facts(RUNNING, Group.SUCCEEDED, hang=hang))


def test_hangs_have_a_budget_of_their_own() -> None:
    """Crashes do not count for it, nor the other way round."""
    hung = after(start(), formed(1), RoundEnded(1, Cause.HANG, ("n1",), None))
    budgets = RestartBudgets(crash=0, hang=1)
    assert Action.REJOIN == decide(facts(hung, Group.STOPPED, budgets=budgets))
    again = after(formed(2), RoundEnded(2, Cause.HANG, ("n1",), None), state=hung)
    known = facts(again, Group.STOPPED, budgets=budgets, everyone_stopped=True, round=2)
    assert Action.GIVE_UP == decide(known)
    crashed = after(start(), formed(1), crash(1))
    assert Action.REJOIN == decide(facts(crashed, Group.STOPPED, budgets=RestartBudgets(crash=1, hang=0)))


def test_nobody_is_done_before_its_own_workers_are() -> None:
    """Whatever the others' names say."""
    assert Action.WAIT == decide(facts(RUNNING, Group.RUNNING, everyone_succeeded=True))
