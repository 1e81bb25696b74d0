"""How long workers have, by Slurm's facts: the site's settings, the job's end, its own saves. Pure.

The signals of Slurm (SIGTERM is the same for all of these) and when SIGKILL follows:

    preemption with GraceTime          TERM now, TERM again at the end of the grace, KILL KillWait later
    preemption without, scancel,
    the time limit, a failed node      TERM now, KILL KillWait later
    the warning before the limit       the signal of --signal; TERM up to 30 s after the limit
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Answer, Cause
from hpc_elastic.record.why_left import RUNS_ON, EarlyNotice
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, job_facts, standing
from hpc_elastic.slurm.client.parse import between_s
from hpc_elastic.typed_json import Seconds

_NUMBER = "[0-9]{1,12}"
KILL_WAIT_S = 30.0  # Slurm's default
MARGIN_S = 5.0  # kept of KillWait for SIGTERM to the workers and the agents' own end
CALM_S = 10.0  # to agree on a step and to finish it, before anything is saved
WARNING_JITTER_S = 30.0  # slurmctld looks at limits every 30 s
_DELAY_S = 5.0  # of a signal, and of the question how long there is
SPARE = 1.25  # a save may take that much longer than it has been seen to take
_SHARE = 4  # a drain before the limit takes at most this part of the time left at the last look
_UNITS = {"": 1, "sec": 1, "min": 60, "hour": 3600, "day": 86400}

_ENDINGS = {
    Standing.SCRIPT_DIED: (Cause.LAUNCH_FAILURE, "its batch script was killed"),
    Standing.TIME_LIMIT: (Cause.TIME_LIMIT, "the time limit is reached"),
    Standing.NODE_DOWN: (Cause.NODE_LOSS, "a node of the job is down"),
    Standing.PREEMPTED: (Cause.PREEMPTION, "preempted, without grace"),
    Standing.CANCELLED: (Cause.CANCEL, "the job was cancelled"),
    Standing.REQUEUED: (
        Cause.PREEMPTION,
        "the job is requeued: preempted without grace, a node is down, or by scontrol requeue",
    ),
}
_GRACE_OVER = Cause.PREEMPTION, "preempted, and its grace is over"
_REQUEUED = {
    Cause.PREEMPTION: "preempted, without grace; the job is requeued",
    Cause.NODE_LOSS: "the node is down; the job is requeued",
    Cause.REQUEUE: "the job is requeued by hand (scontrol requeue)",
}


class Site(NamedTuple):
    """The times that a cluster and a partition or QOS grant a job that is to end."""

    kill_wait_s: Seconds = KILL_WAIT_S
    grace_s: Seconds = 0.0  # of a preemption
    user_signal: bool = False  # preemption sends the signal of --signal in place of SIGTERM


def seconds(text: str) -> float | None:
    """Return a time as Slurm prints it [s], ``30 sec``, ``5 min`` or ``1-02:03:04``; None for other text."""
    text = text.strip()
    plain = re.fullmatch(r"([0-9]{1,12})(?:\s+([a-z]+?)s?)?", text)
    if plain:
        unit = _UNITS.get(plain[2] or "")
        return None if unit is None else float(int(plain[1]) * unit)
    parts = re.fullmatch(rf"(?:({_NUMBER})-)?(?:({_NUMBER}):)?({_NUMBER}):({_NUMBER})", text)
    if parts is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in parts.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + rest)


def site_of(
    config: Mapping[str, str], partition: Mapping[str, str], qos_grace_s: float | None = None
) -> Site:
    """Return the times of a site.

    Args:
        config: the fields of ``scontrol show config``.
        partition: the fields of ``scontrol show partition``; empty if it is not known.
        qos_grace_s: grace of the job's QOS, where preemption goes by QOS.
    """
    kill_wait_s = seconds(config.get("KillWait", ""))
    by_qos = config.get("PreemptType", "").endswith("/qos")
    grace_s = qos_grace_s if by_qos else seconds(partition.get("GraceTime", ""))
    parameters = f"{config.get('SlurmctldParameters', '')},{config.get('PreemptParameters', '')}"
    return Site(
        kill_wait_s=KILL_WAIT_S if kill_wait_s is None else kill_wait_s,
        grace_s=grace_s or 0.0,
        user_signal="send_user_signal" in parameters,
    )


def margin_s(kill_wait_s: float) -> float:
    """Return the part of KillWait that is kept [s]."""
    return min(MARGIN_S, kill_wait_s / 4)


def stop_s(site: Site) -> float:
    """Return how long workers have from a SIGTERM whose reason is not known yet [s]."""
    return site.kill_wait_s - margin_s(site.kill_wait_s)


class Why(NamedTuple):
    """Slurm's answer about a SIGTERM."""

    cause: Cause | None  # None: nothing that Slurm itself does to the job
    words: str
    left_s: float | None  # how long workers have from the signal on; None: as long as they like
    answer: Answer = Answer.CONFIRMS


def why(
    fields: Mapping[str, str],
    restarts: int,
    site: Site,
    *,
    told: Cause | None = None,
    since_s: float = 0.0,
    batch_host: str = "",
) -> Why:
    """Tell why Slurm has sent SIGTERM to a job.

    Args:
        fields: those of ``scontrol show job``, asked right after the signal.
        restarts: the restart count that this start of the job was given.
        site: the times of the site.
        told: why Slurm has put the job back into the queue, if that is known.
        since_s: how long before this SIGTERM the first one came [s]; a grace begins with one.
        batch_host: the node with the batch script, as far as it is known.
    """
    job = job_facts(fields)
    stands = standing(job, restarts)
    if stands is Standing.RUNNING and job.warned:
        grace_s = between_s(fields.get("PreemptTime", ""), fields.get("EndTime", ""))
        until = fields.get("EndTime", "").partition("T")[2]
        left_s = stop_s(site) + (site.grace_s if grace_s is None else grace_s)
        return Why(Cause.PREEMPTION, f"preempted, with grace until {until}", left_s)
    if stands is Standing.RUNNING:
        return Why(None, RUNS_ON, None, Answer.DENIES)
    known = Cause.PREEMPTION, f"the job ends (Slurm's reason: {job.reason})"
    cause, words = _ENDINGS.get(stands, known)
    if stands is Standing.REQUEUED and told in _REQUEUED:
        return Why(told, _REQUEUED[told], stop_s(site))
    if stands is Standing.SCRIPT_DIED and batch_host and _has_lost(job, batch_host):
        words = f"its batch host {batch_host} was taken from it"
        return Why(Cause.NODE_LOSS, words, stop_s(site), Answer.NO_SCRIPT)
    if stands is Standing.PREEMPTED and site.grace_s > 0:
        # a job that is cancelled in the second in which its grace begins looks the same
        is_over = job.word == "PREEMPTED" or since_s >= site.grace_s
        cause, words = _GRACE_OVER if is_over else _ENDINGS[Standing.CANCELLED]
    answer = Answer.REQUEUES if stands is Standing.REQUEUED else Answer.CONFIRMS
    return Why(cause, words, stop_s(site), answer)


def _has_lost(job: JobFacts, node: str) -> bool:
    """Tell whether Slurm has taken a node from a job; the list of one that goes on lacks such a node."""
    return bool(job.node_list) and node not in parse.expand(job.node_list)


def p99(samples: Iterable[float]) -> float | None:
    """Return the time that 99 of 100 saves do not exceed [s]; None without samples."""
    ordered = sorted(samples)
    return ordered[-(-99 * len(ordered) // 100) - 1] if ordered else None


def needed_s(saves: Iterable[float], drains: Iterable[float] = ()) -> float | None:
    """Return how long a drain of this run is going to take [s]; None if nothing has been measured.

    Args:
        saves: how long saves have taken [s].
        drains: how long drains have taken, from the request to the last worker's end [s].
    """
    save_s, drain_s = p99(saves), p99(drains)
    known = [SPARE * save_s + CALM_S] if save_s is not None else []
    known += [SPARE * drain_s] if drain_s is not None else []
    return max(known, default=None)


def warning_lead_s(
    saves: Iterable[float], drains: Iterable[float], default_s: float, limit_s: float
) -> float:
    """Return how long the next start is to have between the warning and the limit, in whole seconds [s].

    It is never less than the default, so that one short save does not make the next one impossible; the time
    beyond the default is at most a quarter of the time limit.

    Args:
        saves: how long saves have taken [s].
        drains: how long drains have taken [s].
        default_s: the time without measurements.
        limit_s: the time limit [s].
    """
    needed = needed_s(saves, drains)
    return default_s if needed is None else max(default_s, float(math.ceil(min(needed, limit_s / _SHARE))))


def early_warning(
    limit_s: float, left_s: float, warning_s: float, needed: float | None
) -> EarlyNotice | None:
    """Tell whether a warning before the time limit has come too early; None: it is heeded.

    How long before the limit Slurm warns is fixed when a job is queued. Where the limit is lowered to that
    or less, each start is warned as it begins, and most of it would be spent in the queue.

    Args:
        limit_s: how long this start may run in all [s].
        left_s: how much of that is left [s].
        warning_s: how long workers may take after a warning.
        needed: from `needed_s`.
    """
    before_s = begin_before_s(warning_s, needed, limit_s)
    is_slurms = left_s <= warning_s + 2 * WARNING_JITTER_S + _DELAY_S
    is_enough = needed is None or needed <= before_s
    return EarlyNotice(left_s, before_s) if is_slurms and is_enough and left_s > limit_s / 2 else None


def begin_before_s(warning_s: float, needed: float | None, left_s: float) -> float:
    """Return how long before the limit a drain begins though no signal has come [s].

    Args:
        warning_s: how long workers may take after a warning.
        needed: from `needed_s`.
        left_s: how much was left when this was asked first; a short job is not all drain.
    """
    wanted_s = warning_s if needed is None else max(warning_s, needed)
    return min(wanted_s, left_s / _SHARE)
