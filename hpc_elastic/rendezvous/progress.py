"""Whether the starts of a run lead anywhere: what they began from, and what they have saved. Pure."""

from __future__ import annotations

from typing import NamedTuple

BEGINNING = -1  # in place of a step: nothing is marked as saved


class Progress(NamedTuple):
    """What the records tell of durable steps.

    A start of the job has made progress if a checkpoint is durable at its end that is newer than the one
    it began from. Starts in which no workers ran are not looked at.
    """

    newest: int = BEGINNING  # durable step
    began: int | None = None  # step that the workers of this start began from; None: none have run yet
    before: int | None = None  # the same of the newest earlier start of this submission in which some ran
    in_vain: int = 0  # starts in a row up to that one without progress
    tells: bool = False  # the program marks checkpoints, or tells its steps

    def next_start(self, *, resubmitted: bool) -> Progress:
        """Return what is known as the job starts again."""
        if resubmitted:
            return Progress(self.newest, tells=self.tells)
        before = self.before if self.began is None else self.began
        return self._replace(began=None, before=before)

    def formed(self, step: int) -> Progress:
        """Return what is known when a round begins from a step."""
        known = self.saved(step)
        if self.began is not None:
            return known
        if self.before is None:
            return known._replace(began=step)
        return known._replace(began=step, in_vain=self.in_vain + 1 if step <= self.before else 0)

    def saved(self, step: int) -> Progress:
        """Return what is known when a step is durable; `BEGINNING` if none is."""
        return self._replace(newest=max(self.newest, step), tells=self.tells or step != BEGINNING)

    def starts_in_vain(self, newest: int) -> int:
        """Return how many starts in a row have made no progress, this one included, if it ended now.

        Args:
            newest: the newest durable step there is now, recorded or not; `BEGINNING` if there is none.
        """
        if self.began is None:
            return self.in_vain
        return self.in_vain + 1 if max(newest, self.newest) <= self.began else 0
