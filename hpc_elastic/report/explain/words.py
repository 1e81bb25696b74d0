"""An explanation in words: lines that fit a terminal of 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpc_elastic.account.account import Account, NewestStep, Pace, pace_of
from hpc_elastic.account.facts import RunUse
from hpc_elastic.account.gpus import NodeGpus, summary_of
from hpc_elastic.account.spans import Bucket
from hpc_elastic.account.stops import Leaver, Stop
from hpc_elastic.clock import date_text
from hpc_elastic.meet.member_names import natural
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.why_left import Asker
from hpc_elastic.report.causes_text import unfit_text
from hpc_elastic.report.explain.facts import Advice, AdviceFact, Explanation, StopFact
from hpc_elastic.report.timeline import failure_text, names_text, span_text
from hpc_elastic.text import bytes_text, count_text, wrapped

_MOST_BUCKETS, _MOST_IN_STATUS = 5, 3
_LATE = 2  # times the best time between two saves, after which one is due
_SEVERAL = 2
_LEAST_SHARE = 0.005
_LEAST_PAUSE_S = 1.0  # a shorter one is not worth a word
_UNRECORDED = "the start ended without a record of its end: its nodes or its job were gone"


def times_text(cause: Cause | None, times: int) -> str:
    """Return how often a cause has stopped a run: ``2 node losses``."""
    if cause is None:
        return f"{count_text(times, 'end')} without a record"
    return f"{times} {CAUSES[cause].counted(times)}"


def share_text(share: float) -> str:
    """Return a share as people write it: ``71 %``, ``0.4 %``."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 1 or not percent else f"{percent:.1f} %"


def explanation_lines(found: Explanation, headline: str, then: Iterable[str], *, well: str = "") -> list[str]:
    """Return the explanation as lines; paths and commands are never broken.

    Args:
        found: the facts.
        headline: the name of the run and its state.
        then: the next commands.
        well: why there is nothing to do; empty if there is.
    """
    lines = [*wrapped(headline, "", "  "), *wrapped(_summary(found.account), "  ", "  ")]
    lines += wrapped(_time_text(found.account, is_script=found.is_script), "  ", "  ")
    if used := use_text(found.account.use):
        lines += wrapped(f"Used: {used}.", "  ", "  ")
    if busy := gpus_text(found.account.gpus):
        lines += wrapped(f"GPUs: {busy}.", "  ", "  ")
    if found.stops:
        lines += ["", *_stops(found)]
    lines += ["", steps_title(found, well)]
    for text in map(advice_text, found.advice):
        lines += wrapped(text, "  - ", "    ")
    return [*lines, *(f"  - {command}" for command in then)]  # unbroken, so that it can be copied


def steps_title(found: Explanation, well: str) -> str:
    """Return the title of the next steps of the user.

    Args:
        found: the facts.
        well: why there is nothing to do; empty if there is.
    """
    return f"Nothing to do: {well}. To see more:" if well and not found.advice else "To do:"


def _summary(account: Account) -> str:
    starts, rounds = len(account.starts), sum(start.facts.rounds for start in account.starts)
    step = step_text(account)
    reached = f"; it has reached {step}" if step else ""
    pause_s = account.paused_s
    without = f" (without the {span_text(pause_s)} after an end)" if pause_s >= _LEAST_PAUSE_S else ""
    return (
        f"{span_text(account.wall_s)} since the submission{without}, {count_text(starts, 'start')}, "
        f"{count_text(rounds, 'round')}{reached}."
    )


def goodput_text(account: Account) -> str:
    """Return the goodput of a run, or the bound that is known of it."""
    if account.goodput is None:
        return f"at most {share_text(account.at_most)} (no step is reported so far)"
    on_nodes = account.goodput_on_nodes
    if on_nodes is None or on_nodes - account.goodput < _LEAST_SHARE:
        return share_text(account.goodput)
    return f"{share_text(account.goodput)} ({share_text(on_nodes)} of the time on nodes)"


def use_text(use: RunUse | None) -> str:
    """Return the use of the nodes that is known, like Slurm's ``seff``; empty if none is."""
    if use is None:
        return ""
    parts = []
    if use.cpu_s is not None:
        of = "" if use.of_cpu_s is None else f" of {span_text(use.of_cpu_s)}"
        share = "" if use.cpu_share is None else f" ({share_text(use.cpu_share)})"
        parts.append(f"CPU time {span_text(use.cpu_s)}{of}{share}")
    if use.peak is not None:
        of = "" if use.limit is None else f" of {bytes_text(use.limit)}"
        parts.append(f"memory up to {bytes_text(use.peak)}{of} with cached files")
    return f"{', '.join(parts)}; measured on {names_text(use.nodes)}"


def gpus_text(nodes: Sequence[NodeGpus]) -> str:
    """Return the use of the GPUs that are sampled; empty if none is."""
    found = summary_of(nodes)
    if found is None:
        return ""
    parts = [] if found.share is None else [f"busy {share_text(found.share)}"]
    if found.least is not None and found.gpus > 1:
        share, node, number = found.least
        parts[-1] += f" (least: GPU {number} of {node}, {share_text(share)})"
    if found.peak is not None:
        of = "" if found.limit is None else f" of {bytes_text(found.limit)}"
        parts.append(f"memory up to {bytes_text(found.peak)}{of}")
    return f"{', '.join(parts)}; {count_text(found.gpus, 'GPU')} on {names_text(found.nodes)}"


def gpus_now_text(node: NodeGpus) -> str:
    """Return the newest use of the GPUs of a node, in few letters: the span of shares, the highest memory."""
    busy = sorted(gpu.now for gpu in node.gpus if gpu.now is not None)
    memory = max((gpu.memory for gpu in node.gpus if gpu.memory is not None), default=None)
    span = "-".join(dict.fromkeys(map(str, (busy[0], busy[-1])))) if busy else ""
    return " ".join(filter(None, (f"{span} %" if span else "", "" if memory is None else bytes_text(memory))))


def costs_text(account: Account, most: int = _MOST_BUCKETS) -> str:
    """Return the buckets that cost most, with their shares; empty if none did."""
    work = (Bucket.TRAINING, Bucket.WORKING)
    costs = sorted(((seconds, bucket) for bucket, seconds in account.seconds.items() if bucket not in work))
    found = [
        f"{account.text_of(bucket)} {share_text(seconds / account.wall_s)}"
        for seconds, bucket in reversed(costs)
        if seconds / account.wall_s >= _LEAST_SHARE
    ]
    return ", ".join(found[:most])


def progress_facts(
    account: Account, best_s: float | None, age_s: float | None, now: NewestStep | None = None
) -> list[tuple[str, str]]:
    """Return labels and texts about saves, goodput and pace, for status.

    Args:
        account: of the run.
        best_s: the time between two saves that wastes least [s]; None: not known.
        age_s: the age of the newest checkpoint of a run that goes on [s]; None: none is, or none goes on.
        now: how far the workers are by their heartbeats; None: none run, or it is not known.
    """
    facts = []
    if best_s is not None:
        late = "; the newest one is older" if age_s is not None and age_s > _LATE * best_s else ""
        facts.append(("", f"a save about every {span_text(best_s)} would waste least{late}"))
    if account.wall_s and account.starts:
        costs = costs_text(account, _MOST_IN_STATUS)
        facts.append(("goodput", goodput_text(account) + (f"; cost most: {costs}" if costs else "")))
    if used := use_text(account.use):
        facts.append(("resources", used))
    if busy := gpus_text(account.gpus):
        facts.append(("GPUs", busy))
    pace = pace_of(account.series)
    still_s = None if now is None else now.still_s
    still = "" if still_s is None else f"no new step for about {span_text(still_s)}"
    if pace is None and still:
        facts.append(("progress", f"{_current_text(account, now)}; {still}"))
    if pace is not None:
        rate = f"{rate_text(pace.per_s)} over {span_text(pace.seconds)}"
        lost = f"{share_text(pace.lost_share)} of that time without a new step"
        told = filter(None, (_current_text(account, now), still, f"{rate}, {lost}"))
        facts.append(("progress", "; ".join(told)))
        left_s = left_at(pace, account, None if now is None else now.step)
        if left_s:
            facts.append(("", f"about {span_text(left_s)} left at this rate"))
    return facts


def still_text(still_s: float, limit: str = "") -> str:
    """Return the meaning of steps that do not come, for explain.

    Args:
        still_s: for about how long [s].
        limit: the run's `hang_timeout`; empty: not known.
    """
    found = {
        "": "which the agents find after hang_timeout",
        "auto": "which the agents find after half an hour at the earliest (hang_timeout = auto)",
        "off": "which no agent finds (hang_timeout = off)",
    }.get(limit, f"which the agents find after {limit} (hang_timeout)")
    return f"no new step for about {span_text(still_s)}: a long save or validation, or a hang, {found}"


def step_text(account: Account) -> str:
    """Return the newest step, and of how many; empty if none is known."""
    progress = account.series.progress
    return progress_text(progress[-1][1] if progress else None, account.series.total)


def progress_text(step: int | None, total: int | None) -> str:
    """Return a step, and of how many; empty if it is not known."""
    of = f" of {total}" if total else ""
    return "" if step is None else f"step {step}{of}"


def _current_text(account: Account, now: NewestStep | None = None) -> str:
    """Return where the run is now; that is not the newest step while lost steps are computed again."""
    current, progress = account.series.current, account.series.progress
    if now is not None:
        current = max(now.step, current or 0)
    if current is not None and (not progress or current > progress[-1][1]):
        return progress_text(current, account.series.total)
    last = account.starts[-1].facts.reached if account.starts and current is None else current
    if last is None or not progress or last >= progress[-1][1]:
        return step_text(account)
    return f"{'last' if current is None else 'again'} at step {last}, has reached {step_text(account)}"


def left_at(pace: Pace, account: Account, step: int | None = None) -> float | None:
    """Return how long the rest of a run takes at its pace [s]; None if that is not known, or it has ended.

    Steps that are computed again take the time of their training alone: the pace counts the new ones.

    Args:
        pace: of the run.
        account: of the run.
        step: of the workers now, where it is newer than the account; None: not known.
    """
    total, ending = account.series.total, account.series.ending
    if total is None or ending is not None or not account.series.progress:
        return None
    reached, now = account.series.progress[-1][1], max(account.series.current or 0, step or 0)
    again_s = max(0, reached - now) * pace.training_s / pace.steps if now else 0.0
    return max(0, total - max(reached, now)) / pace.per_s + again_s


def rate_text(per_s: float) -> str:
    """Return a rate of steps as people say it: ``2.5 steps/s``, ``12 steps/min``, ``3.1 steps/h``."""
    for times, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_s * times >= 1 or unit == "h":
            return f"{per_s * times:.3g} steps/{unit}"
    raise AssertionError


def _time_text(account: Account, *, is_script: bool = False) -> str:
    costs = costs_text(account)
    rest = f" The rest: {costs}." if costs else ""
    if is_script and account.starts and account.goodput is None:
        return f"The time: {costs}." if costs else "A job script tells no steps, so it has no goodput."
    if account.goodput is None and not account.starts:
        return f"No start so far.{rest.replace(' The rest:', ' The time so far:')}"
    if account.goodput is None:
        return f"Goodput is not known: {goodput_text(account)}.{rest}"
    return f"Goodput {goodput_text(account)}: the time in which new steps were computed.{rest}"


def _stops(found: Explanation) -> Iterator[str]:
    total = found.earlier + sum(stop.times for stop in found.stops)
    yield "Stopped once:" if total == 1 else f"Stopped {total} times:"
    last = found.stops[-1]
    if found.earlier:
        text = ", ".join(
            f"{times_text(each.cause, each.times)} ({span_text(each.seconds)})"
            for each in found.account.causes
        )
        yield from wrapped(f"in all: {text}. The newest:", "  ", "  ")
    place = found.earlier + 1
    for stop in found.stops:
        number = f"  {place}. " if stop.times == 1 else f"  {place}-{place + stop.times - 1}. "
        place += stop.times
        indent = " " * len(number)
        yield from wrapped(_stop_text(stop), number, indent)
        is_end = stop is last and found.account.series.ending is not None
        then = _end_text(found.account) if is_end and stop.last.resumed is None else _resumed_text(stop.last)
        yield from wrapped(f"{cost_text(stop)}; {then}", indent, indent)
        if stop.evidence:
            yield from wrapped(f"see {stop.evidence}", indent, indent)


def _end_text(account: Account) -> str:
    lost = account.series.unsaved
    if not lost:
        return "the run ended then"
    has_saved = any(start.facts.saved is not None for start in account.starts)
    which = "after the last checkpoint lost" if has_saved else "lost, as no checkpoint is marked"
    bound = bound_text(0, lacks=account.series.unsaved_at_least)
    return f"the run ended then; {bound}{count_text(lost, 'step')} {which}"


def _stop_text(stop: StopFact) -> str:
    when = date_text(stop.first.at)
    if stop.times > 1:
        last = date_text(stop.last.at)
        when = f"{stop.times} times, {when}" + (f" to {last}" if last != when else "")
    return f"{when}: {cause_of(stop)}"


def cause_of(stop: StopFact) -> str:
    """Return the cause of a stop with its culprit."""
    text = _cause_text(stop)
    return f"{text}; {stop.last.drill}" if stop.last.drill else text


def _cause_text(stop: StopFact) -> str:
    one = stop.last
    if one.word is not None:
        return one.word.text
    if one.failure and one.cause in (Cause.CRASH, Cause.HANG):
        also = "" if len(stop.nodes) < _SEVERAL else f" (on {names_text(stop.nodes)})"
        return f"{failure_text(one.failure)}{also}"
    if one.leavers:
        return "; ".join(_leaver_texts(one.leavers))
    if one.cause is Cause.NODE_LOSS:
        return _loss_text(stop)
    if one.cause is Cause.JOIN_TIMEOUT and one.detail:
        return f"{CAUSES[one.cause].clause}: {one.detail}"
    told = one.detail if one.setup is None else one.setup.text
    clause = _UNRECORDED if one.cause is None else CAUSES[one.cause].clause
    return told or _asker_text(one.asker) or clause


def _asker_text(asker: Asker) -> str:
    is_open = asker.signal and not asker.is_sent and not asker.words
    return f"{asker.signal}, and Slurm did not say why" if is_open else asker.text


def _leaver_texts(leavers: Iterable[Leaver]) -> Iterator[str]:
    """Yield why nodes of an array have left, those that left for one reason together."""
    nodes: dict[str, list[str]] = {}
    for one in leavers:
        nodes.setdefault(_asker_text(one.asker) or CAUSES[one.cause].of_node, []).append(one.node)
    for why, names in nodes.items():
        yield f"{names_text(tuple(sorted(names, key=natural)))} left: {why}"


def _loss_text(stop: StopFact) -> str:
    """Return which nodes were lost; those that are unfit or were taken are not called so."""
    one = stop.last
    if one.unfit:
        return unfit_text(one.unfit)
    taken = [f"{node} was taken away: {reason}" for node, reason in one.taken.items() if node in stop.nodes]
    gone = tuple(node for node in stop.nodes if node not in one.taken)
    parts = [f"lost {names_text(gone)}", *taken] if gone else taken
    return "; ".join(parts) or CAUSES[Cause.NODE_LOSS].clause


def cost_text(stop: StopFact) -> str:
    """Return the cost of a stop: time without new steps, and steps that are lost."""
    steps = stop.lost_steps + stop.perhaps_lost
    bound = bound_text(stop.perhaps_lost, lacks=stop.lost_at_least)
    lost = f", {bound}{count_text(steps, 'step')} lost" if steps else ""
    if stop.lost_at_least and not steps:
        lost = ", lost steps not known"
    in_all = " in all" if stop.times > 1 else ""
    return f"cost {span_text(stop.seconds)}{in_all}{lost}"


def bound_text(perhaps_lost: int, *, lacks: bool) -> str:
    """Return the words before a number of lost steps that is not exact; empty if it is.

    Args:
        perhaps_lost: so many of them may not be lost.
        lacks: there may be more.
    """
    if perhaps_lost and lacks:
        return "about "
    return "at most " if perhaps_lost else "at least " if lacks else ""


def _resumed_text(stop: Stop) -> str:
    if stop.resumed is None:
        return "no round has followed yet"
    again = "in the next start" if stop.left or stop.kept is not None else "in the next round"
    if stop.kept is not None:
        saved = f"; the newest checkpoint then was of step {stop.kept}" if stop.kept > stop.resumed else ""
        return f"continued {again} from step {stop.resumed}, as --from-step asked{saved}"
    if stop.is_least and stop.step is not None and stop.step > stop.resumed:
        return f"continued {again} from step {stop.resumed}, or from a newer one in memory"
    if stop.is_least and not stop.resumed:
        return f"continued {again}; from which step is not known"
    return f"continued {again} from step {stop.resumed}"


def advice_text(fact: AdviceFact) -> str:
    """Return an advice as a sentence without its full stop."""
    number = round(fact.number)
    return {
        Advice.SAVE_AT_ALL: f"{count_text(number, 'start')} in a row began from step {fact.step or 0} and "
        "saved nothing newer: save more often than a start lasts, or ask for more time; workers that "
        "call worker.should_stop() can save when the job is preempted",
        Advice.SAVE_MORE: "much is computed again after each stop: save more often"
        + (f"; a save about every {span_text(fact.number)} wastes least" if fact.number else ""),
        Advice.MARK_SAVES: "no checkpoint is marked, so each start begins at step 0: call "
        "worker.checkpoint_saved(step, path) after each save",
        Advice.MEND_SAVES: f"the last save, of step {fact.step}, has failed: hpc-elastic checkpoints RUN "
        "shows the error; make room if the disk is full",
        Advice.TELL_STEPS: "call worker.tick(step) after each step: then goodput, rate and the time left "
        "are known, and hangs are noticed",
        Advice.SUSPECT_NODE: f"the same failure came {number} times, always on {fact.node}: mend the "
        f"program, or leave that node out: hpc-elastic nodes suspect {fact.node}",
        Advice.FIX_PROGRAM: f"the same failure came {number} times in a row, and will come again: mend "
        "the program",
        Advice.FIND_KILLER: f"workers were killed from outside (SIGKILL) {number} times in a row: often "
        "their node is short of memory; the log of its kernel tells (dmesg)",
        Advice.READ_STACKS: f"the workers hung ({count_text(number, 'time')}): the log of the last hang "
        "above has the stacks of all ranks; look for the rank that waits in another place than the others",
        Advice.SHORTEN_START: f"the start of workers takes {share_text(fact.number)} of the time: imports "
        "and data on a node-local disk, or fewer of them, shorten it",
    }[fact.advice]
