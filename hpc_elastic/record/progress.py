"""The progress of the starts of a run: first step, saved step, time of training. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import (
    Cause,
    Drained,
    Epoch,
    EpochStarted,
    Record,
    RoundEnded,
    RoundFormed,
    StopAgreed,
)

BEGINNING = -1  # in place of a step: nothing is marked as saved


class Progress(NamedTuple):
    """The durable steps of the records.

    A start of the job has made progress if a checkpoint is durable at its end that is newer than the one
    it began from. Starts in which no workers ran are not looked at. In array mode one start outlasts the
    events of its tasks: there each stop counts that workers were asked for and continued from.
    """

    newest: int = BEGINNING  # durable step
    began: int | None = None  # step that the workers of this start began from; None: none have run yet
    before: int | None = None  # the same of the newest earlier start of this submission in which some ran
    in_vain: int = 0  # starts in a row up to that one without progress
    tells: bool = False  # the program marks checkpoints, or tells its steps
    stops: int = 0  # in a row within starts, after steps, with nothing newer saved than the round began from
    silent: int = 0  # stops within starts without a told step, so that nothing is known of saves

    def next_start(self, *, resubmitted: bool) -> Progress:
        """Return the progress as the job starts again."""
        if resubmitted:
            return Progress(self.newest, tells=self.tells)
        before = self.before if self.began is None else self.began
        return self._replace(began=None, before=before)

    def formed(self, step: int) -> Progress:
        """Return the progress when a round begins from a step."""
        known = self.saved(step)
        if self.began is not None:
            return known
        if self.before is None:
            return known._replace(began=step)
        return known._replace(began=step, in_vain=self.in_vain + 1 if step <= self.before else 0)

    def saved(self, step: int) -> Progress:
        """Return the progress when a step is durable; `BEGINNING` if none is."""
        stops = 0 if step > self.newest else self.stops
        return self._replace(
            newest=max(self.newest, step), tells=self.tells or step != BEGINNING, stops=stops
        )

    def stopped(self, began: int, step: int | None) -> Progress:
        """Return the progress when a round has stopped on request, and the run goes on.

        Args:
            began: step that the round began from.
            step: that the workers stopped at; less than 0: they do not ask whether to stop; None: they
                have not said.
        """
        if step is not None and step < 0:
            return self._replace(silent=self.silent + 1)
        if step is None or step <= max(began, 0):
            return self
        return self._replace(stops=0 if self.newest > began else self.stops + 1)

    def stops_in_vain(self, newest: int) -> int:
        """Return how many stops in a row have saved nothing.

        Args:
            newest: the newest durable step there is now.
        """
        return 0 if newest > self.newest else self.stops

    def of_ended(self, newest: int) -> Progress:
        """Return the progress of the starts before the one that runs, which may save yet.

        Args:
            newest: as for `starts_in_vain`.
        """
        if self.began is None:
            return self
        has_saved = max(newest, self.newest) > self.began
        return self._replace(began=None, in_vain=0 if has_saved else self.in_vain)

    def of_last(self) -> Progress:
        """Return the progress at the end of the newest start in which workers ran; later ones had none."""
        return self._replace(began=self.before) if self.began is None else self

    def starts_in_vain(self, newest: int) -> int:
        """Return how many starts in a row have made no progress, this one included, if it ended now.

        Args:
            newest: the newest durable step there is now, recorded or not; `BEGINNING` if there is none.
        """
        if self.began is None:
            return self.in_vain
        return self.in_vain + 1 if max(newest, self.newest) <= self.began else 0


class Trained(NamedTuple):
    """One start of the job.

    Attributes:
        seconds: for how long its workers have run before they were asked to stop, or failed [s]; None if that
            is not known: clocks of two nodes are not compared.
        cause: why it was drained; None if it was not.
    """

    seconds: float | None = 0.0
    cause: Cause | None = None


def trained(records: Iterable[Record]) -> list[Trained]:
    """Return the work of the starts of the newest submission, the oldest first.

    Args:
        records: of the run.
    """
    found: list[Trained] = []
    newest: Epoch | None = None
    formed: Record | None = None
    for record in records:
        entry = record.entry
        if isinstance(entry, EpochStarted):
            if newest is None or entry.epoch.submission != newest.submission:
                found = []
            if newest is None or entry.epoch.script != newest.script:
                found.append(Trained())
            newest, formed = entry.epoch, None
        elif isinstance(entry, RoundFormed):
            formed = record
        elif found and isinstance(entry, StopAgreed | RoundEnded | Drained):
            found[-1] = found[-1]._replace(seconds=with_round(found[-1].seconds, formed, record))
            formed = None
            if isinstance(entry, Drained):
                found[-1] = found[-1]._replace(cause=entry.cause)
    return found


def with_round(known: float | None, formed: Record | None, end: Record) -> float | None:
    """Return the time with that of one more round [s]; None if another node has written its end.

    Args:
        known: the time of the rounds before [s]; None: it is not known.
        formed: the begin of the round; None: there is none to be added.
        end: its end.
    """
    if formed is None or known is None:
        return known
    return known + end.at - formed.at if writer_node(formed) == writer_node(end) else None


def writer_node(record: Record) -> str:
    """Return the node of a writer, whose agents on it are numbered."""
    return re.sub(r"\.\d+\Z", "", record.by)
