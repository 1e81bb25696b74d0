"""A run as Python sees it: its state, its logs, its end, its values."""

from __future__ import annotations

import errno
import os
from typing import Any

from hpc_elastic.api import function
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError, InputError, StoreError
from hpc_elastic.ids import LOGIN
from hpc_elastic.launcher.failures import RunFailedError
from hpc_elastic.multiprocessing.errors.failure import FailureRecord
from hpc_elastic.record.journal import Decision, Role
from hpc_elastic.record.run_log import open_log
from hpc_elastic.report import log_files
from hpc_elastic.report.log_files import WantedLogs
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, status_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun
from hpc_elastic.slurm.operate.scale import scale as change_size
from hpc_elastic.slurm.run_jobs.existing_run import existing_run
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, newest_world_size, read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, silent_for
from hpc_elastic.store.plain_file import open_plain, read_plain
from hpc_elastic.text import for_shell

_FIX = "give the directory that submit printed, or the attribute `directory` of a Run"
RUNNER_LOG = "slurm-local.out"  # the output of the runner of a run without Slurm
_LOOK_S = 0.5  # between two looks at the journal
_ASK_SLURM_S = 30.0  # between two questions to Slurm
_UNREADABLE_S = 300.0  # a file server may be away for so long


class Run:
    """A run that was submitted, in this process or in another.

    Args:
        directory: its run directory.
        runner: pid of the process that runs it here, without Slurm.

    Raises:
        RunDirError: there is no run in it, or it belongs to another user.
    """

    def __init__(self, directory: str | os.PathLike[str], *, runner: int | None = None) -> None:
        self._paths = existing_run(os.path.abspath(os.fspath(directory)), "Run", _FIX)
        self._runner = runner
        self._clock: Clock = SystemClock()
        self._read()

    def __repr__(self) -> str:
        return f"Run({self.directory!r})"

    @property
    def directory(self) -> str:
        """The run directory."""
        return self._paths.root

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._read().name

    @property
    def job_id(self) -> str:
        """Slurm's id of the newest job; empty while none is known."""
        return self._read().job_id

    def status(self) -> RunStatus:
        """Return where the run stands: a phase, and a sentence that explains it.

        Asks Slurm, and takes 5 s more where no agent has given a sign of life lately.
        """
        run = self._read()
        return self._never_began(run) or _status(run, self._clock)

    def _never_began(self, run: RunFiles) -> RunStatus | None:
        """Tell that the runner on this machine ended before it could leave a record."""
        if self._runner is None or run.job_id or os.path.exists(f"/proc/{self._runner}"):
            return None
        if self._read().job_id:  # it was quick
            return None
        said = read_plain(os.path.join(self.directory, RUNNER_LOG)).decode(errors="replace")
        return RunStatus(RunPhase.GONE, f"it could not be started: {said.strip()}")

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has ended, over requeues, and return how.

        Args:
            timeout: how long to wait [s]; None for as long as it takes.

        Raises:
            TimeoutError: it has not ended in that time; it runs on.
            StoreError: the run directory could not be read for some minutes.
        """
        clock = self._clock
        give_up_at = float("inf") if timeout is None else clock.monotonic() + timeout
        log = open_log(self._paths, LOGIN, Role.COMMAND)
        ask_at, read_at = clock.monotonic() + _LOOK_S, clock.monotonic()
        while True:
            try:
                asks = clock.monotonic() >= ask_at
                if asks or log.refresh().ending is not None:
                    status = self.status()
                    if status.phase.is_final or status.phase is RunPhase.GONE:
                        return status
                    ask_at = clock.monotonic() + _ASK_SLURM_S
                read_at = clock.monotonic()
            except StoreError as error:
                if error.errno == errno.ENOENT or clock.monotonic() - read_at > _UNREADABLE_S:
                    raise
            left = give_up_at - clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"the run in {self.directory} has not ended in {timeout:g} s")
            clock.sleep(min(_LOOK_S, left))

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait for the end and return the values of the function, by rank.

        The ranks are those of the last round. A run of a program has no results.

        Args:
            timeout: how long to wait [s]; None for as long as it takes.

        Raises:
            InputError: the work of the run is no function.
            RunFailedError: a worker failed; its failure is the run's first.
            NotDoneError: it was stopped or cancelled, or ended for another reason.
            TimeoutError: it has not ended in that time.
            RunDirError: the values are not there, or others could have written them.
        """
        if self._read().has_script and not os.path.lexists(self._paths.function):
            raise InputError(
                f"the work of the run in {self.directory} is no function, so it returns no values",
                where="Run.results",
                fix="Run.wait() tells how it ended, Run.logs() prints its output",
            )
        status = self.wait(timeout)
        run = self._read()
        if status.phase is RunPhase.DONE:
            return function.results(self._paths, newest_world_size(run.records))
        ending = run.state.ending
        if ending is not None and ending.decision is Decision.FAILED and ending.failure:
            raise RunFailedError(run.name, FailureRecord.from_json(ending.failure), {})
        raise NotDoneError(self.directory, status.text)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the value of rank 0; raises as `results` does."""
        return self.results(timeout)[0]

    def logs(self, rank: int | None = None, *, attempt: int | None = None) -> str:
        """Return the output of workers, each line with its round and rank in front.

        Args:
            rank: only this global rank.
            attempt: this round; the newest by default.
        """
        there = log_files.attempts(self._paths)
        number = attempt if attempt is not None else (there[-1] if there else None)
        if number is None:
            return ""
        found = log_files.worker_files(self._paths, number, WantedLogs(rank, None, number), None)
        return "".join(_prefixed(file) for file in found)

    def stop(self) -> None:
        """Have the workers save and stop at the same step; the job ends and is not requeued.

        Raises:
            InputError: the run has ended, or nothing was ever started.
        """
        EndRun(self._paths, Slurm(), self._clock, _say_nothing).stop()

    def cancel(self) -> None:
        """End the run at once; unsaved work of its workers is lost.

        Raises:
            InputError: the run has ended and its job is gone, or nothing was ever started.
            SlurmCommandError: scancel failed.
        """
        EndRun(self._paths, Slurm(), self._clock, _say_nothing).cancel()

    def scale(self, nodes: int) -> None:
        """Have the run go on with another number of nodes.

        Raises:
            InputError: the run has ended, or cannot have that size.
        """
        change_size(self._paths, nodes, _say_nothing)

    def _read(self) -> RunFiles:
        return read_run(self._paths)


def _status(run: RunFiles, clock: Clock) -> RunStatus:
    job = ask_job(run, Slurm()).job
    return status_of(RunView.of(run, job, silent_for(run, clock) if may_live(job) else None))


def _prefixed(file: log_files.LogFile) -> str:
    with open(open_plain(file.path), encoding="utf-8", errors="replace") as lines:
        return "".join(f"{file.prefix}{line.rstrip()}\n" for line in lines)


def _say_nothing(_line: str) -> None:
    """The output of a command is in `Run.status`."""


class NotDoneError(HpcElasticError):
    """A run is over, or its job is gone, and it is not done; no worker's failure tells why."""

    def __init__(self, root: str, text: str) -> None:
        super().__init__(root, text)
        self.root = root
        self.text = text

    def __str__(self) -> str:
        root = for_shell(self.root)
        return (
            f"the run in {self.root} is not done: {self.text}\n"
            f"  fix: hpc-elastic timeline {root} tells its events; "
            f"to take it up again: hpc-elastic submit --resume {root}"
        )
