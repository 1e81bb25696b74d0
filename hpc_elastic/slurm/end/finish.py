"""The end of a job start: gathers what is known, lets `lifecycle` decide, carries it out."""

from __future__ import annotations

import os

from hpc_elastic import ids
from hpc_elastic.clock import date_text
from hpc_elastic.errors import (
    RunDirError,
    SlurmCommandError,
    SlurmNotFoundError,
    TakenOverError,
)
from hpc_elastic.ids import ExitCode
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    EpochStarted,
    Record,
    Requeued,
    RunEnded,
)
from hpc_elastic.record.progress import BEGINNING, trained
from hpc_elastic.record.run_directory import require_run, require_same_run
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.job_standing import due_to
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end import lifecycle, requeue, setup_failure
from hpc_elastic.slurm.end.chain import Successors
from hpc_elastic.slurm.end.lifecycle import (
    Choice,
    Exit,
    Facts,
    Hold,
    JobFacts,
    Leave,
    Relaunch,
    Requeue,
    Resubmit,
    Standing,
)
from hpc_elastic.slurm.end.requeue import HandedBack, RequeueOutcome, last_line
from hpc_elastic.slurm.end.saves_text import saves_text, short_time_text
from hpc_elastic.slurm.end.script_end import ScriptEnd
from hpc_elastic.slurm.run_jobs.job_start import Ended, with_own_submission
from hpc_elastic.slurm.run_jobs.resume_hint import look_first, resume_command, to_go_on
from hpc_elastic.slurm.run_jobs.retry import FIRST_PAUSE_S, GONE_PATIENCE_S, PATIENCE_S
from hpc_elastic.store import files


def _has_files(directory: str) -> bool:
    try:
        return bool(os.listdir(directory))
    except OSError:
        return False


class Finish(ScriptEnd):
    """Ends one start of the job."""

    def run(self) -> Ended:
        """Decide and carry out.

        Raises:
            TakenOverError: another directory is in the place of the run's, or others can write to it.
            RunDirError: the run directory is gone, or was never made.
            StoreError: the run directory cannot be read or written for minutes.
            RendezvousStateError: a record of the run is damaged.
        """
        self._patiently(self._require_run)
        records = self._patiently(lambda: read_records(self._start.paths))
        if not self._start.is_submitted:
            self._start = with_own_submission(self._start, records)
        state = self._patiently(self._log.refresh)
        job = self._local_job() if self._start.local else self._ask_slurm(requeue.PATIENCE_S)
        facts = self._facts(state, job, records)
        choice = lifecycle.decide(facts, self._budgets)
        if isinstance(choice, Requeue | Resubmit | Leave) and facts.without_save:
            limit = self._budgets.max_starts_without_save
            self._say(saves_text(facts.state.progress, facts.saved, limit))
        limit_s = None if job is None else job.granted_s
        if isinstance(choice, Requeue | Resubmit) and (short := short_time_text(trained(records), limit_s)):
            self._say(short)
        ended = self._carry_out(choice, records)
        if ended.state.ending is not None and ended.state.ending.decision is not Decision.HELD:
            self._successors().cancel()
        return ended

    def _successors(self) -> Successors:
        return Successors(self._start, self._slurm, self._clock, self._say)

    def _facts(self, state: RunState, job: JobFacts | None, records: list[Record]) -> Facts:
        start, self._failure = self._start, self._failure_in_words()
        ends = [record.at for record in records if isinstance(record.entry, RunEnded)]
        return Facts(
            state=state,
            epoch=start.epoch,
            job=job,
            job_id=start.job_ref,
            srun_exit_code=start.srun_exit_code,
            in_vain=lifecycle.starts_in_vain(records, start.epoch),
            ended_by=self._ended_by(),
            launch_failure=self._failure,
            earlier=setup_failure.earlier_starts(records, start.epoch, start.launch_failure),
            told=self._told(job),
            chain=self._patiently(lambda: self._successors().chain(start.chain)),
            local=start.local,
            has_script=os.path.exists(start.paths.script),
            ended_since=date_text(ends[-1]) if ends else "",
            saved=newest_step(start.paths, BEGINNING),
        )

    def _told(self, job: JobFacts | None) -> Cause | None:
        """Return why Slurm has put the job back into the queue; only then anybody is asked."""
        if job is None or self._start.local or job.warned:
            return None
        if lifecycle.standing(job, self._start.restarts) is not Standing.REQUEUED:
            return None
        return due_to(self._batch_log()) or (Cause.NODE_LOSS if self._has_down_node() else None)

    def _has_down_node(self) -> bool:
        try:
            nodes = self._start.node_list
            return bool(nodes) and self._slurm.has_down_node(nodes)
        except (SlurmCommandError, SlurmNotFoundError):
            return False

    def _require_run(self) -> None:
        """Check that the run is there; nothing that was lost is made again."""
        give_up_at = self._clock.monotonic() + (0.0 if self._start.local else GONE_PATIENCE_S)
        is_told = False
        while True:
            try:
                return self._look_for_run()
            except TakenOverError:
                raise
            except RunDirError as error:
                if self._clock.monotonic() >= give_up_at or self._is_unknown():
                    raise
                if not is_told:
                    what = f"{error.where}: {error.message}"
                    self._say(
                        f"looking again for up to {GONE_PATIENCE_S:.0f} s, a mount may come back: {what}"
                    )
                    is_told = True
            self._clock.sleep(FIRST_PAUSE_S)

    def _is_unknown(self) -> bool:
        """Tell whether a directory that nobody has submitted was never there; no mount is empty."""
        root = os.path.abspath(self._start.paths.root)
        return (
            not self._start.is_submitted and not os.path.lexists(root) and _has_files(os.path.dirname(root))
        )

    def _look_for_run(self) -> None:
        paths = self._start.paths
        if self._start.is_submitted:
            require_run(paths, self._start.run_id)
            return
        require_same_run(paths, "")
        if not os.path.isdir(paths.journal):
            raise RunDirError(
                "no agent has begun a run in it",
                where=f"run directory {paths.root}",
                fix="see what srun has said above, and give finish and the agents the same directory",
            )

    def _ended_by(self) -> str:
        """Return the name of the signal that ended the local runner above this script, if one did."""
        data = files.read(self._start.end_file) if self._start.end_file else None
        return (data or b"").decode(errors="replace")

    def _carry_out(self, choice: Choice, records: list[Record]) -> Ended:
        self._say(choice.why)
        match choice:
            case Exit(code, _, record):
                return self._exit(code, record)
            case Relaunch(nodes, why):
                self._note_down(self._start.epoch, why)
                return self._relaunch(nodes, paces=not self._start.local)
            case Hold(reason, record):
                return self._hold(reason, record)
            case Leave():
                return self._leave(choice, records)
            case Requeue(cause) | Resubmit(cause):
                self._record_requeue(cause, records, choice)
                refused = "" if isinstance(choice, Requeue) else "Slurm may not requeue the job"
                if refused:  # before that nobody has waited for slurmctld
                    return self._resubmit(refused, requeue.PATIENCE_S)
                return self._requeue(cause)

    def _leave(self, choice: Leave, records: list[Record]) -> Ended:
        if choice.requeued is not None:
            self._record_requeue(choice.requeued, records, choice)
        if choice.is_open:
            self._say(look_first(self._start))
            self._note_down(self._start.epoch, f"{choice.why}; {look_first(self._start)}")
        return self._ended(choice.code)

    def _begin(self) -> None:
        self._write(EpochStarted(self._start.epoch, self._start.job_ref, ()))

    def _exit(self, code: int, record: RunEnded | None) -> Ended:
        return self._ended(self._end_as(code, record))

    def _requeue(self, cause: Cause) -> Ended:
        """Hand the job back; doing it twice does no harm."""
        if self._start.local:
            return self._ended(ExitCode.REQUEUE)
        handed = self._hand_back().requeue()
        if handed.outcome is RequeueOutcome.REFUSED and self._may_resubmit(cause):
            self._say(f"Slurm does not requeue the job ({last_line(handed.words)}), so it is submitted again")
            return self._resubmit(last_line(handed.words))
        return self._after(handed, "requeue")

    def _after(self, handed: HandedBack, act: str) -> Ended:
        if handed.outcome is RequeueOutcome.DONE:
            return self._ended(ExitCode.REQUEUE)
        if handed.outcome is RequeueOutcome.CANCELLED:
            self._say("the job was cancelled meanwhile")
            code = ids.CANCELLED_CODE
            return self._exit(code, RunEnded(Decision.CANCELLED, code, "the job was cancelled", None))
        self._say(f"Slurm does not {act} the job: {handed.words}")
        reason = f"Slurm did not {act} the job: {last_line(handed.words)}"
        return self._exit(ExitCode.FAILED, RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None))

    def _may_resubmit(self, cause: Cause) -> bool:
        has_script = os.path.exists(self._start.paths.script)
        return self._budgets.resubmits and has_script and cause is not Cause.CANCEL

    def _resubmit(self, refusal: str, patience_s: float = PATIENCE_S) -> Ended:
        """Submit the script again as a further job of this submission."""
        job_id = self._submitted(self._successors().resubmit, patience_s)
        if isinstance(job_id, Exception):
            return self._after(HandedBack(RequeueOutcome.REFUSED, f"{refusal}; sbatch: {job_id}"), "requeue")
        self._say(f"the run goes on as job {job_id}")
        return self._ended(ExitCode.REQUEUE)

    def _hold(self, reason: str, record: RunEnded | None) -> Ended:
        if record is not None:
            ended = self._exit(ExitCode.REQUEUE, record)
            if ended.state.ending is None or ended.state.ending.decision is not Decision.HELD:
                return ended
        handed = self._hand_back().hold(reason)
        if handed.outcome is RequeueOutcome.DONE:
            self._say(f"the job waits in the queue; to go on: scontrol release {self._start.job_ref}")
        elif handed.outcome is RequeueOutcome.CANCELLED:
            return self._after(handed, "hold")
        else:
            self._say(f"Slurm does not hold the job, which ends: {last_line(handed.words)}")
            self._say(f"{to_go_on(self._start.paths)}: {resume_command(self._start)}")
        return self._ended(ExitCode.REQUEUE)

    def _record_requeue(
        self, cause: Cause, records: list[Record], choice: Requeue | Resubmit | Leave
    ) -> None:
        back = [record.entry for record in records if isinstance(record.entry, Requeued)]
        if any(entry.epoch.script == self._start.epoch.script for entry in back):
            return
        self._begin()
        failure = self._failure if cause is Cause.LAUNCH_FAILURE else None
        reason = choice.why if isinstance(choice, Leave) else choice.reason
        self._write(Requeued(self._start.epoch, cause, reason, failure, choice.signal))

    def _local_job(self) -> JobFacts:
        return JobFacts(
            JobState.RUNNING,
            "RUNNING",
            "None",
            self._start.restarts,
            may_requeue=True,
            nodes=self._start.nodes,
            preempted=False,
        )
