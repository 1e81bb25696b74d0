"""What the end of a job's batch script and of an array task's have in common: the records, and Slurm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from hpc_elastic import ids
from hpc_elastic.clock import Clock
from hpc_elastic.errors import RunDirError, SlurmCommandError, SlurmError, SlurmNotFoundError, StoreError
from hpc_elastic.ids import ExitCode
from hpc_elastic.record.journal import Entry, Epoch, Note, Role, RunEnded, SetupFailure
from hpc_elastic.record.run_log import RunLog, open_log
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.commands import Slurm, is_not_ready, is_unreachable
from hpc_elastic.slurm.client.job_facts import look
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.end.lifecycle import RequeueBudgets
from hpc_elastic.slurm.end.requeue import HandBack
from hpc_elastic.slurm.end.setup_failure import with_words
from hpc_elastic.slurm.run_jobs import batch_log
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start
from hpc_elastic.slurm.run_jobs.retry import Patience

_RELAUNCH_PAUSE_S = 2.0


class ScriptEnd(ABC):
    """Ends one start of a batch script.

    Args:
        start: the start.
        budgets: how often each way to go on may be taken.
        slurm: Slurm's commands.
        clock: paces retries.
        say: prints a line for the batch log.
    """

    def __init__(self, start: Start, budgets: RequeueBudgets, slurm: Slurm, clock: Clock, say: Say) -> None:
        kind, self._job = ("job", start.job_ref) if start.task is None else ("task", start.task.task)
        self._name = f"{kind} {self._job}"  # for people
        self._start = start
        self._paths = start.paths
        self._budgets = budgets
        self._slurm = slurm
        self._clock = clock
        self._say = say
        writer = ids.BATCH if start.task is None else self._job
        self._log: RunLog = open_log(start.paths, writer, Role.SCRIPT)
        self._patiently = Patience(clock, say, f", then the {kind} ends with 76 and is not requeued")
        self._failure: SetupFailure | None = None  # with bash's words, once they are read

    @abstractmethod
    def _begin(self) -> None:
        """Record the start that this script belongs to, if no agent came to do it."""

    def _failure_in_words(self) -> SetupFailure | None:
        """Return the line of the script that failed before srun, and what was said about it."""
        failure = self._start.launch_failure
        return None if failure is None else with_words(failure, self._batch_log())

    def _batch_log(self) -> str:
        """Return the end of what this script, and Slurm, have printed."""
        return batch_log.end_of(self._paths, self._job)

    def _ask_slurm(self, patience_s: float) -> JobFacts | None:
        """Return what Slurm says about the job or task, None if it says nothing for so long [s]."""
        try:
            return self._patiently(lambda: look(self._slurm, self._job), patience_s, SlurmCommandError)
        except (SlurmCommandError, SlurmNotFoundError) as error:
            self._say(f"Slurm tells nothing about {self._name}: {error}")
            return None

    def _write(self, entry: Entry) -> RunState:
        return self._patiently(lambda: self._log.commit(lambda _state: entry))

    def _note_down(self, epoch: Epoch, text: str) -> None:
        """Write down what people are to know; where that fails the batch log alone tells it."""
        try:
            self._log.commit(lambda _state: Note(epoch, text))
        except StoreError as error:
            self._say(f"this is not in the run's records: {error}")

    def _end_as(self, code: int, record: RunEnded | None) -> int:
        """Write the ending, and return the exit code of the one that stands: somebody may have been first."""
        if record is None:
            return code
        self._begin()
        ending = self._write(record).ending
        return code if ending is None or ending == record else ending.exit_code

    def _ended(self, code: int) -> Ended:
        return Ended(code, 0, self._log.state)

    def _relaunch(self, nodes: int, *, paces: bool = True) -> Ended:
        """Ask for another srun, after a pause that doubles each time."""
        if paces:
            self._clock.sleep(_RELAUNCH_PAUSE_S * 2**self._start.epoch.relaunch)
        return Ended(ExitCode.RELAUNCH, nodes, self._log.state)

    def _hand_back(self) -> HandBack:
        return HandBack(self._slurm, self._job, self._start.restarts, self._clock)

    def _submitted(self, submit: Callable[[], str], patience_s: float) -> str | Exception:
        """Return what a further job or task is called, or why there is none.

        Args:
            submit: submits it; a refusal that may pass is tried again.
            patience_s: for how long [s].
        """

        def once() -> str | SlurmCommandError:
            try:
                return submit()
            except SlurmCommandError as error:
                if is_unreachable(error) or is_not_ready(error):
                    raise
                return error

        try:
            return self._patiently(once, patience_s, SlurmCommandError)
        except (SlurmError, RunDirError, OSError) as error:
            return error
