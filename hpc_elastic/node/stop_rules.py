"""How the workers of a node are asked to stop, how long they have, and how they are ended. Pure.

The state of the run, the requests to this agent and the time are arguments. `hpc_elastic.node.drain` and
`hpc_elastic.node.node_workers` carry out the results.
"""

from __future__ import annotations

import math

from hpc_elastic.meet.rules import node_of
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Asked, Cause, Decision, DrainExplained, DrainRequested, Epoch
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.of_commands import RunSettings
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings

NO_STEP = -1  # the agreed step of workers that do not ask whether to stop
RESCUE_S = 10.0  # for workers to keep their state in the node's memory, when others have failed
KILL_AFTER_S = 5.0  # between the end of a drain's time and SIGKILL
ASK_AFTER_S = 2.0  # for the node that asks Slurm first
_TURN_S = 0.5  # between the turns of the other nodes
_OF_USERS = (Cause.STOP, Cause.MEMBERSHIP)  # causes that come from no signal
_MEANS = "preemption, scancel, the time limit or a failed node"


class Unasked(NamedTuple):
    """The treatment of workers that never ask whether to stop, when all are to save and leave."""

    runs_on: bool = False  # until their time is up; otherwise they get SIGTERM at once
    number: int | None = None  # the signal that they get at once if they run on


class DrainTimes(NamedTuple):
    """The time of the workers to save and stop [s], by cause."""

    # SIGTERM: Slurm kills KillWait (30 s by default) later; or Ctrl-C
    stop: float = agents(JobSettings.stop_timeout)
    # warned before the time limit, or asked by `stop` or a joining node
    warning: float = agents(RunSettings.warn_timeout)
    is_stop_given: bool = False  # by a flag: then it holds over the times of Slurm
    # the time of critical sections when workers are ended for another reason
    critical: float = agents(JobSettings.critical_timeout)
    unasked: Unasked = Unasked()
    rescues: bool = False  # workers that have not left near the end keep their state in the node's memory

    def of(self, cause: Cause) -> float:
        """Return the time for a cause [s]."""
        return self.stop if cause in (Cause.PREEMPTION, Cause.INTERRUPT) else self.warning


class StopRequest(NamedTuple):
    """The first signal says why the agent leaves; later ones make it quicker; Slurm may grant more."""

    cause: Cause | None = None
    detail: str = ""  # the source of the request, for people: the name of a signal, or other words
    deadline: float | None = None  # when workers that still run are ended, monotonic [s]
    at_once: bool = False  # a second Ctrl-C: do not wait for the workers
    is_known: bool = False  # whether the deadline comes from Slurm; otherwise from this agent's flags
    is_signal: bool = False  # `detail` is the name of a signal

    @property
    def asked(self) -> Asked:
        """The signal that asked, if one did."""
        return Asked(self.detail if self.is_signal else "")

    @property
    def words(self) -> str:
        """The source of the request, if it was no signal."""
        return "" if self.is_signal else self.detail


def heard(
    wish: StopRequest, cause: Cause, detail: str, limit: float, *, is_signal: bool = False
) -> StopRequest:
    """Return the request after another one.

    Args:
        wish: the request so far.
        cause: the meaning of the new one.
        detail: its name, for people.
        limit: the end of the workers' time for it, monotonic [s].
        is_signal: whether the new one is a signal.
    """
    if wish.deadline is None:
        return StopRequest(cause, detail, limit, is_signal=is_signal)
    again = wish.cause is Cause.INTERRUPT and cause is Cause.INTERRUPT
    return wish._replace(deadline=min(wish.deadline, limit), at_once=wish.at_once or again)


def granted(wish: StopRequest, limit: float) -> StopRequest:
    """Return the request with the time that Slurm grants for it.

    An answer of Slurm replaces an assumption, in both directions. An earlier answer is a limit: a further
    signal can only leave less time.

    Args:
        wish: the request.
        limit: the end of the workers' time, monotonic [s].
    """
    if wish.deadline is None:
        return wish
    return wish._replace(deadline=told(wish.deadline, limit, is_known=wish.is_known), is_known=True)


def told(before: float | None, limit: float, *, is_known: bool) -> float:
    """Return the time of the workers' end, after Slurm has named the time of its SIGKILL [s].

    Args:
        before: the time of their end so far, monotonic [s]; None: unknown.
        limit: the time from Slurm's answer, monotonic [s].
        is_known: whether `before` comes from Slurm; otherwise it is an assumption.
    """
    return min(before, limit) if is_known and before is not None else limit


def first_words(name: str, cause: Cause, left_s: float, *, below_slurm: bool) -> str:
    """Return the line about a first signal; it claims no more than is known.

    Args:
        name: the signal.
        cause: its assumed meaning.
        left_s: the workers' time [s].
        below_slurm: whether Slurm may have sent it.
    """
    time = f"workers have {left_s:g} s to save and leave"
    if cause is Cause.INTERRUPT:
        return f"{name} received: {time}; once more ends them now"
    if cause is Cause.PREEMPTION and below_slurm:
        return f"{name} received ({_MEANS}; Slurm is asked which): {time}"
    if cause is Cause.TIME_LIMIT and below_slurm:
        return f"{name} received (a warning, as a rule ahead of the time limit): {time}"
    return f"{name} received: {time}"


def turn_to_ask_s(state: RunState, me: str) -> float:
    """Return how long after a signal a node asks Slurm about it, unless another node has answered [s].

    Slurm signals all nodes of a job at once, and they must not all ask. The node that has requested the
    drain goes first; if it is not in the round, the first member does. The others follow in rank order:
    the nodes before them may be gone, or may have got no signal.

    Args:
        state: the run.
        me: this agent's node_id.
    """
    members = state.round.members if state.round is not None else ()
    asker = state.drain.node if state.drain is not None else ""
    first = next((one.node_id for one in members if one.node == asker), None)
    order = sorted((one.node_id for one in members), key=lambda node_id: node_id != first)
    if me in order[:1] or (me not in order and node_of(me) == asker):
        return 0.0
    place = order.index(me) if me in order else max(1, len(order))
    return ASK_AFTER_S + _TURN_S * (place - 1)


class DrainProgress(NamedTuple):
    """The drain of a round as far as a node has taken it over; times are monotonic [s]."""

    cause: Cause | None = None  # None: the journal has no drain yet
    explained: DrainExplained | None = None  # the newest answer of Slurm
    requested: float | None = None  # the end of the workers' time by the request to this agent
    agreed: float | None = None  # the same by the journal
    has_told: bool = False  # whether this node has published the first step at which it can stop
    has_signalled: bool = False  # whether workers that do not ask have got their signal

    @property
    def deadline(self) -> float | None:
        """The end of the workers' time; None: there is none yet."""
        return min((at for at in (self.requested, self.agreed) if at is not None), default=None)

    def is_over(self, now: float) -> bool:
        """Tell whether the workers have had their time."""
        return self.deadline is not None and now >= self.deadline


def follow(
    progress: DrainProgress,
    drain: DrainRequested,
    explained: DrainExplained | None,
    times: DrainTimes,
    now: float,
) -> DrainProgress:
    """Return the progress after a look at the journal.

    Slurm's answer replaces the time that was assumed for a signal. A time that Slurm or a user has given
    can only become less.
    """
    if progress.cause is None:
        left_s = times.of(drain.cause) if drain.left_s is None else drain.left_s
        progress = progress._replace(cause=drain.cause, agreed=now + left_s)
    if explained is None:
        return progress
    is_known = progress.explained is not None or drain.left_s is not None or drain.cause in _OF_USERS
    progress = progress._replace(explained=explained)
    if times.is_stop_given or explained.left_s is None:
        return progress
    return progress._replace(agreed=told(progress.agreed, now + explained.left_s, is_known=is_known))


def is_rescue_due(progress: DrainProgress, times: DrainTimes, began: float, now: float) -> bool:
    """Tell whether workers that have not left are to keep their state: a save may not end in time.

    Args:
        progress: of this node.
        times: of this node's workers.
        began: the beginning of the drain, monotonic [s].
        now: monotonic time [s].
    """
    deadline = progress.deadline
    if not times.rescues or deadline is None or progress.cause in _OF_USERS:
        return False
    return now >= max(deadline - RESCUE_S, (began + deadline) / 2)


class DrainStep(NamedTuple):
    """The next acts of a node in a drain."""

    tells: int | None = None  # the first step at which all ranks of this node can stop, to be published
    proposes: bool = False  # this node computes the common step from the published ones
    stop_after: int | None = None  # the agreed step, for the workers
    signals: bool = False  # workers that do not ask get their signal
    stop_now: bool = False  # no worker will stop by itself, or the time is over


def drain_step(
    progress: DrainProgress,
    state: RunState,
    times: DrainTimes,
    *,
    proposes: bool,
    bound: int | None,
    now: float,
) -> DrainStep:
    """Return the next acts of a node in a drain.

    Args:
        progress: of this node.
        state: the run, with a round and a drain.
        times: of this node's workers.
        proposes: whether this node is one of those that compute the common step.
        bound: the first step at which all ranks of this node can stop; None: not known yet, or published.
        now: monotonic time [s].
    """
    agreed = state.stop_step
    is_open = agreed is None and state.running is not None  # there is a step to agree on
    has_bound = progress.has_told or bound is not None
    never_asks = agreed == NO_STEP
    return DrainStep(
        tells=bound if is_open and not progress.has_told else None,
        proposes=is_open and has_bound and proposes,
        stop_after=agreed,
        signals=never_asks and not progress.has_signalled,
        stop_now=(never_asks and not times.unasked.runs_on) or progress.is_over(now),
    )


class StopOrder(NamedTuple):
    """How workers are ended: SIGTERM when no critical section puts it off, later SIGKILL; monotonic [s]."""

    kill_at: float
    hold_until: float = -math.inf  # critical sections are not waited for any longer
    rescue_until: float = -math.inf  # nor are workers that keep their state in the node's memory


class EndFacts(NamedTuple):
    """The reasons to end the workers of a round that is over."""

    state: RunState
    epoch: Epoch  # of this agent
    request: StopRequest
    is_stuck: bool  # a worker of this node waits in the kernel
    deadline: float | None  # of a drain of the round, monotonic [s]
    asked_at: float  # the first order to end them, monotonic [s]
    now: float

    @property
    def is_urgent(self) -> bool:
        """Whether no critical section is waited for: the user wants the end now, or others work already."""
        ending = self.state.ending
        is_cancelled = ending is not None and ending.decision is Decision.CANCELLED
        return is_cancelled or self.state.epoch > self.epoch or self.is_stuck or self.request.at_once


def end_of_round(facts: EndFacts, *, shutdown_s: float, critical_s: float) -> StopOrder:
    """Return how workers are ended whose round is over.

    Args:
        facts: the reasons.
        shutdown_s: from SIGTERM to SIGKILL.
        critical_s: the time of critical sections.
    """
    if facts.is_urgent:
        return StopOrder(facts.now + (KILL_AFTER_S if facts.is_stuck else shutdown_s))
    ended = facts.state.ended
    is_hang = ended is not None and ended.cause is Cause.HANG  # such workers have nothing to save
    deadline = math.inf if facts.deadline is None else facts.deadline
    return StopOrder(
        facts.now + (min(KILL_AFTER_S, shutdown_s) if is_hang else shutdown_s),
        min(facts.asked_at + critical_s, deadline),
        -math.inf if facts.state.ending is not None else min(facts.asked_at + RESCUE_S, deadline),
    )


def end_of_drain(deadline: float | None, told_s: float, now: float) -> StopOrder:
    """Return how workers are ended that a drain leaves no more time.

    Args:
        deadline: of the drain, monotonic [s]; None: it has none.
        told_s: the longest time from SIGTERM to SIGKILL at this site.
        now: monotonic time [s].
    """
    until = now if deadline is None else deadline
    return StopOrder(now + min(max(until - now, KILL_AFTER_S), told_s), until)


def end_sooner(request: StopRequest, now: float) -> StopOrder | None:
    """Return how workers are ended by the time that the request leaves; None: it leaves all."""
    deadline = now if request.at_once else request.deadline
    return None if deadline is None else StopOrder(deadline, deadline)


def end_for_request(request: StopRequest, told_s: float, now: float, *, is_over: bool) -> StopOrder | None:
    """Return how workers are ended for the request to this agent alone; None: they have time.

    Args:
        request: to this agent.
        told_s: the longest time from SIGTERM to SIGKILL at this site.
        now: monotonic time [s].
        is_over: whether the workers have had their time.
    """
    if request.at_once:
        return StopOrder(now)
    return StopOrder(now + min(KILL_AFTER_S, told_s)) if is_over else None


def barrier_is_over(since: float, barrier_s: float, deadline: float | None, now: float) -> bool:
    """Tell whether the exit barrier's time is over.

    In a drain it is not over before the workers of other nodes have had their time to save.

    Args:
        since: the end of this node's workers, monotonic [s].
        barrier_s: the time of the barrier.
        deadline: of the drain, monotonic [s]; None: no drain.
        now: monotonic time [s].
    """
    is_saving = deadline is not None and now < deadline + 2 * KILL_AFTER_S
    return now - since >= barrier_s and not is_saving
