"""An explanation in words: lines that fit a terminal of 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from hpc_elastic.account.account import Account
from hpc_elastic.account.spans import Bucket, Stop
from hpc_elastic.clock import date_text
from hpc_elastic.record.journal import Cause
from hpc_elastic.report.explain.facts import Advice, AdviceFact, Explanation, StopFact
from hpc_elastic.report.timeline import failure_text, names_text, span_text
from hpc_elastic.text import count_text

WIDTH = 80
_MOST_BUCKETS = 5
_LEAST_SHARE = 0.005
_CAUSES = {
    None: "the start ended without a record of its end: its nodes or its job were gone",
    Cause.CRASH: "a worker failed",
    Cause.HANG: "the workers hung",
    Cause.NODE_LOSS: "a node was lost",
    Cause.MEMBERSHIP: "a pause, to change the nodes of the round",
    Cause.PREEMPTION: "preemption: Slurm wanted the nodes back",
    Cause.REQUEUE: "the job was requeued by hand",
    Cause.TIME_LIMIT: "the time limit of the job",
    Cause.STOP: "stopped by the user",
    Cause.INTERRUPT: "interrupted (Ctrl-C)",
    Cause.CANCEL: "the job was cancelled",
    Cause.LAUNCH_FAILURE: "the agents could not start",
    Cause.JOIN_TIMEOUT: "too few nodes came",
    Cause.AGENT_ERROR: "an agent could not continue",
}
_SHORT = {Cause.MEMBERSHIP: "change of nodes", Cause.STOP: "stop by the user"}


def short_cause(cause: Cause | None) -> str:
    """Return a cause in one or two words."""
    if cause is None:
        return "end without a record"
    return _SHORT.get(cause, cause.value.replace("_", " "))


def share_text(share: float) -> str:
    """Return a share as people write it: ``71 %``, ``0.4 %``."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 1 or not percent else f"{percent:.1f} %"


def explanation_lines(found: Explanation, headline: str, then: Iterable[str]) -> list[str]:
    """Return the explanation as lines; a path is never broken.

    Args:
        found: the facts.
        headline: the name of the run and its state.
        then: the next commands.
    """
    lines = [*_wrapped(headline, "", "  "), *_wrapped(_summary(found.account), "  ", "  ")]
    lines += _wrapped(_time_text(found.account), "  ", "  ")
    if found.stops:
        lines += ["", *_stops(found)]
    lines += ["", "To do:"]
    for text in (*map(_advice_text, found.advice), *then):
        lines += _wrapped(text, "  - ", "    ")
    return lines


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(account: Account) -> str:
    starts, rounds = len(account.starts), sum(start.facts.rounds for start in account.starts)
    reached = max((start.facts.reached or 0 for start in account.starts), default=0)
    step = f"; it has reached step {reached}" if reached else ""
    return (
        f"{span_text(account.wall_s)} since the submission, {count_text(starts, 'start')}, "
        f"{count_text(rounds, 'round')}{step}."
    )


def goodput_text(account: Account) -> str:
    """Return the goodput of a run, or the bound that is known of it."""
    if account.goodput is None:
        return f"at most {share_text(account.at_most)} (the workers report no steps)"
    on_nodes = account.goodput_on_nodes
    if on_nodes is None or on_nodes - account.goodput < _LEAST_SHARE:
        return share_text(account.goodput)
    return f"{share_text(account.goodput)} ({share_text(on_nodes)} of the time on nodes)"


def costs_text(account: Account) -> str:
    """Return the buckets that cost most, with their shares; empty if none did."""
    work = (Bucket.TRAINING, Bucket.WORKING)
    costs = sorted(((seconds, bucket) for bucket, seconds in account.seconds.items() if bucket not in work))
    found = [
        f"{bucket.value} {share_text(seconds / account.wall_s)}"
        for seconds, bucket in reversed(costs)
        if seconds / account.wall_s >= _LEAST_SHARE
    ]
    return ", ".join(found[:_MOST_BUCKETS])


def _time_text(account: Account) -> str:
    costs = costs_text(account)
    rest = f" The rest: {costs}." if costs else ""
    if account.goodput is None:
        return f"Goodput is not known: {goodput_text(account)}.{rest}"
    return f"Goodput {goodput_text(account)}: the time in which new steps were computed.{rest}"


def _stops(found: Explanation) -> Iterator[str]:
    total = found.earlier + sum(stop.times for stop in found.stops)
    yield "Stopped once:" if total == 1 else f"Stopped {total} times:"
    last = found.stops[-1]
    if found.earlier:
        text = ", ".join(
            f"{count_text(each.times, short_cause(each.cause))} ({span_text(each.seconds)})"
            for each in found.account.causes
        )
        yield from _wrapped(f"in all: {text}. The newest:", "  ", "  ")
    place = found.earlier + 1
    for stop in found.stops:
        number = f"  {place}. " if stop.times == 1 else f"  {place}-{place + stop.times - 1}. "
        place += stop.times
        indent = " " * len(number)
        yield from _wrapped(_stop_text(stop), number, indent)
        is_end = stop is last and found.account.series.ending is not None
        then = _end_text(found.account) if is_end and stop.last.resumed is None else _resumed_text(stop.last)
        yield from _wrapped(f"{_cost_text(stop)}; {then}", indent, indent)
        if stop.evidence:
            yield from _wrapped(f"see {stop.evidence}", indent, indent)


def _end_text(account: Account) -> str:
    lost = sum(span.steps for span in account.series.spans if span.bucket is Bucket.LOST)
    steps = f"; {count_text(lost, 'step')} after the last checkpoint lost" if lost else ""
    return f"the run ended then{steps}"


def _stop_text(stop: StopFact) -> str:
    when = date_text(stop.first.at)
    if stop.times > 1:
        when = f"{stop.times} times, {when} to {date_text(stop.last.at)}"
    return f"{when}: {cause_of(stop)}"


def cause_of(stop: StopFact) -> str:
    """Return the cause of a stop with its culprit."""
    one = stop.last
    if one.failure and one.cause in (Cause.CRASH, Cause.HANG):
        also = "" if len(stop.nodes) < _SEVERAL else f" (on {names_text(stop.nodes)})"
        return f"{failure_text(one.failure)}{also}"
    if one.cause is Cause.NODE_LOSS and stop.nodes:
        return f"lost {names_text(stop.nodes)}"
    return _CAUSES[one.cause]


_SEVERAL = 2


def _cost_text(stop: StopFact) -> str:
    steps = f", {count_text(stop.lost_steps, 'step')} lost" if stop.lost_steps else ""
    return f"cost {span_text(stop.seconds)}{steps}"


def _resumed_text(stop: Stop) -> str:
    if stop.resumed is None:
        return "no round has followed yet"
    again = "in the next start" if stop.left else "in the next round"
    return f"continued {again} from step {stop.resumed}"


def _advice_text(fact: AdviceFact) -> str:
    number = round(fact.number)
    return {
        Advice.SAVE_AT_ALL: f"{count_text(number, 'start')} in a row began from step {fact.step or 0} and "
        "saved nothing newer: save more often than a start lasts, or ask for more time; workers that "
        "call worker.should_stop() can save when the job is preempted",
        Advice.SAVE_MORE: "much is computed again after each stop: save more often"
        + (f"; a save about every {span_text(fact.number)} wastes least" if fact.number else ""),
        Advice.MARK_SAVES: "no checkpoint is marked, so each start begins at step 0: call "
        "worker.checkpoint_saved(step, path) after each save",
        Advice.TELL_STEPS: "call worker.tick(step) after each step: then goodput, rate and the time left "
        "are known, and hangs are noticed",
        Advice.SUSPECT_NODE: f"the same failure came {number} times, always on {fact.node}: mend the "
        f"program, or leave that node out: hpc-elastic nodes suspect {fact.node}",
        Advice.FIX_PROGRAM: f"the same failure came {number} times in a row, and will come again: mend "
        "the program",
        Advice.SHORTEN_START: f"the start of workers takes {share_text(fact.number)} of the time: imports "
        "and data on a node-local disk, or fewer of them, shorten it",
    }[fact.advice]
