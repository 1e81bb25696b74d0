"""Starts of a run that lead nowhere, by the fold of the journal."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.progress import BEGINNING, Progress
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.slurm.end.history import HOW, in_vain_text, saves_text

MEMBERS = (Member("n1.1", "n1", 1),)


class Story:
    """The records of a run, one start after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rounds = 0
        self.epoch = Epoch(0, 0, -1, 0)

    def start(self, *, submission: int = 0, relaunch: bool = False) -> Story:
        """Have the job start again."""
        known = self.epoch
        restart = known.restart if relaunch else known.restart + 1
        self.epoch = Epoch(submission, 0, restart, known.relaunch + 1 if relaunch else 0)
        self.entries.append(EpochStarted(self.epoch, "7", ("n1",)))
        return self

    def round(self, step: int | None) -> Story:
        """Have workers begin from a step."""
        self.rounds += 1
        checkpoint = None if step is None else MarkedCheckpoint(step, "")
        self.entries.append(RoundFormed(self.rounds, self.epoch, MEMBERS, "n1", 1, checkpoint))
        return self

    def crash(self, saved: int | None) -> Story:
        """Have a worker fail."""
        self.entries.append(RoundEnded(self.rounds, Cause.CRASH, ("n1",), {"rank": 0}, saved))
        return self

    def drain(self, saved: int | None, stop_step: int | None = None) -> Story:
        """Have all save and leave."""
        self.entries.append(DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", self.epoch))
        if stop_step is not None:
            self.entries.append(StopAgreed(self.rounds, stop_step))
        self.entries.append(Drained(self.epoch, Cause.PREEMPTION, saved, ""))
        return self

    def pause(self, stop_step: int | None, saved: int | None) -> Story:
        """Have all stop for one node that leaves, as in array mode."""
        self.entries.append(DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "", self.epoch))
        if stop_step is not None:
            self.entries.append(StopAgreed(self.rounds, stop_step))
        self.entries.append(RoundEnded(self.rounds, Cause.PREEMPTION, ("n1",), None, saved))
        return self

    def held(self) -> Story:
        """Have the run wait for its user."""
        self.entries.append(RunEnded(Decision.HELD, 75, "why", None))
        return self

    @property
    def state(self) -> RunState:
        """The fold of all that."""
        return fold(RunState(), [Record(at, 0.0, "n1", entry) for at, entry in enumerate(self.entries, 1)])

    def in_vain(self, newest: int = BEGINNING) -> int:
        """Return how many starts in a row have made no progress, if this one ended now."""
        return self.state.progress.starts_in_vain(newest)


def test_a_start_that_saves_nothing_newer_is_in_vain() -> None:
    """What is durable on disk counts as much as what a record tells."""
    story = Story().start().round(None)
    assert (1, 0, 0) == (story.in_vain(), story.in_vain(0), story.in_vain(7))
    assert 0 == story.drain(7).in_vain()
    again = story.start().round(7).drain(7)
    assert (1, 1, 0) == (again.in_vain(), again.in_vain(7), again.in_vain(8))


def test_starts_in_vain_add_up_until_one_saves() -> None:
    """By whatever they end."""
    story = Story().start().round(4).drain(4).start().round(4).start().round(4).crash(4).round(4)
    assert 3 == story.in_vain()
    assert 0 == story.crash(5).in_vain()
    assert 1 == story.start().round(5).in_vain()
    assert 2 == story.start().round(5).in_vain()


def test_a_save_that_only_the_next_start_tells_of_counts() -> None:
    """The agents of the one before were killed before they could say so."""
    story = Story().start().round(None).start().round(20)
    assert (0, 1) == (story.state.progress.in_vain, story.in_vain())
    assert 2 == story.start().round(20).in_vain()
    assert 1 == story.start().round(21).in_vain()


def test_starts_without_workers_are_not_looked_at() -> None:
    """They have budgets of their own, and break no row."""
    story = Story().start().round(None).start()
    assert 0 == story.in_vain()
    assert 2 == story.start().round(None).in_vain()


def test_a_row_that_is_known_stays_while_nobody_has_begun() -> None:
    """A start that waits for its nodes has neither saved nor failed to."""
    story = Story().start().round(3).start().round(3).start()
    assert 1 == story.in_vain()


def test_agents_that_are_started_again_are_in_the_same_start() -> None:
    """A relaunch belongs to the start of the job."""
    assert 1 == Story().start().round(None).start(relaunch=True).round(None).in_vain()


@pytest.mark.parametrize("how", ["submitted again", "released"])
def test_what_its_user_starts_again_is_new(how: str) -> None:
    """The row begins with that start."""
    story = Story().start().round(3).start().round(3).drain(3)
    assert 2 == story.in_vain()
    if how == "released":
        story.held().start()
    else:
        story.start(submission=1)
    assert 0 == story.in_vain()
    assert 1 == story.round(3).in_vain()


@pytest.mark.parametrize(
    ("story", "tells"),
    [
        (Story().start().round(None).drain(None, -1), False),
        (Story().start().round(None).crash(None), False),
        (Story().start().round(None).drain(None, 0), True),
        (Story().start().round(0), True),
        (Story().start().round(None).crash(0), True),
        (Story().start().round(None).drain(0), True),
        (Story().start().round(None).drain(None, 5).start().round(None), True),
        (Story().start().round(1).start(submission=1).round(None), True),
    ],
)
def test_a_program_that_marks_or_ticks_is_known(story: Story, tells: bool) -> None:
    """Also in later starts and submissions."""
    assert tells is story.state.progress.tells


def test_stops_within_a_start_that_save_nothing_add_up() -> None:
    """Array mode: the tasks that are left go on, from where this round began."""
    story = Story().start().round(None).pause(20, None)
    assert (1, 1, 0) == tuple(story.state.progress.stops_in_vain(newest) for newest in (-1, BEGINNING, 20))
    story.round(None).pause(40, None)
    assert 2 == story.state.progress.stops
    story.round(None).pause(60, 60)
    assert 0 == story.state.progress.stops
    story.round(60).pause(80, 60)
    assert 1 == story.state.progress.stops
    assert 0 == story.round(60).crash(75).state.progress.stops


def test_a_stop_with_nothing_to_save_is_none_in_vain() -> None:
    """No step was done, or nobody asked whether to stop."""
    story = Story().start().round(20)
    for step in (None, -1, 20):
        assert 0 == story.pause(step, 20).round(20).state.progress.stops
    assert 1 == story.pause(21, 20).state.progress.stops
    assert 0 == Story().start().round(None).pause(0, None).state.progress.stops


def test_a_program_that_does_not_ask_leaves_nothing_known_at_each_stop() -> None:
    """These stops are no row of stops in vain: it may save by itself; one that ticked or saved is known."""
    story = (
        Story().start().round(None).pause(-1, None).round(None).pause(None, None).round(None).pause(-1, None)
    )
    assert (2, 0, False) == (
        story.state.progress.silent,
        story.state.progress.stops,
        story.state.progress.tells,
    )
    assert saves_text(story.state.progress._replace(began=None), BEGINNING, 3) == (
        f"nothing is known of its saves, so each round may begin anew: {HOW}"
    )
    story.round(None).pause(0, None)
    assert "" == saves_text(story.state.progress._replace(began=None), BEGINNING, 3)


def test_a_released_run_has_no_stops_in_vain() -> None:
    """Its user knows."""
    story = Story().start().round(None).pause(20, None)
    assert 1 == story.start().state.progress.stops
    assert 0 == story.held().start().state.progress.stops


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(), ""),
        (Progress(silent=1), "each round may begin anew"),
        (Progress(began=BEGINNING), "each start may begin anew"),
        (Progress(newest=5, began=5, tells=True), "the last start has saved"),
        (Progress(newest=5, began=5, in_vain=1, tells=True), "the last 2 starts in a row have saved"),
        (Progress(newest=5, began=4, tells=True, stops=1), "the round that had to stop last has saved"),
        (Progress(newest=5, began=4, tells=True), ""),
    ],
)
def test_what_is_said_of_saves(progress: Progress, words: str) -> None:
    """Nothing, as long as nothing was in vain."""
    text = saves_text(progress, BEGINNING, None)
    assert words in text
    assert bool(words) is bool(text)


def test_what_a_record_tells_is_saved_though_the_disk_tells_nothing() -> None:
    """Starts in vain have saved nothing newer than the newest step that is known."""
    progress = Progress(newest=5, began=5, in_vain=1, tells=True)
    text = in_vain_text(progress, BEGINNING, 2, of_starts=True)
    assert "2 starts in a row saved nothing newer than step 5 (max_starts_without_save = 2)" == text


def test_starts_of_a_program_that_tells_nothing_began_at_the_beginning() -> None:
    """Nothing is marked as saved, so each of them did."""
    progress = Story().start().round(None).start().round(None).state.progress
    assert saves_text(progress, BEGINNING, None).startswith("the last 2 starts in a row began from step 0; ")
