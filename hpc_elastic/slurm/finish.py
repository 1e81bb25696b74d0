"""The end of a job start: gathers what is known, lets `lifecycle` decide, carries it out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    HpcElasticError,
    RunDirError,
    SlurmCommandError,
    SlurmNotFoundError,
    StoreError,
)
from hpc_elastic.ids import Env, ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.journal import (
    Cause,
    Decision,
    Entry,
    Epoch,
    EpochStarted,
    Record,
    Requeued,
    RunEnded,
)
from hpc_elastic.rendezvous.run_directory import require_run
from hpc_elastic.rendezvous.run_log import RunLog, open_log, read_records
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.slurm import lifecycle
from hpc_elastic.slurm.commands import Slurm
from hpc_elastic.slurm.environment import job_ref
from hpc_elastic.slurm.lifecycle import (
    Budgets,
    Choice,
    Exit,
    Facts,
    JobFacts,
    Leave,
    Relaunch,
    Requeue,
    Standing,
)
from hpc_elastic.slurm.parse import JobState
from hpc_elastic.store import files

LOCAL = "HPC_ELASTIC_LOCAL"  # set by the runner that plays Slurm on one machine
LOCAL_END = "HPC_ELASTIC_LOCAL_END"  # file with the name of the signal that has ended that runner
GONE_PATIENCE_S = 30.0  # for a run directory that is not there: a mount may come back
PATIENCE_S = 300.0  # for slurmctld and for the shared directory; a failover takes minutes
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_RELAUNCH_PAUSE_S = 2.0

Say = Callable[[str], None]
_T = TypeVar("_T")


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

    @classmethod
    def from_environ(
        cls, paths: RunPaths, environ: Mapping[str, str], *, relaunch: int, srun_exit_code: int
    ) -> Start:
        """Read the environment of the batch script."""
        epoch = Epoch(_count(environ, Env.SUBMISSION), _count(environ, "SLURM_RESTART_COUNT"), relaunch)
        return cls(
            paths=paths,
            epoch=epoch,
            job_ref=job_ref(environ) or "",
            nodes=_count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES"),
            local=bool(environ.get(LOCAL)),
            srun_exit_code=srun_exit_code,
            is_submitted=Env.SUBMISSION in environ,
            end_file=environ.get(LOCAL_END, ""),
        )


class Ended(NamedTuple):
    """What the batch script is to do, and what became of the run."""

    code: int
    nodes: int  # for another srun; 0 unless the code says so
    state: RunState


def _with_own_submission(start: Start, records: list[Record]) -> Start:
    """Return the start with the submission that its agents took; each job that takes up a run is one."""
    mine = [
        record.entry.epoch.submission
        for record in records
        if isinstance(record.entry, EpochStarted) and record.entry.job_id == start.job_ref
    ]
    return start._replace(epoch=start.epoch._replace(submission=mine[-1])) if mine else start


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else 0


class Finish:
    """Ends one start of the job.

    Args:
        start: the start.
        budgets: how often each way to go on may be taken.
        slurm: Slurm's commands.
        clock: paces retries.
        say: prints a line for the batch log.
    """

    def __init__(self, start: Start, budgets: Budgets, slurm: Slurm, clock: Clock, say: Say) -> None:
        self._start = start
        self._budgets = budgets
        self._slurm = slurm
        self._clock = clock
        self._say = say
        self._log: RunLog = open_log(start.paths, "batch")

    def run(self) -> Ended:
        """Decide and carry out.

        Raises:
            RunDirError: the run directory is gone, or was never made.
            StoreError: the run directory cannot be read or written for minutes.
            RendezvousStateError: a record of the run is damaged.
        """
        self._patiently(self._require_run)
        records = self._patiently(lambda: read_records(self._start.paths))
        if not self._start.is_submitted:
            self._start = _with_own_submission(self._start, records)
        state = self._patiently(self._log.refresh)
        job = self._local_job() if self._start.local else self._ask_slurm()
        facts = Facts(
            state=state,
            epoch=self._start.epoch,
            job=job,
            job_id=self._start.job_ref,
            srun_exit_code=self._start.srun_exit_code,
            in_vain=lifecycle.starts_in_vain(records, self._start.epoch),
            ended_by=self._ended_by(),
        )
        return self._carry_out(lifecycle.decide(facts, self._budgets), records)

    def _require_run(self) -> None:
        """Check that the run is there; nothing that was lost is made again."""
        give_up_at = self._clock.monotonic() + (0.0 if self._start.local else GONE_PATIENCE_S)
        while True:
            try:
                return self._look_for_run()
            except RunDirError:
                if self._clock.monotonic() >= give_up_at:
                    raise
            self._clock.sleep(_FIRST_PAUSE_S)

    def _look_for_run(self) -> None:
        paths = self._start.paths
        if self._start.is_submitted:
            require_run(paths)
        elif not os.path.isdir(paths.journal):
            raise RunDirError(
                "no agent has begun a run in it",
                where=f"run directory {paths.root}",
                fix="see what srun has said above, and give finish and the agents the same directory",
            )

    def _ended_by(self) -> str:
        """Return the name of the signal that ended the local runner above this script, if one did."""
        data = files.read(self._start.end_file) if self._start.end_file else None
        return (data or b"").decode()

    def _carry_out(self, choice: Choice, records: list[Record]) -> Ended:
        self._say(choice.why)
        match choice:
            case Exit(code, _, record):
                return self._exit(code, record)
            case Relaunch(nodes):
                if not self._start.local:
                    self._clock.sleep(_RELAUNCH_PAUSE_S * 2**self._start.epoch.relaunch)
                return Ended(ExitCode.RELAUNCH, nodes, self._log.state)
            case Requeue(cause):
                self._record_requeue(cause, records)
                return self._requeue()
            case Leave(code, _, requeued):
                if requeued is not None:
                    self._record_requeue(requeued, records)
                return Ended(code, 0, self._log.state)

    def _exit(self, code: int, record: RunEnded | None) -> Ended:
        if record is not None:
            self._write(EpochStarted(self._start.epoch, self._start.job_ref, ()))  # if no agent came to do it
            ending = self._write(record).ending
            if ending is not None and ending != record:  # somebody else ended the run first
                code = ending.exit_code
        return Ended(code, 0, self._log.state)

    def _requeue(self) -> Ended:
        """Hand the job back; doing it twice does no harm."""
        if self._start.local:
            return Ended(ExitCode.REQUEUE, 0, self._log.state)
        pause_s, give_up_at = _FIRST_PAUSE_S, self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                self._slurm.requeue(self._start.job_ref)
                return Ended(ExitCode.REQUEUE, 0, self._log.state)
            except (SlurmCommandError, SlurmNotFoundError) as error:
                words = str(error)
            stands = lifecycle.standing(self._ask_slurm(patience_s=0), self._start.epoch.restart)
            if stands is Standing.REQUEUED:
                return Ended(ExitCode.REQUEUE, 0, self._log.state)
            if stands is Standing.CANCELLED:
                self._say("the job was cancelled meanwhile")
                reason = "the job was cancelled"
                return self._exit(
                    lifecycle.CANCELLED_CODE,
                    RunEnded(Decision.CANCELLED, lifecycle.CANCELLED_CODE, reason, None),
                )
            if self._clock.monotonic() >= give_up_at:
                self._say(f"Slurm does not requeue the job: {words}")
                reason = f"Slurm did not requeue the job: {words.splitlines()[-1]}"
                return self._exit(ExitCode.FAILED, RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None))
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _record_requeue(self, cause: Cause, records: list[Record]) -> None:
        mine = self._start.epoch[:2]
        if any(isinstance(record.entry, Requeued) and record.entry.epoch[:2] == mine for record in records):
            return
        self._write(EpochStarted(self._start.epoch, self._start.job_ref, ()))  # if no agent came to do it
        self._write(Requeued(self._start.epoch, cause))

    def _write(self, entry: Entry) -> RunState:
        return self._patiently(lambda: self._log.commit(lambda _state: entry))

    def _local_job(self) -> JobFacts:
        return JobFacts(
            JobState.RUNNING,
            "RUNNING",
            "None",
            self._start.epoch.restart,
            may_requeue=True,
            nodes=self._start.nodes,
            preempted=False,
        )

    def _ask_slurm(self, patience_s: float = PATIENCE_S) -> JobFacts | None:
        """Return what Slurm says about the job, None if it says nothing for minutes."""

        def ask() -> JobFacts | None:
            fields = self._slurm.show_job(self._start.job_ref)
            return None if fields is None else lifecycle.job_facts(fields)

        try:
            return self._patiently(ask, patience_s)
        except (SlurmCommandError, SlurmNotFoundError) as error:
            self._say(f"scontrol tells nothing about job {self._start.job_ref}: {error}")
            return None

    def _patiently(self, act: Callable[[], _T], patience_s: float = PATIENCE_S) -> _T:
        """Return what `act` returns; try again for a while when the file system or Slurm fails."""
        pause_s, give_up_at = _FIRST_PAUSE_S, self._clock.monotonic() + patience_s
        said = False
        while True:
            try:
                return act()
            except (StoreError, SlurmCommandError) as error:
                if self._clock.monotonic() >= give_up_at:
                    raise
                if not said:
                    self._say(f"trying again for up to {patience_s:.0f} s: {_one_line(error)}")
                    said = True
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _one_line(error: HpcElasticError) -> str:
    return " ".join(str(error).split())
