"""The cause of the end of a start of the job, for people, and the ending that its user has asked for. Pure.

Agents take a signal for a preemption before Slurm has answered: a drain cannot wait for that.
Records and budgets count it as one. Texts for people follow the facts beside the cause.
"""

from __future__ import annotations

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    NodeLeft,
    Requeued,
    RunEnded,
)
from hpc_elastic.record.state import RunState

USERS_WISH = (Cause.STOP, Cause.INTERRUPT)

RUNS_ON = "the job runs on: a user has sent the signal"
"""Slurm's answer where the signal is none of its own, for people."""
_UNNAMED = "a preemption, a node that is down, or scontrol requeue (Slurm does not tell which)"


class EarlyNotice(NamedTuple):
    """A warning before the time limit that has come too early."""

    left_s: float  # to the limit [s]
    before_s: float  # how long before the limit workers are to be asked [s]

    @property
    def text(self) -> str:
        """When workers are asked whose warning has come too early."""
        return (
            f"{self.left_s:.0f} s before the time limit, which is most of this start: workers are asked to "
            f"save {self.before_s:.0f} s before it"
        )


class Notice(NamedTuple):
    """Slurm's news for an agent."""

    cause: Cause  # why the workers are to stop
    detail: str  # the same for people
    until: float | None = None  # when workers are ended, monotonic [s]; None: by the agent's flags
    explains: bool = False  # it tells more about a drain under way, and asks for none
    early: EarlyNotice | None = None  # the warning that was asked about; nothing is asked for then
    answer: Answer = Answer.CONFIRMS  # its words about the signal, if it explains one


class Asker(NamedTuple):
    """The source of a request for an end; empty if the cause names it."""

    signal: str = ""  # its name
    is_sent: bool = False  # a user has sent the signal: Slurm does nothing to the job itself
    words: str = ""  # the other askers, or Slurm's words about the signal

    @property
    def text(self) -> str:
        """The same for people; empty where the cause names it."""
        return f"a {self.signal} that a user sent" if self.is_sent else self.words or self.signal

    @property
    def as_counted(self) -> str:
        """The same with the cause that it counts as, for the words of a budget."""
        return f"{self.text}, which counts as a preemption" if self.is_sent else self.text


def asked_text(entry: DrainRequested | NodeLeft | Drained) -> str:
    """Return the source of a request for an end, with Slurm's words; empty if nothing is recorded."""
    return words_of(entry.detail, entry.asked)


def words_of(detail: str, asked: Asked) -> str:
    """Return the source of a request for an end, with Slurm's words.

    Args:
        detail: the source of the request, if it was no signal.
        asked: the signal, and Slurm's words.
    """
    return ": ".join(filter(None, (asked.signal or detail, asked.said)))


def asked_by(cause: Cause, detail: str, asked: Asked, *, runs_on: bool = False) -> Asker:
    """Return the source of the request for the end.

    Args:
        cause: as recorded.
        detail: the source of the request, if it was no signal.
        asked: the signal, and Slurm's answer about it.
        runs_on: whether Slurm says since then that it does nothing to the job.
    """
    if cause is Cause.NODE_DRAIN and not asked.signal:
        return Asker(words=detail)
    if cause is not Cause.PREEMPTION or asked.answer is Answer.CONFIRMS:
        return Asker()
    if asked.answer is Answer.REQUEUES:
        return Asker(asked.signal, words=_UNNAMED)
    if not asked.signal:
        return Asker(words=detail)
    return Asker(asked.signal, runs_on or asked.answer is Answer.DENIES)


def who_asked(state: RunState, cause: Cause, *, runs_on: bool = False) -> Asker:
    """Return the source of the request for the end of the current start or round.

    Args:
        state: the run.
        cause: why it ends, as recorded.
        runs_on: whether Slurm says since then that it does nothing to the job.
    """
    for one in (state.drain, state.drained):
        if one is not None and one.cause is cause and asked_text(one):
            return asked_by(cause, one.detail, one.asked, runs_on=runs_on)
    return Asker()


def requeued_for(state: RunState, entry: Requeued) -> Asker:
    """Return the reason for which a job was returned to Slurm.

    The batch script has asked Slurm later than the agents: where it does not name a signal it knows better
    than the signal alone.

    Args:
        state: the run before that.
        entry: the record of the batch script.
    """
    if entry.signal and entry.cause is Cause.PREEMPTION:
        return Asker(entry.signal, is_sent=True)
    asker = who_asked(state, entry.cause)
    return asker if asker.is_sent or not asker.signal else Asker()


def drain_cause(state: RunState) -> Cause | None:
    """Return why this start is being left, None without a request."""
    if state.drained is not None:
        return state.drained.cause
    if state.drain is not None and state.drain.then is AfterDrain.LEAVE:
        return state.drain.cause
    return None


def stopped(state: RunState) -> RunEnded:
    """Return the ending of a run that is left on its user's wish.

    Args:
        state: the run; the step of the last save is included if it is known.
    """
    asked = state.drained or state.drain
    how = "interrupted" if drain_cause(state) is Cause.INTERRUPT else "on request"
    told = "" if asked is None else asked_text(asked)
    reason = f"{how} ({told})" if told else how
    step = state.drained.step if state.drained is not None else None
    reason += "" if step is None else f"; checkpoint of step {step}"
    return RunEnded(Decision.STOPPED, ExitCode.OK, reason, None)


def is_killed_stop(state: RunState, *, is_signalled: bool) -> bool:
    """Tell whether all workers have stopped on the user's wish, while Slurm ends the job.

    Then the batch script may be killed before it can write the ending down.

    Args:
        state: the run.
        is_signalled: whether Slurm ends the job of this node alone, which the journal does not tell.
    """
    drained = state.drained
    is_ended = is_signalled or state.explained is not None
    return is_ended and drained is not None and drained.cause in USERS_WISH
