"""What is to be said of the saves of a run that is started again and again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.rendezvous.journal import Cause
from hpc_elastic.rendezvous.progress import BEGINNING, Progress
from hpc_elastic.rendezvous.useful_time import Trained
from hpc_elastic.wording import count_text

HOW = "worker.tick(step), worker.should_stop() and worker.checkpoint_saved(step, path) of hpc_elastic tell"
"""The calls that would change that nothing is known."""


def saves_text(progress: Progress, newest: int, limit: int | None) -> str:
    """Return what a start of the job has not saved; empty if it has saved, or no workers ran in it.

    Args:
        progress: what the records tell.
        newest: the newest durable step there is; `progress.BEGINNING` if there is none.
        limit: after how many starts the run is held; None: it is not, or that is not to be said.
    """
    starts = progress.starts_in_vain(newest)
    if not starts:
        return ""
    if not progress.tells:
        return f"nothing is known of its saves, so each start may begin anew: {HOW}"
    step = max(newest, progress.newest)
    what = "nothing" if step == BEGINNING else f"nothing newer than step {step}"
    who = "the last start has" if starts == 1 else f"the last {count_text(starts, 'start')} in a row have"
    then = f" (held after {limit}: max_starts_without_save)" if limit else ""
    return f"{who} saved {what}{then}"


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
