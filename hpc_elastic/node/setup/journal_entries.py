"""The agent's entries of the journal about its round."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.errors import StoreError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import RestartBudgets, spent
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.record.journal import Cause, Decision, Verdict
from hpc_elastic.record.why_left import is_killed_stop, stopped

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord
    from hpc_elastic.node.outcome import Outcome


class Reports:
    """Writes the events of this node; each method takes the group it is about, if any.

    Args:
        run: this agent's hold on the shared state.
        log: for people.
        budgets: the limits of the causes that end rounds, for the words of the end.
        explain: returns a failure with the agent's knowledge of it.
        ran_s: returns since when the workers run [s].
    """

    def __init__(
        self,
        run: SharedRun,
        log: AgentLog,
        budgets: RestartBudgets,
        explain: Callable[[FailureRecord], FailureRecord] = lambda failure: failure,
        ran_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._run = run
        self._log = log
        self._budgets = budgets
        self._explain = explain
        self._ran_s = ran_s
        self._told: LocalGroup | None = None  # whose failure has been shown

    def first_failure(self, group: LocalGroup) -> FailureRecord | None:
        """Return the earliest failure on this node."""
        failure = group.first_failure()
        return None if failure is None else self._explain(failure)

    def crash(self, group: LocalGroup) -> None:
        """A worker of this node has failed."""
        failure = self.first_failure(group)
        if failure is not None:
            self.show_failure(group)
            data = {**failure.to_json(), "ran_s": round(self._ran_s(), 1)}
            self._run.report_crash(group.formed.number, data)

    def failed_too(self, group: LocalGroup) -> None:
        """The round has ended for a failure elsewhere; tell if this node's workers failed in the same way."""
        ended, failure = self._run.state.ended, self.first_failure(group)
        if ended is None or failure is None or ended.cause is not Cause.CRASH or len(ended.nodes) != 1:
            return
        if ended.number == group.formed.number and ended.nodes != (self._run.node,):
            self._run.report_failed_too(ended.number, failure.to_json())

    def failed_leaving(self, group: LocalGroup) -> None:
        """Tell if a worker has failed by itself while all were to save and leave."""
        state, failure = self._run.state, self.first_failure(group)
        if failure is not None and state.leave_cause is not None and state.ending is None:
            self._run.report_failed_leaving(group.formed.number, failure.to_json())

    def show_failure(self, group: LocalGroup) -> None:
        """Show a worker's failure, once; recording it may have to be tried again."""
        failure = self.first_failure(group)
        if failure is not None and self._told is not group:
            self._log.failed(failure)
            self._told = group

    def untold_failure(self, group: LocalGroup | None) -> FailureRecord | None:
        """Return the failure in a round that runs on for all that the others know."""
        running = self._run.state.running
        if group is None or running is None or running.number != group.formed.number:
            return None
        return self.first_failure(group)

    def loss(self, group: LocalGroup) -> None:
        """Members of the round have vanished."""
        self._log.say(f"lost {', '.join(self._run.lost)}")
        self._run.report_lost(group.formed.number, self._run.lost)

    def word(self, group: LocalGroup) -> None:
        """A worker of this node has said that the node is bad, or that it gives up."""
        from hpc_elastic.multiprocessing.errors import FailureRecord  # noqa: PLC0415 - rare

        word = group.word
        if word is not None:
            self._log.say(word.text)
            said = FailureRecord(word.rank, node=word.node, message=word.text)
            failure = self.first_failure(group) or said
            if word.verdict is Verdict.BAD_NODE:
                self._run.report_lost(group.formed.number, (word.node,), word)
            else:
                self._run.report_crash(group.formed.number, failure.to_json(), word)

    def paused(self, group: LocalGroup) -> None:
        """All workers have stopped, so that the membership can change."""
        self._run.report_paused(group.formed.number)

    def done(self, group: LocalGroup) -> None:
        """All workers of the run have succeeded."""
        self._run.report_done(group.formed.number, "all workers succeeded")

    def hand_back(self, *, is_signalled: bool) -> None:
        """No workers are left in this start of the job; also why.

        Args:
            is_signalled: whether Slurm has signalled this node, whose job is its own.
        """
        state = self._run.state
        if state.leave_cause is not None:
            self._run.report_asked_drained(state.leave_cause, state.drain)
            if is_killed_stop(self._run.state, is_signalled=is_signalled):
                self._run.commit(stopped(self._run.state)._replace(epoch=self._run.membership.epoch))

    def too_few(self, reason: str) -> None:
        """Too few nodes are left or came; a failure that no budget covers takes precedence as the reason."""
        if spent(self._run.state, self._budgets) is not None:
            self._end_for_failure(also=reason)
        else:
            self.failed(reason)

    def give_up(self, group: LocalGroup) -> None:
        """The newest failure is one more than its budget covers, or a worker has given the run up."""
        word = group.word
        self._end_for_failure(said=word.text if word is not None else "")

    def _end_for_failure(self, *, also: str = "", said: str = "") -> None:
        from hpc_elastic.multiprocessing.errors import FailureRecord  # noqa: PLC0415 - rare

        ended = self._run.state.ended
        data = (ended.failure if ended else None) or {}
        why = spent(self._run.state, self._budgets) or said or "a worker failed"
        self._run.end_run(
            Decision.FAILED,
            exit_code=FailureRecord.from_json(data).exit_status,
            reason=why + (f"; then {also}" if also else ""),
            failure=data,
        )

    def wedged(self, outcome: Outcome) -> None:
        """The only node of the run has workers that no signal ends."""
        self._run.end_run(
            Decision.FAILED, exit_code=outcome.exit_code, reason=outcome.reason, failure=outcome.failure
        )

    def failed(self, reason: str) -> None:
        """The run cannot go on, for a reason that is no worker's failure."""
        self._run.end_run(Decision.FAILED, exit_code=ExitCode.FAILED, reason=reason)


def insist(write: Callable[[], object], parts: AgentParts, limit: float) -> None:
    """Write something; give up when the run directory refuses for too long, or at a signal.

    Args:
        write: writes it, or raises StoreError.
        parts: clock, loop and log of the agent.
        limit: until when it is tried again, monotonic [s].

    Raises:
        TakenOverError: another directory is in the place of the run's.
    """
    pause_s = parts.rendezvous.run.settings.heartbeat_interval
    while True:
        try:
            write()
        except StoreError as error:
            parts.rendezvous.run.check_place()
            if parts.clock.monotonic() >= limit or parts.loop.signals:
                parts.log.say(f"left without a word: {error}")
                return
            parts.loop.wait(pause_s)
        else:
            return
