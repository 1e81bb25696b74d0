"""One start of a job, as its batch script knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Epoch, EpochStarted, Record, SetupFailure
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.environment import job_ref, task_start
from hpc_elastic.typed_json import whole_number

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
    is_submitted: bool = False  # the directory must hold what `submit` has put there
    end_file: str = ""  # see LOCAL_END
    task: TaskStart | None = None  # in array mode, where it is that of one task
    node_list: str = ""  # the nodes of the allocation as it was at the start, as Slurm writes them
    chain: int = 0  # jobs of the chain that this one belongs to; 0: it is in none
    launch_failure: SetupFailure | None = None  # the line of the job script that failed before srun
    run_id: str = ""  # name of the run that the script was made for

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
        submission, link = _count(environ, Env.SUBMISSION), _count(environ, Env.LINK)
        epoch = Epoch(submission, link, _count(environ, "SLURM_RESTART_COUNT"), relaunch)
        return cls(
            paths=paths,
            epoch=epoch,
            job_ref=job_ref(environ) or "",
            nodes=_count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES"),
            local=bool(environ.get(LOCAL)),
            srun_exit_code=srun_exit_code,
            is_submitted=Env.SUBMISSION in environ,
            end_file=environ.get(LOCAL_END, ""),
            node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or "",
            task=task._replace(relaunch=relaunch) if task is not None else None,
            run_id=environ.get(Env.RUN_ID, "") if Env.SUBMISSION in environ else "",
        )


class Ended(NamedTuple):
    """What the batch script is to do, and what became of the run."""

    code: int
    nodes: int  # for another srun; 0 unless the code says so
    state: RunState
    next_job: str = ""  # what was queued to go on in the place of a task


def with_own_submission(start: Start, records: list[Record]) -> Start:
    """Return the start with the submission that its agents took; each job that takes up a run is one."""
    mine = [
        record.entry.epoch.submission
        for record in records
        if isinstance(record.entry, EpochStarted) and record.entry.job_id == start.job_ref
    ]
    return start._replace(epoch=start.epoch._replace(submission=mine[-1])) if mine else start


def _count(environ: Mapping[str, str], name: str) -> int:
    return whole_number(environ.get(name, "")) or 0
