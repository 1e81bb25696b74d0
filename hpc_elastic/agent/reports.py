"""What an agent writes into the journal about its round."""

from __future__ import annotations

from hpc_elastic.agent.local_group import LocalGroup
from hpc_elastic.agent.report import AgentLog
from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Decision
from hpc_elastic.rendezvous.shared_run import SharedRun


class Reports:
    """Writes what has happened on this node; each method takes the group it is about, if any.

    Args:
        run: this agent's hold on the shared state.
        log: for people.
        max_restarts: the restart budget, for the words of its end.
    """

    def __init__(self, run: SharedRun, log: AgentLog, max_restarts: int) -> None:
        self._run = run
        self._log = log
        self._max_restarts = max_restarts

    def crash(self, group: LocalGroup) -> None:
        """A worker of this node has failed."""
        failure = group.first_failure()
        if failure is not None:
            self._log.failed(failure)
            self._run.report_crash(group.formed.number, failure.to_json())

    def loss(self, group: LocalGroup) -> None:
        """Members of the round have vanished."""
        self._log.say(f"lost {', '.join(self._run.lost)}")
        self._run.report_lost(group.formed.number, self._run.lost)

    def paused(self, group: LocalGroup) -> None:
        """All workers have stopped, so that the membership can change."""
        self._run.report_paused(group.formed.number)

    def done(self, group: LocalGroup) -> None:
        """All workers of the run have succeeded."""
        self._run.report_done(group.formed.number, "all workers succeeded")

    def hand_back(self, _group: LocalGroup | None = None) -> None:
        """No workers are left in this start of the job; also why."""
        state = self._run.state
        if state.leave_cause is not None:
            self._run.report_drained(state.leave_cause, state.drain.detail if state.drain else "")

    def give_up(self, _group: LocalGroup) -> None:
        """The newest crash is one more than the restart budget covers."""
        from hpc_elastic.multiprocessing.errors import FailureRecord  # noqa: PLC0415 - rare

        ended = self._run.state.ended
        data = (ended.failure if ended else None) or {}
        used = f" and all {self._max_restarts} restarts are used" if self._max_restarts else ""
        self._run.end_run(
            Decision.FAILED,
            exit_code=FailureRecord.from_json(data).exit_status,
            reason=f"a worker failed{used}",
            failure=data,
        )

    def failed(self, reason: str) -> None:
        """The run cannot go on, for a reason that is no worker's failure."""
        self._run.end_run(Decision.FAILED, exit_code=ExitCode.FAILED, reason=reason)
