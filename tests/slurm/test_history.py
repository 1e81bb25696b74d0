"""What is said of the earlier starts of a run, one fact at a time."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    Member,
    NodeLeft,
    Record,
    RoundEnded,
    RoundFormed,
    StopAgreed,
    StopKind,
    TaskStopped,
)
from hpc_elastic.record.progress import BEGINNING, Progress, Trained
from hpc_elastic.slurm.end import history

EPOCH = Epoch(0, 0, 0, 0)
START = TaskStart("12_1", 1, 0)
SAVES = Progress(4, tells=True)
OFTEN = "worker.tick(step), worker.should_stop()"


@pytest.mark.parametrize(
    ("progress", "newest", "limit", "text"),
    [
        (SAVES, 4, 3, ""),
        (SAVES._replace(began=3), 4, 3, ""),
        (SAVES._replace(began=4), 5, 3, ""),
        (
            SAVES._replace(began=4),
            4,
            3,
            "the last start has saved nothing newer than step 4 (held after 3: max_starts_without_save)",
        ),
        (SAVES._replace(began=4), 4, None, "the last start has saved nothing newer than step 4"),
        (SAVES._replace(began=4), 4, 0, "the last start has saved nothing newer than step 4"),
        (SAVES._replace(began=6), 5, None, "the last start has saved nothing newer than step 5"),
        (Progress(began=BEGINNING, tells=True), BEGINNING, None, "the last start has saved nothing"),
        (
            SAVES._replace(began=4, in_vain=1),
            4,
            None,
            "the last 2 starts in a row have saved nothing newer than step 4",
        ),
        (
            SAVES._replace(stops=1),
            4,
            None,
            "the round that had to stop last has saved nothing newer than step 4",
        ),
        (
            SAVES._replace(stops=2),
            4,
            None,
            "the last 2 stops in a row have saved nothing newer than step 4",
        ),
        (SAVES._replace(stops=2), 5, 3, ""),
        (Progress(), BEGINNING, 3, ""),
    ],
)
def test_what_was_saved_is_told(progress: Progress, newest: int, limit: int | None, text: str) -> None:
    """Of starts before the stops within them; nothing where something was saved."""
    assert text == history.saves_text(progress, newest, limit)


@pytest.mark.parametrize(
    ("progress", "begins", "what"),
    [
        (Progress(began=BEGINNING), "nothing is known of its saves, so each start may", True),
        (Progress(began=BEGINNING, in_vain=1), "the last 2 starts in a row began from step 0; nothing", True),
        (Progress(silent=1), "nothing is known of its saves, so each round may begin anew: ", True),
        (Progress(silent=1, tells=True), "", False),
    ],
)
def test_a_program_that_tells_nothing_may_begin_anew(progress: Progress, begins: str, *, what: bool) -> None:
    """The calls that would tell are named."""
    text = history.saves_text(progress, BEGINNING, 3)
    assert text.startswith(begins)
    assert what is (OFTEN in text)
    assert what is bool(text)


@pytest.mark.parametrize(
    ("progress", "newest", "limit", "of_starts", "text"),
    [
        (SAVES._replace(began=4, in_vain=1), 4, 2, True, "2 starts in a row saved nothing newer than step 4"),
        (SAVES._replace(began=4, in_vain=1), 4, 3, True, ""),
        (SAVES._replace(began=4, in_vain=1), 4, 1, True, "2 starts in a row saved nothing newer than step 4"),
        (SAVES._replace(began=4, in_vain=1), 4, 0, True, ""),
        (SAVES._replace(began=4, in_vain=1), 4, None, True, ""),
        (SAVES._replace(began=4, in_vain=1), 5, 2, True, ""),
        (SAVES._replace(began=4, in_vain=1), 4, 2, False, ""),
        (SAVES._replace(stops=2), 4, 2, False, "2 stops in a row saved nothing newer than step 4"),
        (SAVES._replace(stops=2), 4, 2, True, ""),
        (SAVES._replace(stops=2, tells=False), 4, 2, False, ""),
        (
            Progress(began=BEGINNING, in_vain=1, tells=True),
            BEGINNING,
            2,
            True,
            "2 starts in a row saved nothing",
        ),
        (SAVES._replace(began=9, in_vain=1), 6, 2, True, "2 starts in a row saved nothing newer than step 6"),
    ],
)
def test_as_many_in_vain_as_are_allowed_spend_the_budget(
    progress: Progress, newest: int, limit: int | None, *, of_starts: bool, text: str
) -> None:
    """Of a program that marks saves; its name is told with it."""
    assert text == history.saved_nothing_text(progress, newest, limit, of_starts=of_starts)
    named = f"{text} (max_starts_without_save = {limit})" if text else ""
    assert named == history.in_vain_text(progress, newest, limit, of_starts=of_starts)


LIMIT, OTHER = Cause.TIME_LIMIT, Cause.PREEMPTION


@pytest.mark.parametrize(
    ("starts", "limit_s", "begins"),
    [
        ([Trained(40.0, LIMIT)], 100.0, "this start has trained for 40 s of a time limit of 100 s; a longer"),
        ([Trained(50.0, LIMIT)], 100.0, ""),
        ([Trained(49.0, LIMIT)], 100.0, "this start has trained for 49 s "),
        ([Trained(40.0, LIMIT)], None, ""),
        ([Trained(40.0, OTHER)], 100.0, ""),
        ([Trained(None, LIMIT)], 100.0, ""),
        ([], 100.0, ""),
        (
            [Trained(10.0, LIMIT), Trained(40.0, LIMIT)],
            100.0,
            "the last 2 starts have each trained for 10 to 40 s",
        ),
        (
            [Trained(40.0, LIMIT), Trained(40.0, LIMIT)],
            100.0,
            "the last 2 starts have each trained for 40 s of",
        ),
        ([Trained(10.0, LIMIT), Trained(90.0, LIMIT), Trained(40.0, LIMIT)], 100.0, "this start has trained"),
        ([Trained(10.0, OTHER), Trained(40.0, LIMIT)], 100.0, "this start has trained for 40 s of"),
        ([Trained(40.0, LIMIT), Trained(10.0, OTHER)], 100.0, ""),
    ],
)
def test_little_training_before_the_limit_is_told(
    starts: list[Trained], limit_s: float | None, begins: str
) -> None:
    """Of the newest starts in a row that had less than half of it."""
    text = history.short_time_text(starts, limit_s)
    assert text.startswith(begins)
    assert bool(begins) is bool(text)


def formed(number: int, *agents: str) -> RoundFormed:
    """Return a round of some agents."""
    members = tuple(Member(agent, agent.partition(".")[0], 1) for agent in agents)
    return RoundFormed(number, EPOCH, members, "n1", 1, None)


ME, OF_OTHERS = "n2.7@12_1-1-0", "n1.7@12_0-1-0"
LEFT = NodeLeft(EPOCH, ME, "n2", Cause.TIME_LIMIT, "")


@pytest.mark.parametrize(
    ("entries", "seconds", "cause"),
    [
        ([formed(1, OF_OTHERS, ME), RoundEnded(1, Cause.CRASH, (), None)], 1.0, None),
        ([formed(1, OF_OTHERS, "n2.9@12_1-1-3"), RoundEnded(1, Cause.CRASH, (), None)], 1.0, None),
        ([formed(1, OF_OTHERS), RoundEnded(1, Cause.CRASH, (), None)], 0.0, None),
        ([formed(1, "n2.7@12_1-0-0"), RoundEnded(1, Cause.CRASH, (), None)], 0.0, None),
        ([formed(1, "n2.7"), RoundEnded(1, Cause.CRASH, (), None)], 0.0, None),
        ([formed(1, ME), StopAgreed(1, 5), RoundEnded(1, Cause.TIME_LIMIT, (), None), LEFT], 1.0, LIMIT),
        (
            [formed(1, ME), RoundEnded(1, Cause.CRASH, (), None), formed(2, ME), LEFT, StopAgreed(2, 5)],
            3.0,
            LIMIT,
        ),
        ([formed(1, ME), LEFT._replace(node_id=OF_OTHERS)], 0.0, None),
        ([formed(1, ME), formed(2, OF_OTHERS), RoundEnded(2, Cause.CRASH, (), None)], 0.0, None),
    ],
)
def test_a_task_has_trained_in_the_rounds_with_its_agents(
    entries: list[Entry], seconds: float, cause: Cause | None
) -> None:
    """A relaunch of srun belongs to its start; another start does not."""
    records = [Record(number, float(number), "n1.7", entry) for number, entry in enumerate(entries, 1)]
    assert Trained(seconds, cause) == history.task_trained(records, START)


def records_of(*entries: Entry) -> list[Record]:
    """Return numbered records."""
    return [Record(number, 0.0, "n1.7", entry) for number, entry in enumerate(entries, 1)]


def stopped(how: StopKind, task: str = "12_1") -> TaskStopped:
    """Return the end of a task."""
    return TaskStopped(EPOCH, how, task, 0, "n2", "why")


@pytest.mark.parametrize(
    ("entries", "tasks"),
    [
        ([stopped(StopKind.GIVEN_UP)], {"12_1"}),
        ([stopped(StopKind.FAILED)], set()),
        ([stopped(StopKind.GIVEN_UP), stopped(StopKind.GIVEN_UP, "12_2")], {"12_1", "12_2"}),
        ([stopped(StopKind.GIVEN_UP), formed(1, OF_OTHERS, "n9.1")], {"12_1"}),
        ([stopped(StopKind.GIVEN_UP), formed(1, OF_OTHERS, ME)], set()),
        ([formed(1, ME), stopped(StopKind.GIVEN_UP)], {"12_1"}),
    ],
)
def test_tasks_are_given_up_until_they_are_in_a_round(entries: list[Entry], tasks: set[str]) -> None:
    """In the order of the records."""
    assert tasks == history.given_up(records_of(*entries))


def test_the_newest_goodbye_of_a_start_is_its_own() -> None:
    """Not that of another start, task or agent without one."""
    late = LEFT._replace(cause=Cause.PREEMPTION)
    others = [LEFT._replace(node_id=one) for one in ("n2.7@12_1-0-0", "n2.7@12_1-1-1", OF_OTHERS, "n2.7")]
    assert late == history.goodbye_of(records_of(LEFT, late, *others, formed(1, ME)), START)
    assert history.goodbye_of(records_of(*others), START) is None


@pytest.mark.parametrize(
    ("entries", "restart", "in_vain"),
    [
        ([], 0, 1),
        ([], 2, 3),
        ([formed(1, ME)], 1, 0),
        ([formed(1, ME)], 3, 2),
        ([formed(1, ME)], 0, 1),
        ([LEFT], 2, 1),
        ([formed(1, OF_OTHERS)], 1, 2),
        ([formed(1, "n2.7@12_1-0-0", ME)], 2, 1),
    ],
)
def test_starts_of_a_task_in_vain_are_those_since_the_last_of_use(
    entries: list[Entry], restart: int, in_vain: int
) -> None:
    """One was of use that was in a round or said goodbye; a later one does not matter for an earlier one."""
    assert in_vain == history.task_starts_in_vain(records_of(*entries), START._replace(restart=restart))
