"""The news of Slurm for an agent beside signals, in a thread of its own: nothing ever waits for it.

The first node of a round asks once how long the job may run, and again shortly before the end, which
may have been moved; it looks at once when a warning has shown that the end was moved. Where Slurm does
not answer, its last answer holds. A drain begins by itself before the end though no signal has
come. After SIGTERM a node asks why it came. Nothing here is a verdict on whether a node is alive.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError, SlurmError, SlurmNotFoundError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import save_times
from hpc_elastic.record.journal import Answer, Cause
from hpc_elastic.record.why_left import Notice
from hpc_elastic.slurm.client import deadlines
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.client.grace_times import read_site, refresh_site
from hpc_elastic.slurm.client.job_standing import Standing, job_facts, standing
from hpc_elastic.slurm.end.requeue import LastResort
from hpc_elastic.slurm.run_jobs.run_files import drain_times, submitted_limit_s

ASK_TIMEOUT_S = 10.0  # a busy controller is asked again later
WHY_PATIENCE_S = 5.0  # the job's state follows its signals, as a rule within a second
_WHY_PAUSE_S = 0.3
_SETTLE_S = 1.0  # after the start of the workers, which comes first
_AGAIN_S = 60.0  # after a question without an answer
_NEAR_S = 60.0  # looked at halfway as long as the drain is farther away
_MOST_S = 900.0  # between looks: an administrator may have lowered the limit, and Slurm does not always warn
NODE_LOOK_S = 60.0


class _Reason(NamedTuple):
    """The answer about a signal, and whether asking again can tell no more."""

    told: Notice | None  # None: Slurm has not answered, and the times of the site are not known
    is_sure: bool
    is_answered: bool = True


class JobPlace(NamedTuple):
    """The job, as far as it has to be known to ask about it."""

    paths: RunPaths
    job_ref: str
    restarts: int
    nodes: tuple[str, ...]
    end_time_s: float | None  # [s since the epoch]; None: ask


def place_of(paths: RunPaths, slurm: SlurmEnv) -> JobPlace:
    """Return the job of an agent, by Slurm's facts for its process."""
    return JobPlace(paths, slurm.job_ref, slurm.restart_count, slurm.node_names, slurm.end_time_s)


class Loop(Protocol):
    """The loop of the agent that gets the news."""

    def hear(self, notice: Notice) -> None:
        """Have it act on a notice; called from a thread."""
        ...

    def wake(self) -> None:
        """Have it look; called from a thread."""
        ...

    def held_up_s(self) -> float:
        """Return for how long it has been doing one thing [s]; called from a thread."""
        ...


class WatchOptions(NamedTuple):
    """The options of the watch."""

    warning_s: float = 90.0  # how long workers have after a warning
    node_drain: bool = False  # ask whether nodes of the job are being drained
    hands_back: bool = (
        True  # requeue a job whose batch script was killed; one of the user's own may not want it
    )


class JobWatch:
    """Listens to Slurm for one agent."""

    is_below_slurm = True

    def __init__(
        self, place: JobPlace, options: WatchOptions, slurm: Slurm, clock: Clock, loop: Loop
    ) -> None:
        self._place = place
        self._options = options
        self._slurm = slurm
        self._clock = clock
        self._loop = loop
        self._something = threading.Condition()
        self._thread: threading.Thread | None = None
        self._last_resort: LastResort | None = None
        self._is_first = False
        self._is_closed = False
        self._questions: deque[tuple[float, bool]] = deque()  # when a signal came [s], was it a warning
        self._open_questions = 0  # with that which is under way
        self._limit_at = math.inf  # when to look at the limit next, monotonic [s]
        self._first_at: float | None = None  # when the limit was looked at first, monotonic [s]
        self._began_at = clock.monotonic()  # the job has begun a little earlier
        self._ends_at: float | None = None  # when the job ends, by the newest notice, monotonic [s]
        self._first_signal_at: float | None = None  # of those that were no warning, monotonic [s]
        self._draining: set[str] = set()

    def begin(self, *, is_first: bool) -> None:
        """Take note that a round with this node has formed."""
        with self._something:
            self._is_first = is_first
            self._something.notify()  # it may wait for questions only, since another node was the first
        if is_first:
            self._start()

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Find out why a signal has come; a notice will tell.

        Args:
            signalled_at: when, by the monotonic clock [s].
            is_warning: whether it was that of a warning, which sites can have preemption send; unless
                they do there is nothing to tell.
        """
        with self._something:
            if not is_warning and self._first_signal_at is None:
                self._first_signal_at = signalled_at
            self._questions.append((signalled_at, is_warning))
            self._open_questions += 1
            self._something.notify()
        self._start()

    def hear_limit(self, left_s: float) -> None:
        """Take note that the limit was moved, as another node has found out: the end is looked at now.

        Args:
            left_s: how long the job may still run, at most [s].
        """
        with self._something:
            self._limit_at = self._clock.monotonic()
            self._ends_at = self._limit_at + left_s
            self._something.notify()

    @property
    def is_asking(self) -> bool:
        """Whether a question about a signal is under way."""
        return self._open_questions > 0

    def close(self) -> None:
        """End; a question that is under way is left to itself."""
        with self._something:
            self._is_closed = True
            self._something.notify()
        if self._last_resort is not None:
            self._last_resort.close()

    def _start(self) -> None:
        if self._thread is None:
            job = self._place.job_ref, self._place.restarts
            if self._options.hands_back:
                self._last_resort = LastResort(
                    self._slurm, job, self._clock, self._loop.held_up_s, self._tell_requeued
                )
            self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)
            self._thread.start()

    # in threads

    def _tell_requeued(self) -> None:
        self._tell(Notice(Cause.LAUNCH_FAILURE, "its batch script was killed; it is requeued", explains=True))

    def _run(self) -> None:
        now = self._clock.monotonic()
        self._limit_at = now + _SETTLE_S
        nodes_at = now + NODE_LOOK_S if self._options.node_drain else math.inf
        while True:
            if not self._wait(nodes_at):
                return
            while self._questions:
                self._tell_why(*self._questions.popleft())
                self._close_question()
            now = self._clock.monotonic()
            if self._is_first and now >= self._limit_at:
                self._limit_at = math.inf  # a new limit may come while Slurm is asked
                look_at = self._look_at_limit()
                self._limit_at = min(self._limit_at, look_at)
            if self._is_first and now >= nodes_at:
                self._look_for_draining()
                nodes_at = self._clock.monotonic() + NODE_LOOK_S

    def _wait(self, nodes_at: float) -> bool:
        """Wait for a question or, as the first node, for a look; False when nothing will come any more."""
        with self._something:
            while not self._is_closed and not self._questions:
                look_at = min(self._limit_at, nodes_at)
                left_s = look_at - self._clock.monotonic() if self._is_first else math.inf
                if left_s <= 0:
                    break
                self._something.wait(None if left_s == math.inf else min(left_s, threading.TIMEOUT_MAX))
            return not self._is_closed

    def _tell(self, told: Notice) -> None:
        with self._something:  # so that no loop is woken that is gone
            if not self._is_closed:
                self._loop.hear(told)

    def _close_question(self) -> None:
        with self._something:
            self._open_questions -= 1
            if not self._is_closed:
                self._loop.wake()  # a drain that waits for an answer learns that there is none

    def _tell_why(self, signalled_at: float, is_warning: bool) -> None:  # noqa: FBT001 - a question's parts
        """Ask until the job's state shows the reason of the signal."""
        give_up_at = self._clock.monotonic() + WHY_PATIENCE_S
        while not self._is_closed:
            told = self._reason(signalled_at, is_warning=is_warning)
            is_late = self._clock.monotonic() >= give_up_at
            if told is None or told.is_sure or is_late:
                if told is not None and told.told is not None:
                    self._tell(told.told)
                if told is not None and not told.is_answered and self._last_resort is not None:
                    self._last_resort.go_on_asking()
                return
            self._clock.sleep(_WHY_PAUSE_S)

    def _reason(self, signalled_at: float, *, is_warning: bool) -> _Reason | None:
        """Return Slurm's answer about a signal now; None: there is none."""
        try:
            fields = self._slurm.show_job(self._place.job_ref)
        except SlurmNotFoundError:
            return None
        except SlurmError:  # in a wave of preemptions the controller is busy
            return None if is_warning else self._unanswered(signalled_at)
        if fields is None:
            return None
        if standing(job_facts(fields), self._place.restarts) is Standing.SCRIPT_DIED and self._last_resort:
            self._last_resort.at_once()
        site = refresh_site(self._place.paths, self._slurm, fields)
        first_at = signalled_at if self._first_signal_at is None else self._first_signal_at
        told_by_log = self._told_by_log(fields)
        found = deadlines.why(
            fields,
            self._place.restarts,
            site,
            told=told_by_log,
            since_s=signalled_at - first_at,
            batch_host=next(iter(self._place.nodes), ""),
        )
        if is_warning and found.cause is None:
            return self._weighed(fields, signalled_at, site)
        until = None if found.left_s is None else signalled_at + found.left_s
        cause = found.cause or Cause.PREEMPTION
        told = Notice(cause, found.words, until, explains=True, answer=found.answer)
        return _Reason(told, is_sure=found.cause is not None)

    def _weighed(self, fields: Mapping[str, str], signalled_at: float, site: Site) -> _Reason | None:
        """Return the rest of the time limit, if that is not the one that a warning before it promises.

        A limit that was lowered can be so near that the warning has come too early or too late.
        """
        limit_s, warning_s = job_facts(fields).granted_s, self._options.warning_s
        try:
            left_s = self._slurm.time_left_s(self._place.job_ref)
        except SlurmError:
            return None
        if limit_s is None or left_s is None:
            return None
        early = deadlines.early_warning(limit_s, left_s, warning_s, self._needed_s())
        if early is not None:
            self.hear_limit(left_s)
            return _Reason(Notice(Cause.TIME_LIMIT, early.text, early=early), is_sure=True)
        until = self._clock.monotonic() + left_s + deadlines.stop_s(site)
        if until >= signalled_at + warning_s:
            return None
        return _Reason(Notice(Cause.TIME_LIMIT, _limit_text(left_s), until, explains=True), is_sure=True)

    def _told_by_log(self, fields: Mapping[str, str]) -> Cause | None:  # noqa: ARG002 - a task needs them
        """Return why Slurm has ended the job, if it has written that down; `finish` looks it up for a job.

        Args:
            fields: of ``scontrol show job``.
        """
        return None

    def _unanswered(self, signalled_at: float) -> _Reason:
        """Return the time that follows from the site's settings alone, where the run directory keeps them."""
        site = read_site(self._place.paths)
        if site is None:
            return _Reason(None, is_sure=False, is_answered=False)
        words = f"no answer; SIGKILL may follow {site.kill_wait_s:g} s after SIGTERM"
        until = signalled_at + deadlines.stop_s(site)
        told = Notice(Cause.PREEMPTION, words, until, explains=True, answer=Answer.SILENT)
        return _Reason(told, is_sure=False, is_answered=False)

    def _left_s(self) -> float | None:
        """Return how long the job may run [s], infinite without a limit; None: it was never answered."""
        known_s = self._known_left_s()
        is_new = self._first_at is None and known_s is not None
        if known_s is not None and (is_new or self._is_due(known_s)):
            return known_s
        try:
            left_s = self._slurm.time_left_s(self._place.job_ref)
        except SlurmNotFoundError:
            return math.inf if known_s is None else known_s
        except SlurmError:  # the job ends on time, also where slurmctld is away
            known_s = self._known_left_s()
            return self._submitted_left_s() if known_s is None else known_s
        return math.inf if left_s is None else left_s

    def _known_left_s(self) -> float | None:
        """Return how long the job may run by the answers so far [s]; None: there are none."""
        if self._ends_at is not None:
            return self._ends_at - self._clock.monotonic()
        end_s = self._place.end_time_s
        return None if end_s is None else end_s - self._clock.wall()

    def _submitted_left_s(self) -> float | None:
        """Return how long the job may run by the limit of its submission [s]; None: the run does not know it.

        The job is taken to have begun with this agent. That was some seconds earlier, which is little
        beside a warning.
        """
        limit_s = submitted_limit_s(self._place.paths)
        return None if limit_s is None else self._began_at + limit_s - self._clock.monotonic()

    def _early_s(self, left_s: float) -> float:
        """Return how long it is until a drain for the time limit begins [s]."""
        now = self._clock.monotonic()
        first_s = left_s if self._first_at is None else left_s + now - self._first_at
        return left_s - deadlines.begin_before_s(self._options.warning_s, self._needed_s(), first_s)

    def _is_due(self, left_s: float) -> bool:
        """Tell whether a drain for the time limit has to begin; Slurm is not asked, as it may be away."""
        return self._first_at is not None and self._early_s(left_s) <= 0

    def _look_at_limit(self) -> float:
        """Begin the drain if it is time; return when to look again [s]."""
        if self._first_at is None and self._tell_grace():
            return math.inf
        left_s, now = self._left_s(), self._clock.monotonic()
        if left_s is None:
            return now + _AGAIN_S
        if left_s == math.inf:
            return math.inf
        if self._first_at is None:
            self._first_at = now
        self._ends_at = now + left_s
        early_s = self._early_s(left_s)
        if early_s > 0:
            return now + _pause_s(early_s)
        until = now + max(left_s, 0.0) + deadlines.stop_s(self._site())
        self._tell(Notice(Cause.TIME_LIMIT, _limit_text(left_s), until))
        return math.inf

    def _tell_grace(self) -> bool:
        """Tell that the job is being preempted, if it is; its SIGTERM may have come before this agent."""
        try:
            fields = self._slurm.show_job(self._place.job_ref)
            if fields is None or not job_facts(fields).warned:
                return False
            left_s = self._slurm.time_left_s(self._place.job_ref)
        except SlurmError:
            return False
        site = self._site()
        found = deadlines.why(fields, self._place.restarts, site)
        if found.cause is not Cause.PREEMPTION:
            return False
        until = (
            None if left_s is None else self._clock.monotonic() + max(left_s, 0.0) + deadlines.stop_s(site)
        )
        self._tell(Notice(Cause.PREEMPTION, found.words, until))
        return True

    def _site(self) -> Site:
        """Return the times that the run directory keeps, else those of Slurm, which may take it some time."""
        kept = read_site(self._place.paths)
        if kept is not None:
            return kept
        try:
            fields = self._slurm.show_job(self._place.job_ref) or {}
        except SlurmError:
            return Site()
        return refresh_site(self._place.paths, self._slurm, fields)

    def _needed_s(self) -> float | None:
        """Return how long a drain of this run takes, by measurements [s]."""
        try:
            saves = save_times(self._place.paths)
            drains = drain_times(self._place.paths)
        except (OSError, HpcElasticError):
            return None
        return deadlines.needed_s(saves, drains)

    def _look_for_draining(self) -> None:
        try:
            found = self._slurm.draining_nodes(self._place.nodes)
        except SlurmError:
            return
        for node, reason in found.items():
            if node not in self._draining:
                self._draining.add(node)
                self._tell(Notice(Cause.NODE_DRAIN, f"the drain of {node} ({reason or 'no reason given'})"))


def _pause_s(early_s: float) -> float:
    """Return how long until the next look at the limit [s].

    Args:
        early_s: until the drain begins [s].
    """
    if early_s > _NEAR_S:  # the end may be moved till then, and saves may turn out to be slow
        return min(early_s / 2, _MOST_S)
    # Slurm has so long to answer for the last time
    return early_s - ASK_TIMEOUT_S if early_s > ASK_TIMEOUT_S else early_s


def _limit_text(left_s: float) -> str:
    return f"the time limit, {left_s:.0f} s from now"


def watch_job(paths: RunPaths, slurm: SlurmEnv, options: WatchOptions, loop: Loop) -> JobWatch:
    """Return the source of Slurm's news for an agent."""
    asked = Slurm(query_timeout_s=ASK_TIMEOUT_S)
    return JobWatch(place_of(paths, slurm), options, asked, SystemClock(), loop)
