"""A run as a job of submitit."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from submitit.core.core import InfoWatcher, Job, R
from submitit.core.utils import FailedJobError, UncompletedJobError

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.launcher.failures import RunFailedError
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.journal import RoundFormed
from hpc_elastic.rendezvous.run_log import read_records
from hpc_elastic.report import log_files
from hpc_elastic.report.run_status import Phase
from hpc_elastic.runs.errors import NotDoneError
from hpc_elastic.runs.run import Run
from hpc_elastic.slurm.submissions import read_submissions

_BEGIN_S = 30.0  # until the runner of a run without Slurm has told its pid
_LOOK_S = 0.05
_WORDS = {
    Phase.QUEUED: "PENDING",
    Phase.UNKNOWN: "PENDING",
    Phase.REQUEUED: "REQUEUED",
    Phase.DONE: "COMPLETED",
    Phase.FAILED: "FAILED",
    Phase.STOPPED: "CANCELLED",
    Phase.CANCELLED: "CANCELLED",
    Phase.GONE: "FAILED",
}
"""What submitit calls the phases; a run that is lost, preempted or between two starts is RUNNING."""


def new_run_dir(folder: Path, name: str) -> str:
    """Return a path for the next run below submitit's folder."""
    return str(folder / f"{name}-{secrets.token_hex(4)}")


def first_job_id(run_dir: str) -> str:
    """Return the id of the job as which a run was first submitted; empty if it was not."""
    done = read_submissions(RunPaths(run_dir))
    return done[0].job_id if done else ""


def nodes_of_round(run_dir: str, number: int) -> list[str]:
    """Return the names of the nodes of a round, in the order of their ranks."""
    for record in read_records(RunPaths(run_dir)):
        if isinstance(record.entry, RoundFormed) and record.entry.number == number:
            return [member.node for member in record.entry.members]
    return []


class _Watcher(InfoWatcher):
    """Asks nobody: a job here knows by its run where it stands."""

    def register_job(self, job_id: str) -> None:
        """Do nothing."""


class HpcElasticJob(Job[R]):
    """What `submit` of the executor returns: submitit's interface over a `hpc_elastic.Run`.

    Args:
        folder: that of the executor.
        job_id: Slurm's id of the first job.
        tasks: ranks; a job here has as many as its last round had.
    """

    watcher = _Watcher()

    def __init__(self, folder: str | Path, job_id: str, tasks: tuple[int, ...] = (0,)) -> None:
        super().__init__(folder, job_id, tasks[:1])
        self._clock: Clock = SystemClock()

    @classmethod
    def of_run(cls, folder: str | Path, run: Run) -> HpcElasticJob[Any]:
        """Return the job of a run that was just submitted, and leave a trace so that its id finds it.

        Raises:
            UncompletedJobError: its runner on this machine did not start.
        """
        clock = SystemClock()
        give_up_at = clock.monotonic() + _BEGIN_S
        while not first_job_id(run.directory):
            status = run.status()
            if status.phase is Phase.GONE or clock.monotonic() > give_up_at:
                raise UncompletedJobError(f"the run in {run.directory} did not begin: {status.text}")
            clock.sleep(_LOOK_S)
        job: HpcElasticJob[Any] = cls(folder, first_job_id(run.directory))
        job.paths.folder.mkdir(parents=True, exist_ok=True)
        os.symlink(run.directory, job._link)
        os.symlink(RunPaths(run.directory).function, job.paths.submitted_pickle)
        return job

    @property
    def _link(self) -> Path:
        return self.paths.folder / f"{self.job_id}_run"

    @property
    def run(self) -> Run:
        """The run: what it has that submitit's jobs have not, such as `scale` and `stop`.

        Raises:
            RunDirError: it was taken away.
        """
        return Run(os.path.realpath(self._link))

    @property
    def num_tasks(self) -> int:
        """How many workers the newest round has; 1 before the first."""
        formed = [
            one.entry for one in read_records(self._paths_of_run()) if isinstance(one.entry, RoundFormed)
        ]
        return sum(member.slots for member in formed[-1].members) if formed else 1

    @property
    def state(self) -> str:
        """Where the run stands, in Slurm's words."""
        return _WORDS.get(self.run.status().phase, "RUNNING")

    def get_info(self, mode: str = "force") -> dict[str, str]:  # noqa: ARG002 - submitit's signature
        """Return the state and what explains it."""
        status = self.run.status()
        return {"State": _WORDS.get(status.phase, "RUNNING"), "Text": status.text}

    def done(self, force_check: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - submitit's
        """Tell whether the run has ended for good. A lost node or a requeue is no end."""
        phase = self.run.status().phase
        return phase.is_final or phase is Phase.GONE

    def wait(self) -> None:
        """Wait until the run has ended."""
        self.run.wait()

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 - submitit's signature
        """End the run at once."""
        try:
            self.run.cancel()
        except InputError:
            pass  # it has ended
        except HpcElasticError:
            if check:
                raise

    def results(self) -> list[R]:
        """Wait for the end and return what the function has returned, by rank.

        Raises:
            FailedJobError: a worker failed; the text has its traceback.
            UncompletedJobError: the run ended without a result.
        """
        problem, values = self._outcome()
        if problem is not None:
            raise problem
        return values

    def result(self) -> R:
        """Wait for the end and return what rank 0 has returned; raises as `results` does."""
        return self.results()[0]

    def exception(self) -> UncompletedJobError | FailedJobError | None:
        """Wait for the end and return what `results` would raise."""
        return self._outcome()[0]

    def _outcome(self) -> tuple[UncompletedJobError | None, list[R]]:
        try:
            return None, self.run.results()
        except RunFailedError as error:
            return FailedJobError(f"Job {self.job_id} failed\n{error}"), []
        except (NotDoneError, HpcElasticError) as error:
            return UncompletedJobError(f"Job {self.job_id}: {error}"), []

    def stdout(self) -> str | None:
        """Return what the workers have printed, of all rounds; None if nothing is there yet."""
        return self._printed("stdout.log")

    def stderr(self) -> str | None:
        """Return what the workers have written to stderr, of all rounds; None if nothing is there yet."""
        return self._printed("stderr.log")

    def _printed(self, name: str) -> str | None:
        paths = self._paths_of_run()
        found = [
            Path(file.path)
            for attempt in log_files.attempts(paths)
            for file in log_files.worker_files(paths, attempt, log_files.Wanted(attempt=attempt), None)
            if file.path.endswith(name)
        ]
        return "".join(path.read_text(errors="replace") for path in found) if found else None

    def _paths_of_run(self) -> RunPaths:
        return RunPaths(os.path.realpath(self._link))

    def _interrupt(self, timeout: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - submitit's
        """Have the workers save and stop, as before a preemption (for tests of users)."""
        self.run.stop()
