"""One start of a job, as its batch script knows it: environment, log, retries, and the way to go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError, RunDirError, StoreError, TakenOverError, UnfitFileError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Decision, Epoch, EpochStarted, Record, SetupFailure
from hpc_elastic.record.run_directory import require_run, require_same_run
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.environment import job_ref, task_start
from hpc_elastic.slurm.run_jobs.script_tasks import array_of, make_task, run_id_of, task_index, task_paths
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import counts

_END = 65536  # bytes that are looked through
GONE_PATIENCE_S = 30.0  # for a run directory that is not there: a mount may come back
PATIENCE_S = 300.0  # for slurmctld and for the shared directory; a failover takes minutes
FULL_PATIENCE_S = 60.0  # for a full disk or a spent quota: it passes where others make room meanwhile
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_FINISH = "hpc_elastic finish: "
NOT_REQUEUED = "the job is not requeued: "  # before the reason
FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_T = TypeVar("_T")
_COUNTS = (Env.SUBMISSION, Env.LINK, "SLURM_RESTART_COUNT", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")

LOCAL = "HPC_ELASTIC_LOCAL"  # set by the runner that plays Slurm on one machine
LOCAL_END = "HPC_ELASTIC_LOCAL_END"  # file with the name of the signal that has ended that runner

Say = Callable[[str], None]


class Start(NamedTuple):
    """The start of the job whose srun has returned."""

    paths: RunPaths
    epoch: Epoch
    job_ref: str
    nodes: int  # of the allocation as it was at the start
    local: bool
    srun_exit_code: int
    is_submitted: bool = False  # the directory must hold the files of `submit`
    end_file: str = ""  # see LOCAL_END
    task: TaskStart | None = None  # in array mode, where it is that of one task
    node_list: str = ""  # the nodes of the allocation as it was at the start, as Slurm writes them
    chain: int = 0  # jobs of the chain that this one belongs to; 0: it is in none
    launch_failure: SetupFailure | None = None  # the line of the job script that failed before srun
    run_id: str = ""  # name of the run that the script was made for
    expedited: bool = False  # the job was queued with --requeue=expedite
    is_script: bool = False  # the job runs a job script of the user's own, and no agent
    script_runs: bool = False  # that script has not ended
    array: RunPaths | None = None  # the run directory of the array of such scripts that this one is a task of
    number: str = ""  # of that task

    @property
    def link(self) -> int:
        """How many jobs of the same submission came before this one."""
        return self.epoch.link

    @property
    def restarts(self) -> int:
        """The restart count that Slurm has given this start of the job."""
        return self.epoch.restart

    @classmethod
    def from_environ(
        cls, paths: RunPaths, environ: Mapping[str, str], *, relaunch: int, srun_exit_code: int
    ) -> Start:
        """Read the environment of the batch script."""
        task = task_start(environ)
        submission, link, restart, nodes, step_nodes = counts(environ.get(name, "") for name in _COUNTS)
        epoch = Epoch(submission, link, restart, relaunch)
        return cls(
            paths=paths,
            epoch=epoch,
            job_ref=job_ref(environ) or "",
            nodes=nodes or step_nodes,
            local=bool(environ.get(LOCAL)),
            srun_exit_code=srun_exit_code,
            is_submitted=Env.SUBMISSION in environ,
            end_file=environ.get(LOCAL_END, ""),
            node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or "",
            task=task._replace(relaunch=relaunch) if task is not None else None,
            run_id=environ.get(Env.RUN_ID, "") if Env.SUBMISSION in environ else "",
            expedited=bool(environ.get(Env.EXPEDITED)),
        )


def of_script(start: Start, environ: Mapping[str, str]) -> Start:
    """Return the start of a user's own job script; a task of an array of them has a run of its own.

    Args:
        start: as the batch script has it.
        environ: of the batch script.
    """
    index = task_index(environ)
    if not index:
        return start._replace(is_script=True)
    task, run_id = task_paths(start.paths, index), run_id_of(start.run_id, index)
    return start._replace(is_script=True, paths=task, run_id=run_id, array=start.paths, number=index)


class Ended(NamedTuple):
    """The next act of the batch script, and the state of the run."""

    code: int
    nodes: int  # for another srun; 0 unless the code says so
    state: RunState
    next_job: str = ""  # the job that was queued to go on in the place of a task


def with_own_submission(
    start: Start, records: list[Record], state: RunState, is_active: Callable[[str], bool]
) -> Start:
    """Return the start with the submission that its agents took; each job that takes up a run is one.

    Args:
        start: of a job whose script is the user's own.
        records: the journal.
        state: the run.
        is_active: tells whether a job runs or waits; asked where no agent of this job has recorded anything.
    """
    mine = [
        record.entry.epoch.submission
        for record in records
        if isinstance(record.entry, EpochStarted) and record.entry.job_id == start.job_ref
    ]
    if mine:
        return start._replace(epoch=start.epoch._replace(submission=mine[-1]))
    is_done = state.ending is not None and state.ending.decision is Decision.DONE
    if state.job_id in ("", start.job_ref) or is_done:
        return start
    takes_it_up = state.leaving or not is_active(state.job_id)  # else its agents were refused
    epoch = start.epoch._replace(submission=state.epoch.submission + takes_it_up)
    return start._replace(epoch=epoch)


def require_run_of(start: Start, clock: Clock, say: Say) -> None:
    """Check that the run of a start is there; nothing that was lost is made again.

    Raises:
        TakenOverError: another directory is in the place of the run's, or others can write to it.
        RunDirError: the run directory is gone, or was never made.
    """
    give_up_at = clock.monotonic() + (0.0 if start.local else GONE_PATIENCE_S)
    is_said = False
    while True:
        try:
            return _look_for_run(start)
        except TakenOverError:
            raise
        except RunDirError as error:
            if clock.monotonic() >= give_up_at or _is_unknown(start):
                raise
            if not is_said:
                where = f"{error.where}: {error.message}"
                say(f"looking again for up to {GONE_PATIENCE_S:.0f} s, a mount may come back: {where}")
                is_said = True
        clock.sleep(FIRST_PAUSE_S)


def _is_unknown(start: Start) -> bool:
    """Tell whether a directory that was not submitted was never there; no mount is empty."""
    root = os.path.abspath(start.paths.root)
    if start.is_submitted or os.path.lexists(root):
        return False
    try:
        return bool(os.listdir(os.path.dirname(root)))
    except OSError:
        return False


def _look_for_run(start: Start) -> None:
    paths = start.paths
    if start.is_submitted:
        if start.array is not None:
            make_task(start.array, start.run_id.removesuffix(f"_{start.number}"), start.number)
        require_run(paths, start.run_id)
        return
    require_same_run(paths, "")
    if not os.path.isdir(paths.journal):
        raise RunDirError(
            "no agent has begun a run in it",
            where=f"run directory {paths.root}",
            fix="read the messages of srun above, and give finish and the agents the same directory",
        )


def log_size(paths: RunPaths, job_ref: str) -> int:
    """Return the size of the log of a job or of a task of an array [bytes], 0 if there is none."""
    try:
        return os.stat(_place(paths, job_ref)).st_size
    except OSError:
        return 0


def log_end(paths: RunPaths, job_ref: str, *, since: int = 0) -> str:
    """Return the end of the log of a job or of a task of an array, empty if it cannot be read.

    Args:
        paths: the run.
        job_ref: the job.
        since: where the wanted part begins [bytes]; earlier starts have written before that.
    """
    try:
        with os.fdopen(open_plain(_place(paths, job_ref)), "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - _END))
            return file.read(_END).decode(errors="replace")
    except OSError:
        return ""


def unrecorded_end(paths: RunPaths, job_ref: str) -> str:
    """Return the reason for which `finish` could not record its decision; empty if it has said none.

    Args:
        paths: the run.
        job_ref: the job; `finish` has said it in its log.
    """
    said = [line for line in log_end(paths, job_ref).splitlines() if _OF_FINISH in line]
    words = said[-1].partition(_OF_FINISH)[2] if said else ""
    return words.removeprefix(NOT_REQUEUED) if words.startswith(NOT_REQUEUED) else ""


def _place(paths: RunPaths, job_ref: str) -> str:
    return paths.batch_log.replace("%j", job_ref)


def is_full(error: StoreError | OSError) -> bool:
    """Tell whether a disk is full, or a quota spent."""
    return error.errno in _FULL


class Patience:
    """Tries the steps at the end of a job start until they work, or for too long.

    The time for which the shared directory cannot be used counts for all steps together, so that the end of
    a job is put off once. A full disk is waited for less long.

    Args:
        clock: paces the tries.
        say: gets one line about the retries and the reason.
        if_in_vain: the fate of the job if the shared directory stays away, for that line.
    """

    def __init__(self, clock: Clock, say: Say, if_in_vain: str = "") -> None:
        self._clock = clock
        self._say = say
        self._if_in_vain = if_in_vain
        self._away_s = 0.0  # so long the shared directory was of no use

    def __call__(
        self,
        act: Callable[[], _T],
        patience_s: float = PATIENCE_S,
        passing: type[HpcElasticError] = StoreError,
    ) -> _T:
        """Return the result of `act`.

        Args:
            act: is called again after a `StoreError`, an `OSError` or an error that may pass.
            patience_s: for how long [s].
            passing: such an error.

        Raises:
            UnfitFileError: a file is none of the run's; another try finds the same.
            HpcElasticError: the last error, after that time.
            TakenOverError: at once.
            OSError: the same, of the file system.
        """
        pause_s, began = FIRST_PAUSE_S, self._clock.monotonic()
        away_s, said = self._away_s, False
        while True:
            try:
                return act()
            except (TakenOverError, UnfitFileError):  # no file system that is away
                raise
            except (StoreError, OSError, passing) as error:
                left_s = self._left_s(error, patience_s, self._clock.monotonic() - began, away_s)
                if left_s <= 0:
                    raise
                if not said:
                    then = self._if_in_vain if isinstance(error, (StoreError, OSError)) else ""
                    why = " ".join(str(error).split())
                    self._say(f"trying again for up to {left_s:.0f} s{then}: {why}")
                    said = True
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _left_s(self, error: Exception, patience_s: float, waited_s: float, away_s: float) -> float:
        """Return for how long a step is tried on.

        Args:
            error: of the last try.
            patience_s: for errors of this kind [s].
            waited_s: since the step began [s].
            away_s: the waits for the shared directory in the steps before [s].
        """
        if not isinstance(error, (StoreError, OSError)):
            return patience_s - waited_s
        self._away_s = away_s + waited_s
        limit_s = FULL_PATIENCE_S if is_full(error) else patience_s
        return min(limit_s, patience_s) - self._away_s


def to_go_on(paths: RunPaths) -> str:
    """Return from where a run goes on: from the step that it has a checkpoint of, if it has marked one."""
    try:
        found = checkpoints.newest(paths)
    except (OSError, HpcElasticError):
        return "to go on"
    if found is None:
        return "to start it again (it has marked no checkpoint)"
    return f"to go on from the checkpoint of step {found.step}"


def same_script(root: str) -> str:
    """Return the way for a user's own job script to go on with a run.

    Args:
        root: its directory, quoted for a shell.
    """
    adopted = f"one that adopt has changed: {Env.RESUME}={root} sbatch SCRIPT"
    return f"the same job script again, with --run-dir {root}; {adopted}"


def resume_command(start: Start) -> str:
    """Return the command that starts a run again; one that `submit` did not make has no script to queue."""
    root = for_shell((array_of(start.paths) or start.paths).root)
    if not start.is_submitted and not os.path.exists(start.paths.identity):
        return f"submit {same_script(root)}"
    return f"hpc-elastic submit --resume {root}"


def look_first(start: Start) -> str:
    """Return the steps for a job or task of which it is not known whether Slurm starts it again."""
    command = resume_command(start) if start.task is None else f"scontrol requeue {start.job_ref}"
    return f"later: squeue -j {start.job_ref}; if it is not in the queue: {command}"
