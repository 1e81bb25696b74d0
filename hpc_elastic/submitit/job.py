"""A run as a job of submitit; all jobs of a process share the questions to Slurm."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.core import AsyncJobProxy, InfoWatcher, Job, R
from submitit.core.utils import FailedJobError, UncompletedJobError

from hpc_elastic.api.run import NotDoneError, Run
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError, InputError, RunDirError, SlurmError
from hpc_elastic.launcher.failures import RunFailedError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.record.run_log import read_records
from hpc_elastic.report import log_files
from hpc_elastic.report.run_status import RunPhase, RunStatus, RunView, status_of
from hpc_elastic.settings.table import in_force
from hpc_elastic.settings.values import parse_nodes
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, newest_world_size, read_run, stored_spec
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from hpc_elastic.store.plain_file import open_plain

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


FRESH_S = 10.0  # how old an answer may be [s]

_BEGIN_S = 30.0  # until the runner of a run without Slurm has told its pid
_LOOK_S = 0.05
_WORDS = {
    RunPhase.QUEUED: "PENDING",
    RunPhase.UNKNOWN: "PENDING",
    RunPhase.REQUEUED: "REQUEUED",
    RunPhase.DONE: "COMPLETED",
    RunPhase.FAILED: "FAILED",
    RunPhase.HELD: "REQUEUE_HOLD",
    RunPhase.STOPPED: "CANCELLED",
    RunPhase.CANCELLED: "CANCELLED",
    RunPhase.GONE: "FAILED",
}
"""What submitit calls the phases; a run that is lost, preempted or between two starts is RUNNING."""


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


def _link(target: str, path: Path) -> None:
    """Make a symbolic link, in place of that of an older job whose id has come round again."""
    private = f"{path}.{secrets.token_hex(4)}"
    os.symlink(target, private)
    os.replace(private, path)


class _Watcher(InfoWatcher):
    """A watcher without queries: a job reads its state from the records of its run."""

    def register_job(self, job_id: str) -> None:
        """Do nothing."""

    def update(self) -> None:
        """Do nothing."""

    def is_done(self, job_id: str, mode: str = "standard") -> bool:  # noqa: ARG002 - submitit's signature
        """Return False, so that a job with `cancel_at_deletion` is cancelled; one that has ended stays."""
        return False

    def get_state(self, job_id: str, mode: str = "standard") -> str:  # noqa: ARG002 - submitit's signature
        """Return that it is not known here; `HpcElasticJob.state` knows."""
        return "UNKNOWN"


class _Standing(NamedTuple):
    status: RunStatus
    word: str  # Slurm's

    @classmethod
    def of(cls, run: RunFiles, job: JobFacts | None) -> _Standing:
        """Return where a run stands, whose job Slurm has told of or not."""
        status = status_of(RunView.of(run, job))
        word = _WORDS.get(status.phase, "RUNNING")
        if status.phase is RunPhase.CANCELLED and run.is_local:
            word = "INTERRUPTED"  # as a job of submitit's local executor
        if status.phase is RunPhase.GONE and job is not None and not job.word.startswith("COMPLETED"):
            word = (job.word or word).split()[0]  # such as CANCELLED or TIMEOUT
        return cls(status, word)


class HpcElasticJob(Job[R]):
    """The result of the executor's `submit`: submitit's interface over a `hpc_elastic.Run`.

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
            if status.phase is RunPhase.GONE or clock.monotonic() > give_up_at:
                raise UncompletedJobError(f"the run in {run.directory} did not begin: {status.text}")
            clock.sleep(_LOOK_S)
        job: HpcElasticJob[Any] = cls(folder, first_job_id(run.directory))
        job.paths.folder.mkdir(parents=True, exist_ok=True)
        _link(run.directory, job._link)
        _link(RunPaths(run.directory).function, job.paths.submitted_pickle)
        return job

    @property
    def _link(self) -> Path:
        return self.paths.folder / f"{self.job_id}_run"

    @property
    def run(self) -> Run:
        """The run, for methods that submitit's jobs do not have, such as `scale` and `stop`.

        Raises:
            RunDirError: it was taken away.
        """
        if not os.path.lexists(self._link):
            raise RunDirError(
                f"there is no job {self.job_id} in {self.paths.folder}",
                where=type(self).__name__,
                fix="give the folder that its executor had, and the id that the job had first",
            )
        return Run(os.path.realpath(self._link))

    @property
    def num_tasks(self) -> int:
        """How many workers the newest round has; before the first how many were asked for at least."""
        paths = self._paths_of_run()
        return newest_world_size(read_records(paths)) or _tasks_asked_for(stored_spec(paths))

    def task(self, task_id: int) -> HpcElasticJob[R]:
        """Return the job as one of its ranks: its value and output, while the rest is of the whole job.

        A job with one worker is that rank itself.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= task_id < self.num_tasks:
            raise ValueError(f"task_id {task_id} must be between 0 and {self.num_tasks - 1}")
        if self.num_tasks == 1:
            return self
        return RankOfJob(self.paths.folder, self.job_id, (task_id,))

    def awaitable(self) -> AsyncJobProxy[R]:
        """Return the job with methods for asyncio."""
        return _AsyncJob(self)

    @property
    def state(self) -> str:
        """The state of the run, in Slurm's words; the answer of Slurm may be some seconds old."""
        return self._standing().word

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return the state and its explanation; ``standard`` may take an answer some seconds old."""
        standing = self._standing(force=mode == "force")
        return {"State": standing.word, "Text": standing.status.text}

    def done(self, force_check: bool = False) -> bool:  # noqa: FBT001, FBT002 - submitit's signature
        """Tell whether the run has ended for good. A lost node or a requeue is no end."""
        phase = self._standing(force=force_check).status.phase
        return phase.is_final or phase is RunPhase.GONE

    def _standing(self, *, force: bool = False) -> _Standing:
        """Return where the run stands; that its job is gone is never believed of an old answer."""
        run = read_run(self._paths_of_run())
        if not run.submissions:
            run = read_run(
                RunPaths(self.run.directory)
            )  # it raises an error that tells the fault, if there is one
        if not force:
            standing = _Standing.of(run, ask_job(run, _SHARED).job)
            if standing.status.phase is not RunPhase.GONE:
                return standing
            run = read_run(run.paths)
        return _Standing.of(run, ask_job(run, Slurm()).job)

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
        """Wait for the end and return the values of the function, by rank.

        Raises:
            FailedJobError: a worker failed; the text has its traceback.
            UncompletedJobError: the run ended without a result.
        """
        problem, values = self._outcome()
        if problem is not None:
            raise problem
        return values

    def result(self) -> R:
        """Wait for the end and return the value of rank 0; raises as `results` does."""
        return self.results()[0]

    def exception(self) -> UncompletedJobError | FailedJobError | None:
        """Wait for the end and return the exception that `results` would raise."""
        return self._outcome()[0]

    def _outcome(self) -> tuple[UncompletedJobError | None, list[R]]:
        try:
            return None, self.run.results()
        except RunFailedError as error:
            return FailedJobError(f"Job {self.job_id} failed\n{error}"), []
        except (NotDoneError, HpcElasticError) as error:
            return UncompletedJobError(f"Job {self.job_id}: {error}"), []

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        """Return the outcome in the form of submitit's own `results`, which a job in a batch needs."""
        problem, values = self._outcome()
        return ("success", values[0]) if problem is None else ("error", str(problem))

    def stdout(self) -> str | None:
        """Return the output of the workers, of all rounds; None if there is none yet."""
        return self._printed("stdout.log")

    def stderr(self) -> str | None:
        """Return the stderr of the workers, of all rounds; None if there is none yet."""
        return self._printed("stderr.log")

    def _printed(self, name: str, rank: int | None = None) -> str | None:
        paths = self._paths_of_run()
        found = [
            file.path
            for attempt in log_files.attempts(paths)
            for file in log_files.worker_files(paths, attempt, log_files.WantedLogs(rank), None)
            if file.path.endswith(name)
        ]
        if not found and not log_files.attempts(paths):
            return None
        return "".join(map(_text_in, found))  # of a round that is over only the files are left

    def _paths_of_run(self) -> RunPaths:
        return RunPaths(os.path.realpath(self._link))

    def _interrupt(self, timeout: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - submitit's
        """Have the workers save and stop, as before a preemption (for tests of users)."""
        self.run.stop()


class RankOfJob(HpcElasticJob[R]):
    """One rank of a job, as `HpcElasticJob.task` gives it.

    Args:
        folder: that of the executor.
        job_id: Slurm's id of the first job.
        tasks: the rank.
    """

    def __init__(self, folder: str | Path, job_id: str, tasks: tuple[int, ...] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        self._rank = tasks[0]

    @property
    def num_tasks(self) -> int:
        """Return 1."""
        return 1

    def task(self, task_id: int) -> HpcElasticJob[R]:
        """Return the rank itself.

        Raises:
            ValueError: the number is not 0.
        """
        if task_id != 0:
            raise ValueError(f"task_id {task_id} must be 0: this is rank {self._rank} already")
        return self

    def results(self) -> list[R]:
        """Wait for the end and return the value of the rank; raises as for the whole job.

        Raises:
            UncompletedJobError: the last round had fewer workers.
        """
        values = super().results()
        if self._rank >= len(values):
            raise UncompletedJobError(
                f"Job {self.job_id} has no value of rank {self._rank}: "
                f"its last round had {len(values)} workers"
            )
        return [values[self._rank]]

    def stdout(self) -> str | None:
        """Return the output of the rank, of all rounds; None if there is none yet."""
        return self._printed("stdout.log", self._rank)

    def stderr(self) -> str | None:
        """Return the stderr of the rank, of all rounds; None if there is none yet."""
        return self._printed("stderr.log", self._rank)


class _AsyncJob(AsyncJobProxy[R]):
    """A job with methods for asyncio."""

    def results_as_completed(self, poll_interval: float = 1) -> Iterator[asyncio.Future[R]]:
        """Return each rank's value once; submitit's own gives that of rank 0 twice."""
        import asyncio  # noqa: PLC0415 - rare

        ranks = [self.job.task(rank).awaitable() for rank in range(self.job.num_tasks)]
        yield from asyncio.as_completed([rank.result(poll_interval) for rank in ranks])


def _tasks_asked_for(spec: dict[str, Any]) -> int:
    """Return the least number of workers that a stored job spec asks for."""
    nodes = parse_nodes(in_force(spec, "nodes")).low
    gpus = str(spec.get("gpus_per_node") or 1).rpartition(":")[2]
    return nodes * int(spec.get("workers_per_node") or gpus)


def _text_in(path: str) -> str:
    with open(open_plain(path), errors="replace") as file:
        return file.read()


class _Answer(NamedTuple):
    at: float
    jobs: dict[str, dict[str, str]]  # by name: an id, ``12_3``, or ``12_[5-9%2]`` for those not begun


def by_name(jobs: Iterable[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the fields of jobs by their name in Slurm's commands."""
    found = {}
    for fields in jobs:
        index = fields.get("ArrayTaskId", "")
        name = index if index.isdecimal() else f"[{index}]"
        found[f"{fields['ArrayJobId']}_{name}" if index else fields["JobId"]] = fields
    return found


def find(jobs: dict[str, dict[str, str]], name: str) -> dict[str, str] | None:
    """Return the fields of a job; tasks of an array that have not begun share one record."""
    own = jobs.get(name)
    if own is not None:
        return own
    _, _, index = name.partition("_")
    waiting = (fields for key, fields in jobs.items() if index.isdecimal() and key.endswith("]"))
    return next((fields for fields in waiting if _holds(fields["ArrayTaskId"], int(index))), None)


def _holds(indices: str, index: int) -> bool:
    """Tell whether ``0-3,7,9-20:2%4`` has an index; Slurm cuts long lists off with dots."""
    if "..." in indices:
        return True
    for part in indices.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if index in range(first, last + 1, step):
            return True
    return False


class SharedLook(Slurm):
    """Slurm's commands, with answers about jobs that are kept for a while.

    Args:
        clock: tells how old an answer is.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._answers: dict[str, _Answer] = {}
        self._trouble: tuple[float, SlurmError] | None = None  # when Slurm gave no answer, and why

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the last answer of Slurm about a job, None if it does not know it.

        Raises:
            SlurmError: it gives no answer; then the next question waits, as each one may take long.
        """
        asked = job_ref.partition("_")[0]
        now = self._clock.monotonic()
        known = self._answers.get(asked)
        if known is None or now - known.at > FRESH_S:
            known = self._ask_anew(asked, now)
        return find(known.jobs, job_ref)

    def _ask_anew(self, asked: str, now: float) -> _Answer:
        if self._trouble is not None and now - self._trouble[0] <= FRESH_S:
            raise self._trouble[1]
        self._forget(now)
        try:
            known = self._answers[asked] = _Answer(now, by_name(self.show_tasks(asked)))
        except SlurmError as error:
            self._trouble = (self._clock.monotonic(), error)
            raise
        return known

    def _forget(self, now: float) -> None:
        old = [name for name, answer in self._answers.items() if now - answer.at > FRESH_S]
        for name in old:
            del self._answers[name]


_SHARED = SharedLook()  # one for all jobs of this process
