"""One start of a task of an array, and its agent: the real rendezvous, and the real questions to Slurm.

Each task is a job of one node with a batch script of its own. Its agent is that of `tests.simulation.agent`,
which asks Slurm about each signal and hands its task back where the batch script was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import StoreError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.signals import ANSWER_S
from hpc_elastic.record.array_task import TaskStart, epoch_now
from hpc_elastic.record.journal import AfterDrain, Asked, Cause, Epoch, RoundFormed
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import Notice
from hpc_elastic.slurm.client.job_standing import Standing
from hpc_elastic.slurm.watch.job_watch import JobPlace, JobWatch, WatchOptions
from tests.simulation.agent import Shares, SimulatedAgent, Start
from tests.simulation.endings.starts import JobStart
from tests.simulation.endings.threads import ProcessClock
from tests.simulation.lock import SimulatedLock
from tests.simulation.world import Node

if TYPE_CHECKING:
    from tests.simulation.endings.array import ArrayEndings

SIGTERM = 15
_POLL_S = 0.2
_CODES = {
    "drained": ExitCode.REQUEUE,
    "left": ExitCode.REQUEUE,
    "left untold": ExitCode.REQUEUE,
    "no store": ExitCode.REQUEUE,  # as it was asked to leave
    "dismissed": ExitCode.REQUEUE,
    "fenced": ExitCode.FENCED,
}


class StartOfTask(JobStart):
    """The processes of one start of a task."""

    noun = "task"
    run: ArrayEndings
    is_over_budget = False  # as it begins
    agent: TaskAgent | None = None

    @property
    def agents_name(self) -> str:
        """Name of the node of its agent, which is that of a member."""
        return self.job.nodes[0]

    def task(self, relaunch: int) -> TaskStart:
        """Return the start of a task that it is."""
        return TaskStart(self.job.ref, self.restart, relaunch)

    def signal(self) -> None:
        """Send SIGTERM to the script and the agent."""
        super().signal()
        if self.agents is not None and not self.agents.is_over and self._listens:
            self.agents.signals.append(SIGTERM)

    def run_agents(self, node: Node, relaunch: int) -> int:
        """Run its agent; return the exit code of srun."""
        mount = self.mount(node)
        task = self.task(relaunch)
        state = _patiently(node, RunLog(mount, node, node.name))
        self.run.numbers += 1
        shares = Shares(mount, SimulatedLock(self.run.lock, node))
        start = Start(epoch_now(state, 0, task), (), self.run.settings, self.run.work_s, task)
        self.agent = TaskAgent(self, node, shares, start)
        self.agent.run()
        self.has_gone = self.agent.outcome == "no store"
        state = self.agent.shared.state
        if self.script.is_killed and self._lost_its_script(node, self.agent):
            self.finish_in_its_place(node, Epoch(*self.key, relaunch))
        if state.ending is not None:
            return state.ending.exit_code
        return _CODES.get(self.agent.outcome, ExitCode.FAILED)

    def _lost_its_script(self, node: Node, agent: TaskAgent) -> bool:
        return agent.told is Cause.LAUNCH_FAILURE or self.why_it_ends(node) is Standing.SCRIPT_DIED


def _patiently(node: Node, log: RunLog) -> RunState:
    while True:
        try:
            return log.refresh()
        except StoreError:
            node.wait(_POLL_S)


class TaskAgent(SimulatedAgent):
    """An agent that asks Slurm; also `hpc_elastic.slurm.watch.job_watch.Loop`.

    Args:
        of: the start of the task.
        node: where it runs.
        shares: its way to the others.
        start: the start of the run that it belongs to.

    Attributes:
        told: the cause of a signal by Slurm; None: no answer has come.
    """

    def __init__(self, of: StartOfTask, node: Node, shares: Shares, start: Start) -> None:
        super().__init__(node, shares, start, of.run.numbers)
        self._of = of
        self._notices: list[Notice] = []
        self._asked = 0  # signals about which Slurm was asked
        self.told: Cause | None = None
        place = JobPlace(of.run.place.paths, of.job.ref, of.restart, of.job.nodes, None)
        self._watch = JobWatch(place, WatchOptions(), of.slurm(), ProcessClock(node), self)
        self._watch.begin(is_first=True)

    # hpc_elastic.slurm.watch.job_watch.Loop

    def hear(self, notice: Notice) -> None:
        """Take note of a notice of the watch."""
        self._notices.append(notice)

    def wake(self) -> None:
        """Do nothing: it looks often."""

    def held_up_s(self) -> float:
        """Return for how long the shared directory has been out of reach [s]."""
        since, until = self._of.stalled
        now = self.node.world.now
        return now - since if since <= now < until else 0.0

    # the turns of an agent

    def _start_workers(self, formed: RoundFormed) -> None:
        super()._start_workers(formed)
        self._of.works = True

    def _note_signals(self) -> None:
        super()._note_signals()
        while self._asked < self._of.signals:
            self._asked += 1
            self._watch.ask_why(self.node.monotonic(), is_warning=False)

    def _tell_wish(self) -> None:
        state = self.shared.state
        if self.is_signalled and state.drain is None and not state.leaving:
            asked = Asked("SIGTERM")
            self.shared.request_drain(Cause.PREEMPTION, AfterDrain.REJOIN, "", asked=asked)
        while self._notices:
            notice = self._notices.pop(0)
            if not notice.explains:
                continue
            self.told, drain = notice.cause, self.shared.state.drain
            if (
                drain is not None and drain.node == self.node.name
            ):  # else its time does not concern the others
                self.shared.explain_drain(notice.cause, notice.detail, None, notice.answer)

    def _leave_alone(self, cause: Cause) -> str:
        """Wait for the answer of Slurm, and leave for that."""
        if cause is Cause.PREEMPTION:
            limit = self.node.world.now + ANSWER_S
            while self._watch.is_asking and self.node.world.now < limit:
                self.node.wait(_POLL_S)
            self.told = next((one.cause for one in reversed(self._notices) if one.explains), self.told)
        return super()._leave_alone(self.told or cause)
