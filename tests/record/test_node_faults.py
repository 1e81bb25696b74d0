"""What a journal tells of nodes that failed."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Drained,
    DrainExplained,
    DrainRequested,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    FailedAlike,
    Member,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    Verdict,
    WorkerWord,
)
from hpc_elastic.record.node_faults import absent_nodes, node_faults
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.store.node_events import Fault
from hpc_elastic.store.node_ledger import name_of

EPOCH = Epoch(0, 0, 0, 0)
LATE = {"exitcode": 1, "ran_s": 60.0}
START = EpochStarted(EPOCH, "7", ("n1", "n2", "n3"), "n1")


def formed(number: int, nodes: str = "n1 n2 n3", lost: tuple[str, ...] = ()) -> RoundFormed:
    """Return a round of some nodes."""
    members = tuple(Member(f"{node}.1", node, 2) for node in nodes.split())
    return RoundFormed(number, EPOCH, members, "n1", 1, None, lost)


def ended(number: int, cause: Cause, *nodes: str, failure: dict[str, Any] | None = None) -> RoundEnded:
    """Return the end of a round."""
    return RoundEnded(number, cause, nodes, failure)


def told(*entries: Entry) -> list[tuple[str, Fault]]:
    """Return who is blamed for what by a journal."""
    records = [Record(number, 1000.0 + number, "n1", entry) for number, entry in enumerate(entries, 1)]
    return [(one.event.host, one.event.fault) for one in node_faults(records, "run")]


def test_a_node_that_is_bad_by_its_worker_is_unfit() -> None:
    """It is no lost node as well, and its agent's own record adds nothing; a run given up blames none."""
    bad = WorkerWord(Verdict.BAD_NODE, 3, "n2", "ECC")
    end = RoundEnded(1, Cause.NODE_LOSS, ("n2",), None, None, bad)
    again = NodeUnfit(EPOCH, "n2", "rank 3 says: ECC")
    assert [("n2", Fault.UNFIT)] == told(START, formed(1), end, again, formed(2, "n1 n3"))
    end = RoundEnded(1, Cause.CRASH, ("n2",), LATE, None, bad._replace(verdict=Verdict.GIVE_UP))
    assert [] == told(START, formed(1), end)


def test_a_node_that_has_left_for_failures_is_unfit_unless_they_follow_the_run() -> None:
    """The same failure on another node, after it has left, shows that it is the program's."""
    left = [
        *crashes("n2", "n2"),
        NodeUnfit(EPOCH, "n2", "always there", by_failures=True),
        formed(3, "n1 n3"),
    ]
    assert [("n2", Fault.UNFIT)] == told(*left)
    assert [("n2", Fault.UNFIT)] == told(*left, ended(3, Cause.CRASH, "n1", failure={"exitcode": 9}))
    assert [] == told(*left, ended(3, Cause.CRASH, "n1", failure=LATE))


def crashes(*nodes: str, world: str = "n1 n2 n3") -> list[Entry]:
    """Return a journal with a crash on each of these nodes, one after the other."""
    entries: list[Entry] = [START]
    for number, node in enumerate(nodes, 1):
        entries += [formed(number, world), ended(number, Cause.CRASH, node, failure=LATE)]
    return entries


FOUR = "n1 n2 n3 n4"
PREEMPTED = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
SET_DOWN = DrainExplained(EPOCH, Cause.NODE_LOSS, "the node is down")
DRILL = DrillBegan(EPOCH, "5f", "n2", "drill: the agent and the workers on n2 are killed")
WEDGED = {"exitcode": ExitCode.WEDGED}
AGAIN, REQUEUED = Epoch(0, 0, 0, 1), Epoch(0, 0, 1, 0)
ASKED = DrainRequested(Cause.MEMBERSHIP, "n1", AfterDrain.REJOIN, "")
EVICTED = NodeLeft(EPOCH, "n3.1", "n3", Cause.PREEMPTION, "")


@pytest.mark.parametrize(
    ("entries", "blamed"),
    [
        pytest.param([formed(1), ended(1, Cause.NODE_LOSS, "n2")], ["n2 node_loss"], id="lost"),
        pytest.param([formed(1), ended(1, Cause.NODE_LOSS, "n2", "n3")], [], id="most-at-once"),
        pytest.param(
            [formed(1), ended(1, Cause.NODE_LOSS, "n2"), formed(2, "n1", lost=("n2", "n3"))],
            [],
            id="most-one-after-the-other",
        ),
        pytest.param([NodeUnfit(EPOCH, "n3", "no GPU")], ["n3 unfit"], id="unfit"),
        pytest.param([NodeUnfit(EPOCH, "n3", "no GPU")] * 2, ["n3 unfit"], id="unfit-told-twice"),
        pytest.param(
            [formed(1), ended(1, Cause.NODE_LOSS, "n2", "n3"), NodeUnfit(EPOCH, "n3", "no GPU")],
            ["n3 unfit"],
            id="unfit-after-most-were-lost",
        ),
        pytest.param([formed(1), NodeSlow(1, "n2", 1, 3.0, 1.0)], ["n2 slow"], id="slow"),
        pytest.param(
            [formed(1), ended(1, Cause.CRASH, "n1"), formed(2, "n1 n3", lost=("n2",))],
            ["n2 node_loss"],
            id="seen-late",
        ),
        pytest.param(
            [formed(1), ended(1, Cause.NODE_LOSS, "n2"), formed(2, "n1 n3", lost=("n2",))],
            ["n2 node_loss"],
            id="seen-twice",
        ),
        pytest.param(
            [formed(1, FOUR), PREEMPTED, ended(1, Cause.NODE_LOSS, "n2", "n3")],
            ["n3 node_loss"],
            id="called-away",
        ),
        pytest.param(
            [formed(1), PREEMPTED._replace(then=AfterDrain.LEAVE), ended(1, Cause.NODE_LOSS, "n3")],
            [],
            id="the-whole-job-is-called-away",
        ),
        pytest.param(
            [formed(1), PREEMPTED, ended(1, Cause.CRASH, "n1"), formed(2, "n1 n3", lost=("n2",))],
            [],
            id="called-away-seen-late",
        ),
        pytest.param([formed(1), PREEMPTED, SET_DOWN, ended(1, Cause.NODE_LOSS, "n2")], [], id="set-down"),
        pytest.param(
            [formed(1, FOUR), ended(1, Cause.NODE_LOSS, "n2"), NodeTaken(EPOCH, "n2", "set down", 3)],
            [],
            id="taken",
        ),
        pytest.param(
            [formed(1, FOUR), ended(1, Cause.NODE_LOSS, "n2"), NodeTaken(EPOCH, "n2", "set down", 2)],
            ["n2 node_loss"],
            id="taken-another-time",
        ),
        pytest.param(
            [formed(1, FOUR), ended(1, Cause.NODE_LOSS, "n2"), NodeTaken(EPOCH, "n3", "set down", 3)],
            ["n2 node_loss"],
            id="another-one-taken",
        ),
        pytest.param([formed(1), ended(1, Cause.HANG, "n2")], [], id="odd-one-out-once"),
        pytest.param([formed(1), ended(1, Cause.HANG, "n1", "n2", "n3")], [], id="all-hang"),
        pytest.param(
            [formed(1), ended(1, Cause.AGENT_ERROR, "n2", failure=WEDGED)], ["n2 wedge"], id="state-d"
        ),
        pytest.param([formed(1), ended(1, Cause.AGENT_ERROR, "n2")], [], id="agent-error"),
        pytest.param(
            [formed(1), ended(1, Cause.CRASH, "n2", failure=WEDGED)],
            [],
            id="a-worker-with-the-same-exit-code",
        ),
        pytest.param(
            [formed(1, "n1", lost=("n2", "n3"))],
            ["n2 node_loss", "n3 node_loss"],
            id="lost-in-a-round-that-is-not-known",
        ),
        pytest.param([formed(1), ended(1, Cause.PREEMPTION)], [], id="preemption"),
        pytest.param([formed(1), ended(1, Cause.CRASH, "n2")], [], id="crash"),
        pytest.param(
            [formed(1, FOUR), DRILL, ended(1, Cause.NODE_LOSS, "n2", "n3")], ["n3 node_loss"], id="drilled"
        ),
        pytest.param(
            [formed(1), DRILL, ended(1, Cause.CRASH, "n1"), formed(2, "n1 n3", lost=("n2",))],
            [],
            id="drilled-seen-late",
        ),
        pytest.param([formed(1), DRILL, ended(1, Cause.HANG, "n2")], [], id="drilled-hang"),
        pytest.param(
            [formed(1), DRILL, DrillCalledOff(EPOCH, "5f", "called off"), ended(1, Cause.NODE_LOSS, "n2")],
            ["n2 node_loss"],
            id="called-off",
        ),
        pytest.param(
            [formed(1), DRILL, ended(1, Cause.NODE_LOSS, "n2"), DrillCalledOff(EPOCH, "5f", "called off")],
            ["n2 node_loss"],
            id="called-off-late",
        ),
        pytest.param(
            [formed(1), DRILL, ended(1, Cause.NODE_LOSS, "n2"), formed(2), ended(2, Cause.NODE_LOSS, "n2")],
            ["n2 node_loss"],
            id="lost-after-a-drill",
        ),
        pytest.param(
            [*crashes("n2", "n2")[1:], formed(3), DRILL, ended(3, Cause.CRASH, "n2")], [], id="drilled-crash"
        ),
        pytest.param(
            [
                *crashes("n2", "n2")[1:],
                formed(3),
                DRILL,
                ended(3, Cause.CRASH, "n2", failure=LATE),
                formed(4),
                ended(4, Cause.CRASH, "n2", failure=LATE),
            ],
            ["n2 crash_loop"],
            id="a-drilled-crash-is-not-one-of-a-row",
        ),
        pytest.param(
            [formed(1, FOUR), ASKED, EVICTED, ended(1, Cause.NODE_LOSS, "n2", "n3")],
            ["n2 node_loss"],
            id="said-that-it-leaves",
        ),
        pytest.param(
            [
                formed(1),
                DRILL,
                START._replace(epoch=AGAIN),
                formed(2, "n1 n3", ("n2",))._replace(epoch=AGAIN),
            ],
            [],
            id="drilled-before-a-relaunch",
        ),
        pytest.param(
            [
                formed(1),
                DRILL,
                START._replace(epoch=REQUEUED),
                formed(2, "n1 n3", ("n2",))._replace(epoch=REQUEUED),
            ],
            ["n2 node_loss"],
            id="drilled-before-a-requeue",
        ),
    ],
)
def test_who_is_blamed(entries: list[Entry], blamed: list[str]) -> None:
    """Losses, failed probes, hangs of few and workers in state D are held against their nodes, once."""
    assert blamed == [f"{host} {fault.value}" for host, fault in told(START, *entries)]


def test_failures_in_a_row_on_one_node_are_held_against_it() -> None:
    """Three in a row, and again after three more."""
    assert [] == told(*crashes("n2", "n2"))
    assert [("n2", Fault.CRASH_LOOP)] == told(*crashes("n2", "n2", "n2"))
    assert 2 == len(told(*crashes(*["n2"] * 6)))
    drained: list[Entry] = [formed(4), ended(4, Cause.MEMBERSHIP, "n2")]
    assert [("n2", Fault.CRASH_LOOP)] == told(*crashes("n2", "n2", "n2"), *drained)
    assert [] == told(*crashes("n2", "n2", "n1", "n2"))
    assert [] == told(*crashes(*["n1"] * 5, world="n1"))  # a run of one node fails where else


def test_what_fails_soon_or_elsewhere_too_is_held_against_nobody() -> None:
    """A program that cannot be started fails everywhere, though only one node comes to tell of it."""
    same = FailedAlike(EPOCH, 3, "n1")
    assert [] == told(*crashes("n2", "n2", "n2"), same)
    soon = {"exitcode": 2, "ran_s": 0.3}
    entries = [
        one._replace(failure=soon) if isinstance(one, RoundEnded) else one for one in crashes(*["n2"] * 3)
    ]
    assert [] == told(*entries)


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        ({**WEDGED, "message": "rank 3 is stuck"}, "rank 3 is stuck"),
        (WEDGED, "workers hang in the kernel"),
        ({**WEDGED, "message": ""}, "workers hang in the kernel"),
    ],
)
def test_why_a_node_is_wedged_is_remembered(failure: dict[str, Any], detail: str) -> None:
    """In the words of its agent, if it had any."""
    entries: list[Entry] = [START, formed(1), ended(1, Cause.AGENT_ERROR, "n2", failure=failure)]
    records = [Record(number, 1000.0, "n1", entry) for number, entry in enumerate(entries, 1)]
    assert [("n2", detail)] == [(one.event.host, one.event.detail) for one in node_faults(records, "run")]


def hung(*places: tuple[str, int, int | None]) -> list[tuple[str, Fault]]:
    """Return who is blamed for hangs, each with its node, odd rank and step."""
    entries: list[Entry] = [START]
    for number, (node, rank, step) in enumerate(places, 1):
        failure = {"rank": rank, "step": step}
        entries += [formed(number), ended(number, Cause.HANG, node, failure=failure)]
    return told(*entries)


def test_hangs_are_held_against_a_node_that_they_stay_with() -> None:
    """Not if they are always of one rank at one step, or move; of one rank at any time they count once."""
    assert [] == hung(("n2", 3, 50), ("n2", 3, 50), ("n2", 3, 50))
    assert [] == hung(("n2", 3, None), ("n2", 3, None))
    assert [] == hung(("n2", 3, 50), ("n3", 3, 70), ("n2", 3, 90))
    assert [("n2", Fault.HANG)] == hung(("n2", 3, 50), ("n2", 3, 70), ("n2", 3, 90), ("n2", 3, 95))
    assert 2 == len(hung(("n2", 3, 50), ("n2", 2, 50), ("n2", 4, 50)))
    assert 1 == len(hung(("n2", 3, 50), ("n2", 2, 50), ("n2", 3, 50)))
    assert 1 == len(hung(("n2", 3, 50), ("n2", 3, 70), ("n2", 3, 50)))


def test_a_node_whose_srun_died_is_not_lost() -> None:
    """Its agent comes back in the same start of the job, or its batch script has told of it."""
    tag = "@7_1-0-"

    def task(number: int, agent: str, lost: tuple[str, ...] = ()) -> RoundFormed:
        return RoundFormed(
            number, EPOCH, (*formed(1, "n1 n3").members, Member(agent, "n2", 2)), "n1", 1, None, lost
        )

    loss = ended(1, Cause.NODE_LOSS, "n2")
    assert [] == told(
        START,
        task(1, f"n2.1{tag}0"),
        loss,
        formed(2, "n1 n3"),
        ended(2, Cause.MEMBERSHIP),
        task(3, f"n2.2{tag}1"),
    )
    requeued = task(3, "n2.2@7_1-1-0")
    entries: tuple[Entry, ...] = (
        START,
        task(1, f"n2.1{tag}0"),
        loss,
        formed(2, "n1 n3"),
        ended(2, Cause.MEMBERSHIP),
        requeued,
    )
    assert [("n2", Fault.NODE_LOSS)] == told(*entries)
    records = [Record(number, 1000.0, "n1", entry) for number, entry in enumerate(entries, 1)]
    said = Record(7, 1000.0, "7_1", Note(EPOCH, "task 7_1: srun ended with exit code 137"), Role.SCRIPT)
    assert [] == node_faults([*records[:3], said], "run")
    assert 1 == len(node_faults([*records, said], "run"))  # its next start says so
    again = EPOCH._replace(relaunch=1)
    start = START._replace(epoch=again)
    assert [] == told(START, formed(1), loss, start, formed(2)._replace(epoch=again))


@pytest.mark.parametrize(
    ("back", "lost"),
    [
        (Epoch(0, 0, 0, 1), False),
        (Epoch(0, 0, 0, 0), True),
        (Epoch(0, 0, 1, 0), True),
        (Epoch(0, 0, 1, 1), True),
    ],
    ids=["started again in its job", "another agent", "another start", "started again in another start"],
)
def test_only_a_relaunch_in_the_same_start_undoes_a_loss(back: Epoch, lost: bool) -> None:
    """Whoever is there again after that was gone."""
    entries: list[Entry] = [START, formed(1), ended(1, Cause.NODE_LOSS, "n2"), formed(2, "n1 n3")]
    entries += [ended(2, Cause.MEMBERSHIP)]
    entries += [START._replace(epoch=back)] if back > EPOCH else []
    assert lost is bool(told(*entries, formed(3)._replace(epoch=back)))


def test_a_node_that_never_came_is_held_against_it() -> None:
    """The agents name who is missing; if most are, it is no fault of theirs."""

    def left(*missing: str, joined: int) -> list[tuple[str, Fault]]:
        text = f"{joined} of 3 nodes joined; missing: n1, n2, n3"  # words decide nothing
        return told(START, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, text, missing=missing))

    assert [("n2", Fault.ABSENT)] == left("n2", joined=2)
    assert [] == left("n2", "n3", joined=1)
    assert [] == left(joined=2)
    assert [] == told(START, Drained(EPOCH, Cause.NODE_LOSS, None, "", missing=("n2",)))


def test_everybody_tells_of_the_same_events() -> None:
    """Names follow from the journal; the start of the run in which it happened is known."""
    entries: list[Entry] = [START, formed(1), ended(1, Cause.NODE_LOSS, "n2")]
    records = [Record(number, 1000.25, "n1", entry) for number, entry in enumerate(entries, 1)]
    (one,) = node_faults(records, "run")
    (again,) = node_faults([*records, Record(4, 2000.0, "n1", formed(2, "n1 n3"))], "run")
    assert one == again
    assert (EPOCH, "1000.n2.node_loss.run-3.json") == (one.epoch, name_of(one.event))


@pytest.mark.parametrize(
    ("why", "detail"),
    [
        ("", "lost with its job"),
        ("Slurm has it as NODE_FAIL", "lost with its job: Slurm has it as NODE_FAIL"),
    ],
)
def test_a_node_that_was_lost_with_its_job_has_the_words_of_the_record(why: str, detail: str) -> None:
    """Those tell what is known of the cause, and by whom."""
    entries: list[Entry] = [START, formed(1), Requeued(EPOCH, Cause.NODE_LOSS, why, nodes=("n1",))]
    records = [Record(number, 1000.0, "batch", entry) for number, entry in enumerate(entries, 1)]
    assert [("n1", detail)] == [(one.event.host, one.event.detail) for one in node_faults(records, "run")]


def test_a_node_that_is_lost_while_its_job_is_given_back_is_lost_once_more() -> None:
    """Its start had found it unfit for earlier losses; it is still one on which starts are lost."""
    gone = Requeued(EPOCH, Cause.NODE_LOSS, nodes=("n1",))
    entries: list[Entry] = [START, NodeUnfit(EPOCH, "n1", "lost before"), gone]
    records = [Record(number, 1000.0, "batch", entry) for number, entry in enumerate(entries, 1)]
    assert [Fault.UNFIT, Fault.NODE_LOSS] == [one.event.fault for one in node_faults(records, "run")]


def test_an_unfit_node_is_not_waited_for_and_may_come_back() -> None:
    """It counts as lost, without a word about the batch script on it; a round with it makes it fit."""
    state = apply(apply(RunState(), START), NodeUnfit(EPOCH, "n1", "no GPU"))
    assert [{"n1"}, {"n1": "no GPU"}] == [state.lost, state.unfit]
    assert state.leave_cause is None  # though the batch host is among the lost
    assert state == apply(state, NodeUnfit(Epoch(0, 0, 1, 0), "n2", "of another start"))
    after = apply(state, formed(1))
    assert (frozenset(), {}) == (after.lost, after.unfit)
    assert after == apply(after, NodeUnfit(EPOCH, "n1", "while its workers run"))


@pytest.mark.parametrize(
    ("lost", "world", "blamed"),
    [
        (("n1",), "n1", 1),
        (("n3", "n4"), FOUR, 2),
        (("n2", "n3", "n4"), FOUR, 0),
        (("n2", "n3"), "n1 n2 n3", 0),
        (("n3",), "n1 n3", 1),
    ],
)
def test_more_than_half_of_the_nodes_at_once_is_no_fault_of_theirs(
    lost: tuple[str, ...], world: str, blamed: int
) -> None:
    """Half of them is; so is one, whatever the size of the round."""
    assert blamed == len(told(START, formed(1, world), ended(1, Cause.NODE_LOSS, *lost)))


@pytest.mark.parametrize(
    ("nodes", "world", "blamed"),
    [
        (("n3", "n4"), FOUR, 2),
        (("n2", "n3"), "n1 n2 n3", 0),
        (("n2",), "n1 n2", 1),
        (("n1",), "n1", 0),
        ((), FOUR, 0),
    ],
)
def test_hangs_of_half_of_the_nodes_are_held_against_them(
    nodes: tuple[str, ...], world: str, blamed: int
) -> None:
    """If they come again in another rank; of more than half they are the program's."""
    entries: list[Entry] = [START]
    for number in (1, 2):
        failure = {"rank": number, "step": 50}
        entries += [formed(number, world), ended(number, Cause.HANG, *nodes, failure=failure)]
    assert [Fault.HANG] * blamed == [fault for _, fault in told(*entries)]


@pytest.mark.parametrize(
    ("missing", "expected", "absent"),
    [
        (("n2",), ("n1", "n2"), ["n2"]),
        (("n2", "n3"), ("n1", "n2", "n3"), []),
        (("n2", "n3"), ("n1", "n2", "n3", "n4"), ["n2", "n3"]),
        (("n9",), ("n1", "n2"), []),
        (("n2",), ("n2",), []),
        ((), ("n1", "n2"), []),
    ],
)
def test_at_most_half_of_the_nodes_are_absent(
    missing: tuple[str, ...], expected: tuple[str, ...], absent: list[str]
) -> None:
    """Only nodes of the job count; where nobody is named, nobody is."""
    assert absent == absent_nodes(missing, expected)


def test_a_new_submission_begins_to_count_anew() -> None:
    """Failures and hangs in a row end with the submission, not with a requeue."""
    for epoch, blamed in ((Epoch(0, 0, 1, 0), 1), (Epoch(1, 0, 0, 0), 0)):
        again = START._replace(epoch=epoch)
        last: list[Entry] = [formed(3)._replace(epoch=epoch), ended(3, Cause.CRASH, "n2", failure=LATE)]
        assert blamed == len(told(*crashes("n2", "n2"), again, *last))
        hangs: list[Entry] = [
            formed(1),
            ended(1, Cause.HANG, "n2", failure={"rank": 3, "step": 5}),
            again,
            formed(2)._replace(epoch=epoch),
            ended(2, Cause.HANG, "n2", failure={"rank": 2, "step": 5}),
        ]
        assert blamed == len(told(START, *hangs))


def test_a_failure_on_several_nodes_ends_a_row() -> None:
    """Nobody can be told apart then; other endings leave the row as it is."""
    both: list[Entry] = [formed(3), ended(3, Cause.CRASH, "n2", "n3", failure=LATE)]
    later: list[Entry] = [formed(4), ended(4, Cause.CRASH, "n2", failure=LATE)]
    assert [] == told(*crashes("n2", "n2"), *both, *later)
    drained: list[Entry] = [formed(3), ended(3, Cause.MEMBERSHIP)]
    assert [("n2", Fault.CRASH_LOOP)] == told(*crashes("n2", "n2"), *drained, *later)


def test_another_ending_in_between_does_not_end_a_row_of_hangs() -> None:
    """Nor does it count as one of them."""
    first: list[Entry] = [formed(1), ended(1, Cause.HANG, "n2", failure={"rank": 3, "step": 5})]
    between: list[Entry] = [formed(2), ended(2, Cause.MEMBERSHIP)]
    for rank, step in ((2, 5), (3, 7)):
        again: list[Entry] = [formed(3), ended(3, Cause.HANG, "n2", failure={"rank": rank, "step": step})]
        assert [("n2", Fault.HANG)] == told(START, *first, *between, *again)


@pytest.mark.parametrize(
    ("cause", "explained", "blamed"),
    [
        (Cause.PREEMPTION, False, 0),
        (Cause.TIME_LIMIT, False, 0),
        (Cause.CANCEL, False, 0),
        (Cause.REQUEUE, False, 0),
        (Cause.STOP, False, 1),
        (Cause.STOP, True, 0),
    ],
)
def test_a_node_that_slurm_has_called_away_is_not_blamed(cause: Cause, explained: bool, blamed: int) -> None:
    """Nor one that Slurm has set down; one that was merely asked to leave is."""
    asked: list[Entry] = [DrainRequested(cause, "n2", AfterDrain.REJOIN, "SIGTERM")]
    asked += [SET_DOWN] if explained else []
    assert blamed == len(told(START, formed(1), *asked, ended(1, Cause.NODE_LOSS, "n2")))


@pytest.mark.parametrize(("before", "after"), [("n2.1@7_1-0-0", "n2.1"), ("n2.1", "n2.1@7_1-0-1")])
def test_where_only_one_agent_is_of_a_task_the_start_of_the_run_tells(before: str, after: str) -> None:
    """A relaunch in the same start undoes the loss then, too."""
    again = Epoch(0, 0, 0, 1)
    first = formed(1, "n1 n3")._replace(members=(*formed(1, "n1 n3").members, Member(before, "n2", 2)))
    second = formed(2, "n1 n3")
    second = second._replace(members=(*second.members, Member(after, "n2", 2)), epoch=again)
    loss = ended(1, Cause.NODE_LOSS, "n2")
    assert [] == told(START, first, loss, START._replace(epoch=again), second)
    assert [("n2", Fault.NODE_LOSS)] == told(START, first, loss, second._replace(epoch=EPOCH))


def test_a_row_of_failures_is_told_once() -> None:
    """An ending that is no failure adds nothing to it."""
    assert [("n2", Fault.CRASH_LOOP)] == told(
        *crashes("n2", "n2", "n2"), formed(4), ended(4, Cause.MEMBERSHIP)
    )


def test_only_an_agent_tells_that_workers_hang_in_the_kernel() -> None:
    """A worker may end with the same code, and is one that failed."""
    assert [] == told(START, formed(1), ended(1, Cause.CRASH, "n2", failure=WEDGED))


def of_task(number: int, agent: str = "n2.1@7_1-0-0", lost: tuple[str, ...] = ()) -> RoundFormed:
    """Return a round of two nodes and of an agent on n2."""
    members = (*formed(number, "n1 n3").members, Member(agent, "n2", 2))
    return formed(number)._replace(members=members, lost=lost)


@pytest.mark.parametrize(
    ("agent", "lost"),
    [
        ("n2.2@7_1-0-1", False),
        ("n2.2@7_1-0-0", True),
        ("n2.2@7_1-1-0", True),
        ("n2.2@7_1-1-1", True),
        ("n2.2@7_2-0-1", True),
    ],
)
def test_an_agent_of_the_same_start_of_a_task_undoes_the_loss_of_the_one_before(
    agent: str, lost: bool
) -> None:
    """Also if it is in the very round that tells of the loss."""
    first = (START, of_task(1))
    loss = ended(1, Cause.NODE_LOSS, "n2")
    assert lost is bool(told(*first, loss, of_task(2, agent)))
    assert lost is bool(told(*first, ended(1, Cause.CRASH, "n1"), of_task(2, agent, lost=("n2",))))


@pytest.mark.parametrize(
    ("at", "by", "role", "agent", "lost"),
    [
        (4, "7_1", Role.SCRIPT, "n2.1@7_1-0-0", False),
        (5, "7_1", Role.SCRIPT, "n2.1@7_1-0-0", False),
        (4, "7_2", Role.SCRIPT, "n2.1@7_1-0-0", True),
        (4, "7_1", Role.AGENT, "n2.1@7_1-0-0", True),
        (4, "7", Role.SCRIPT, "n2.1", True),
        (3, "7_1", Role.SCRIPT, "n2.1@7_1-0-0", True),
        (1, "7_1", Role.SCRIPT, "n2.1@7_1-0-0", True),
    ],
)
def test_the_script_of_a_task_tells_that_its_node_lives(
    at: int, by: str, role: Role, agent: str, lost: bool
) -> None:
    """By a record since the round was formed in which the node was lost.

    Args:
        at: how many records are before it; four tell of round 2, the fifth one of its end.
        by: who wrote it.
        role: of the writer.
        agent: on the node that is lost in round 2.
        lost: whether it counts as lost.
    """
    entries: list[Entry] = [START, of_task(1, agent), ended(1, Cause.MEMBERSHIP), of_task(2, agent)]
    entries += [ended(2, Cause.NODE_LOSS, "n2")]
    said = Record(0, 1000.0, by, Note(EPOCH, "srun ended with exit code 137"), role)
    records = [Record(0, 1000.0, "n1.1", entry) for entry in entries]
    records = [*records[:at], said, *records[at:]]
    found = node_faults([one._replace(number=number) for number, one in enumerate(records, 1)], "run")
    assert lost is bool(found)


@pytest.mark.parametrize(("before_s", "own"), [(None, ""), (0.9, "; 0.9 s there before")])
def test_how_slow_a_node_is_is_remembered(before_s: float | None, own: str) -> None:
    """Beside the others, and beside itself before."""
    entries: list[Entry] = [START, formed(1), NodeSlow(1, "n2", 1, 3.0, 1.0, before_s)]
    (one,) = node_faults([Record(number, 1.0, "n1", entry) for number, entry in enumerate(entries, 1)], "r")
    assert f"a step of rank 1 takes 3 s, on most nodes 1 s{own}" == one.event.detail
