"""One node leaves by itself while the others go on: in array mode, where each node is a job of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpc_elastic.ids import ExitCode
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.drain.drain import Signalled
from hpc_elastic.node.outcome import Outcome, outcome_of
from hpc_elastic.record.journal import Asked, Cause

_WHY = {
    Cause.PREEMPTION: "Slurm wants this node back",
    Cause.TIME_LIMIT: "the time limit of this task is near",
    Cause.CANCEL: "this task was cancelled",
    Cause.REQUEUE: "this task was requeued",
    Cause.NODE_LOSS: "Slurm has set this node down",
    Cause.LAUNCH_FAILURE: "Slurm ends this task",
}

Insist = Callable[[Callable[[], object]], None]


class NodeLeaves(NamedTuple):
    """Why a node leaves."""

    cause: Cause
    detail: str  # for people: what asks, if it is no signal
    asked: Asked


class OwnLeave:
    """Writes that this node leaves, and tells how its agent is to exit.

    Args:
        run: this agent's hold on the shared state.
        signalled: what signals have asked of this agent.
        insist: writes something before leaving, again and again while the run directory refuses.
    """

    def __init__(self, run: SharedRun, signalled: Signalled, insist: Insist) -> None:
        self._run = run
        self._signalled = signalled
        self._insist = insist

    def for_signal(self) -> Outcome:
        """Leave for what this agent was signalled; its workers are gone."""
        from hpc_elastic.record.why_left import asked_by, words_of  # noqa: PLC0415 - not on the way to a start

        self._signalled.hear_why()
        wish, answer = self._signalled.wish, self._signalled.answer
        cause, asked = wish.cause or Cause.PREEMPTION, wish.asked
        if answer is not None:
            cause, asked = answer.cause, asked._replace(answer=answer.answer, said=answer.detail)
        asker = asked_by(cause, wish.words, asked).text
        told = f"{_WHY.get(cause, cause.value)} ({words_of(wish.words, asked)})"
        return self._leave(NodeLeaves(cause, wish.words, asked), f"told by {asker}" if asker else told)

    def dismissed(self, why: str) -> Outcome:
        """Leave because this node is not needed."""
        return self._leave(NodeLeaves(Cause.MEMBERSHIP, why, Asked()), why)

    def _leave(self, leaves: NodeLeaves, why: str) -> Outcome:
        self._insist(lambda: self._run.report_left(*leaves))
        state = self._run.state
        if state.ending is not None or state.drained is not None:
            return outcome_of(state, {}, {})
        others = "no other node is left" if state.deserted else "the others go on without it"
        return Outcome(ExitCode.REQUEUE, f"{why}; {others}")
