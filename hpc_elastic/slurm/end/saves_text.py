"""What is to be said of the saves of a run that is started again and again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.progress import BEGINNING, Progress, Trained
from hpc_elastic.text import count_text

HOW = "worker.tick(step), worker.should_stop() and worker.checkpoint_saved(step, path) of hpc_elastic tell"
"""The calls that would change that nothing is known."""
_NAME = "max_starts_without_save"


def saves_text(progress: Progress, newest: int, limit: int | None) -> str:
    """Return what a start of the job has not saved; empty if it has saved, or no workers ran in it.

    Args:
        progress: what the records tell.
        newest: the newest durable step there is; `progress.BEGINNING` if there is none.
        limit: after how many starts the run is held; None: it is not, or that is not to be said.
    """
    starts, noun, last = progress.starts_in_vain(newest), "start", "the last start has"
    if not progress.tells and (starts or progress.silent):
        what = "start" if starts else "round"
        return f"nothing is known of its saves, so each {what} may begin anew: {HOW}"
    if not starts:
        starts, noun, last = progress.stops_in_vain(newest), "stop", "the round that had to stop last has"
    if not starts:
        return ""
    who = last if starts == 1 else f"the last {count_text(starts, noun)} in a row have"
    then = f" (held after {limit}: {_NAME})" if limit else ""
    return f"{who} saved {_what(max(newest, progress.newest))}{then}"


def in_vain_text(progress: Progress, newest: int, limit: int | None, *, of_starts: bool) -> str:
    """Return that starts, or stops within a start, lead nowhere; empty if they do, or no save is ever marked.

    Args:
        progress: that of the records; a program that marks no saves may save by itself.
        newest: the newest durable step there is; `progress.BEGINNING` if there is none.
        limit: after how many that saved nothing; None or 0: never.
        of_starts: whether the starts of the job are counted; else the stops within them.
    """
    count, noun = progress.stops_in_vain(newest), "stop"
    if of_starts:
        count, noun = progress.starts_in_vain(newest), "start"
    if not limit or count < limit or not progress.tells:
        return ""
    what = _what(max(newest, progress.newest))
    return f"{count_text(count, noun)} in a row saved {what} ({_NAME} = {limit})"


def _what(step: int) -> str:
    return "nothing" if step == BEGINNING else f"nothing newer than step {step}"


def short_time_text(starts: Sequence[Trained], limit_s: float | None) -> str:
    """Return that starts which ended for their time limit have trained for little of it; empty if not.

    Args:
        starts: of the submission, the oldest first.
        limit_s: the time limit of the job [s]; None: it has none, or it is not known.
    """
    short: list[float] = []
    for start in reversed(starts):
        seconds = start.seconds
        if (
            limit_s is None
            or seconds is None
            or start.cause is not Cause.TIME_LIMIT
            or 2 * seconds >= limit_s
        ):
            break
        short.append(seconds)
    if not short or limit_s is None:
        return ""
    least, most = f"{min(short):.0f}", f"{max(short):.0f}"
    spans = f"{least} s" if least == most else f"{least} to {most} s"
    who = "this start has" if len(short) == 1 else f"the last {count_text(len(short), 'start')} have each"
    return (
        f"{who} trained for {spans} of a time limit of {limit_s:.0f} s; a longer --time, or a "
        f"--checkpoint-lead of what a save takes, leaves more"
    )
