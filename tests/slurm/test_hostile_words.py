"""Sentences, host names and setup lines decide nothing, whatever they look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.record.array_task import TaskStart, epoch_now, start_of, was_released
from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Record,
    Requeued,
    RoundFormed,
    RunEnded,
    SetupFailure,
    encode,
    parse,
)
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.causes_text import signals_of
from hpc_elastic.report.drill_report import InjectedFault, course_of
from hpc_elastic.slurm.end import choices, lifecycle
from hpc_elastic.slurm.end.history import (
    earlier_starts,
    given_up,
    goodbye_of,
    task_starts_in_vain,
    with_words,
)
from hpc_elastic.store.node_events import Fault
from tests.record import records as random_records
from tests.slurm.test_array_lifecycle import BASE as TASK
from tests.slurm.test_lifecycle import BUDGETS, RUNNING, TIME_LIMIT, facts

SENTENCES = (
    "check max_launch_failures first",
    "the budget max_preemptions = 0 is spent; now: held",
    "the run is held: the run is held: max_requeues",
    "a SIGTERM that somebody sent",
    "SIGTERM: the job runs on: somebody has sent the signal",
    "SIGTERM: preempted, with grace until 20:24:49",
    "no answer; SIGKILL may follow 30 s after SIGTERM",
    "2 of 3 nodes joined within 600 s; missing: n1, n2, n3; unfit: n4 (x)",
    "2 of 3 nodes joined; missing: n2",
    "setup failed (exit code 127): nosuch (nosuch: command not found)",
    "syntax error near `)': requeue 1 of at most 500",
    "hpc-elastic scale RUN --nodes 2 queues more",
    "held: given-up@7_1-0-0",
    "preempted\n  fix: hpc-elastic stop",
)
HOSTS = ("given-up-rack3", "held7", "batch", "login", "given-up", "batch@7", "missing", "n1-0-0")
START = TaskStart("12_1", 1, 0)
LINE = SetupFailure("module load x", "setup", 1)
Journal = Sequence[Entry]

BEGUN = (
    EpochStarted(Epoch(0, 0, 0, 0), "12", ("n1", "n2", "n3")),
    RoundFormed(1, Epoch(0, 0, 0, 0), (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1)), "n1", 1, None),
)
journals = st.lists(random_records.entries, max_size=8).map(lambda more: [*BEGUN, *more])


def reworded(entry: Entry, words: str) -> Entry:
    """Return a record with other words for people, and the same facts."""
    fields: dict[str, Any] = {
        name: f"{words} {getattr(entry, name)}"
        for name in ("detail", "reason", "text")
        if hasattr(entry, name)
    }
    if isinstance(entry, DrainRequested | NodeLeft | Drained):
        fields["asked"] = entry.asked._replace(said=f"{words} {entry.asked.said}")
    if isinstance(entry, Requeued) and entry.failure is not None:
        fields["failure"] = entry.failure._replace(words=words)
    return entry._replace(**fields) if fields else entry


def records_of(entries: Journal) -> list[Record]:
    """Return a journal as it is read."""
    return [
        parse(number, encode(entry, at=float(number), by="n1")) for number, entry in enumerate(entries, 1)
    ]


def _choice(choice: Any) -> tuple[object, ...]:
    record = getattr(choice, "record", None)
    ending = None if record is None else (record.decision, record.exit_code, record.budget)
    fields = ("code", "cause", "requeued", "nodes", "is_open", "is_held", "budget", "signal")
    return (type(choice), ending, *(getattr(choice, name, None) for name in fields))


def _of_state(state: RunState) -> tuple[object, ...]:
    return (
        state.last,
        state.epoch,
        state.counts,
        state.requeued_for,
        state.requeues,
        state.lost,
        state.left,
        state.rounds,
        len(state.repeated),
        state.leave_cause,
        state.restarts,
        None if state.ending is None else (state.ending.decision, state.ending.budget),
        [(one.how, one.task) for one in state.tasks_stopped],
    )


def _of_drill(records: list[Record]) -> tuple[object, ...]:
    fault = InjectedFault(frozenset({Cause.NODE_LOSS, Cause.PREEMPTION}), "n2", "n2.1", None, 1, 0.0, 1)
    course = course_of(records, fault, [])
    return course.noticed, course.is_over, course.overtaken, len(course.phases), len(course.others)


def decisions(entries: Journal) -> tuple[object, ...]:
    """Return all that is decided by a journal."""
    records = records_of(entries)
    state = fold(RunState(), records)
    epoch = state.epoch if state.epoch.submission >= 0 else Epoch(0, 0, 0, 0)
    jobs = [
        facts(*entries, job=job, epoch=epoch)._replace(state=state) for job in (RUNNING, TIME_LIMIT, None)
    ]
    tasks = [TASK._replace(state=state, left=goodbye_of(records, START), epoch=epoch)]
    return (
        _of_state(state),
        epoch_now(state, 0, START),
        was_released(state, START),
        [(one.event.host, one.event.fault, one.record) for one in node_faults(records, "run")],
        given_up(records),
        task_starts_in_vain(records, START),
        lifecycle.starts_in_vain(records, epoch),
        earlier_starts(records, epoch, LINE),
        signals_of(records),
        _of_drill(records),
        [_choice(lifecycle.decide(one, BUDGETS)) for one in jobs],
        [_choice(lifecycle.decide(one, BUDGETS)) for one in tasks],
    )


@given(entries=journals, words=st.sampled_from(SENTENCES))
def test_words_decide_nothing(entries: list[Entry], words: str) -> None:
    """The same facts lead to the same decisions, whatever stands in the sentences about them."""
    assert decisions(entries) == decisions([reworded(entry, words) for entry in entries])


def renamed(value: Any, names: Callable[[str], str]) -> Any:
    """Return a value with other host names; ids of agents begin with them."""
    if isinstance(value, str) and not isinstance(value, Cause):
        return names(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(renamed(each, names) for each in value))
    if isinstance(value, (tuple, list, frozenset)):
        return type(value)(renamed(each, names) for each in value)
    return value


@given(entries=journals, hosts=st.permutations(HOSTS))
def test_names_of_hosts_decide_nothing(entries: list[Entry], hosts: list[str]) -> None:
    """Another name leads to the same decision about the host of that name."""
    names = dict(zip(("n1", "n2", "n3"), hosts, strict=False))
    new = {**names, **{f"{old}.1": f"{name}.1" for old, name in names.items()}}

    def name(text: str) -> str:
        return new.get(text, text)

    def faults(journal: Journal) -> list[tuple[str, object, int]]:
        return [
            (one.event.host, one.event.fault, one.record) for one in node_faults(records_of(journal), "r")
        ]

    other = [renamed(entry, name) for entry in entries]
    assert sorted((name(host), fault, record) for host, fault, record in faults(entries)) == sorted(
        faults(other)
    )
    before, after = (fold(RunState(), records_of(journal)) for journal in (entries, other))
    assert renamed(before.lost, name) == after.lost
    assert (before.counts, before.requeued_for) == (after.counts, after.requeued_for)
    for state in (before, after):
        assert epoch_now(state, 0, START) == epoch_now(before, 0, START)
    assert given_up(records_of(entries)) == given_up(records_of(other))


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_of_any_name_leaves_as_an_agent(host: str) -> None:
    """Its goodbye neither holds nor gives up its task, and its task is known by its id."""
    epoch, agent = Epoch(0, 0, 0, 0), f"{host}.7{START.tag}"
    assert START == start_of(agent)
    leaves = NodeLeft(epoch, agent, host, Cause.PREEMPTION)
    formed = RoundFormed(1, epoch, (Member(agent, host, 1),), host, 1, None)
    journal = records_of([EpochStarted(epoch, "12", ()), formed, leaves])
    assert (leaves, frozenset()) == (goodbye_of(journal, START), given_up(journal))
    state = fold(RunState(), journal)
    assert not was_released(state, START._replace(restart=9))


@pytest.mark.parametrize("budget", list(Budget))
def test_a_setup_line_with_the_name_of_a_budget_renews_no_other(budget: Budget) -> None:
    """The budget that is spent is a field of the record, and a release renews that one."""
    line = SetupFailure(f"check {budget.value} first", "setup", 1)
    epoch = Epoch(0, 0, 1, 0)
    used = (EpochStarted(epoch, "7", ()), Requeued(epoch, Cause.LAUNCH_FAILURE, line.text, line))
    spent = BUDGETS._replace(max_launch_failures=0)
    known = facts(*used, epoch=Epoch(0, 0, 2, 0), job=RUNNING._replace(restarts=2))
    choice = lifecycle.decide(known._replace(launch_failure=line), spent)
    assert isinstance(choice, choices.Hold)
    assert choice.record is not None
    assert Budget.LAUNCH_FAILURES is choice.record.budget
    again = RunEnded(*choice.record[:5], choice.record.budget)
    released = fold(RunState(), records_of([*used, again, EpochStarted(Epoch(0, 0, 3, 0), "7", ())]))
    assert 0 == released.used(Cause.LAUNCH_FAILURE)


@pytest.mark.parametrize("words", SENTENCES)
def test_a_setup_line_of_any_words_is_only_itself(words: str) -> None:
    """What it looks like neither makes it last nor makes it another one."""
    failure = with_words(SetupFailure(words, "setup", 1), "nothing of it\n")
    assert not failure.lasting
    back = Requeued(Epoch(0, 0, 0, 0), Cause.LAUNCH_FAILURE, words, failure)
    found = earlier_starts(records_of([back]), Epoch(0, 0, 1, 0), failure)
    assert "FAILED" == found.name
    other = earlier_starts(records_of([back]), Epoch(0, 0, 1, 0), failure._replace(line=f"{words} "))
    assert "NOTHING" == other.name


@pytest.mark.parametrize("words", SENTENCES)
def test_nobody_is_held_to_be_absent_for_a_sentence(words: str) -> None:
    """Who did not come is a field of the record."""
    left = Drained(Epoch(0, 0, 0, 0), Cause.JOIN_TIMEOUT, None, words)
    assert [] == node_faults(records_of([*BEGUN[:1], left]), "run")
    (one,) = node_faults(records_of([*BEGUN[:1], left._replace(missing=("n2",))]), "run")
    assert ("n2", Fault.ABSENT) == one.event[:2]
