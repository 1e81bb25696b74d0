"""Ending a run from outside: `stop` lets the workers save first, `cancel` does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum, auto

from hpc_elastic.clock import Clock, date_text
from hpc_elastic.errors import HpcElasticError, InputError, SlurmCommandError, SlurmError, SlurmNotFoundError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import CANCELLED_CODE, LOGIN
from hpc_elastic.meet.membership import RUN_ID
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Role,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log
from hpc_elastic.record.state import RunState, has_ended
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.may_start import first_to_do
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, job_ids, read_run
from hpc_elastic.slurm.run_jobs.script_tasks import begun_tasks, is_array_of_script
from hpc_elastic.slurm.run_jobs.signs_of_life import may_live, silent_for
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.text import for_shell

DRAIN_PATIENCE_S = 300.0  # how long `stop` waits for a drain that is under way for another reason
_LOOK_S = 0.5


class StopStep(Enum):
    """The next step of `stop`."""

    ENDED = auto()  # the run has ended
    ASKED = auto()  # it was asked already
    ASK = auto()  # workers run: ask them to save and stop
    WAIT = auto()  # they are stopping for another reason; then the run is ended
    END = auto()  # no worker runs: end the run as it is


def stop_step(state: RunState, submission: int, job: JobFacts | None, *, is_silent: bool = False) -> StopStep:
    """Choose the next step of `stop`. Pure.

    Args:
        state: by the records.
        submission: number of the newest submission, -1 without one.
        job: Slurm's facts; None if it was not asked or does not answer.
        is_silent: its agents have given no sign of life for long.
    """
    is_current = state.epoch.submission >= submission
    if is_current and has_ended(state):
        return StopStep.ENDED
    if not is_current or state.ending is not None or is_silent or _has_no_agents(state, job):
        return StopStep.END
    if drain_cause(state) in USERS_WISH:
        return StopStep.ASKED
    if state.drained is not None:
        return StopStep.END
    if state.leaving:
        return StopStep.WAIT
    return StopStep.ASK if state.running is not None else StopStep.END


def _has_no_agents(state: RunState, job: JobFacts | None) -> bool:
    """Tell whether Slurm knows that no agent of the newest start that left records runs."""
    if job is None:
        return False
    return not _runs(job) or job.restarts > state.epoch.restart


def _runs(job: JobFacts) -> bool:
    return job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


def end_tasks(
    paths: RunPaths, slurm: Slurm, end: Callable[[RunPaths], None], say: Callable[[str], None]
) -> None:
    """End the runs of the tasks of an array that have begun and not ended; a run of another kind has none.

    The tasks that wait are taken out of Slurm first: one would start in the place of another that ends. A
    task that cannot be ended, as it has ended by itself meanwhile, keeps no other one running.

    Args:
        paths: the run.
        slurm: Slurm's commands.
        end: ends the run of a task.
        say: prints a line.

    Raises:
        InputError: all tasks of the array have ended, and Slurm has none left.
    """
    if not is_array_of_script(paths):
        return
    array = read_run(paths)
    has_live = any(map(_may_go_on, begun_tasks(paths)))
    job = None if has_live or array.state.ending is not None else ask_job(array, slurm).job
    if job is not None and job.state is JobState.ENDED:
        fix = f"to run those again that are not done: {array.command_to_go_on}"
        raise InputError("the tasks of the array have ended already", where="RUN", fix=fix)
    try:
        slurm.cancel_waiting(array.job_id)
    except SlurmError as error:
        say(f"the tasks of array {array.job_id} that wait could not be cancelled: {error}")
    for task in begun_tasks(paths):
        try:
            if not has_ended(read_run(task).state):
                end(task)
        except HpcElasticError as error:
            say(f"{task.name}: {error}")


def _may_go_on(task: RunPaths) -> bool:
    """Tell whether a task has not ended by its records, or they cannot be read."""
    try:
        return not has_ended(read_run(task).state)
    except HpcElasticError:
        return True


class EndRun:
    """Ends a run.

    For the directory of an array of a user's own job script, whose tasks have runs of their own, it takes all
    of its tasks out of Slurm: those that have begun are to be ended before.

    Args:
        paths: the files of the run.
        slurm: Slurm's commands; they may be missing.
        clock: paces waiting.
        say: prints a line.
    """

    def __init__(self, paths: RunPaths, slurm: Slurm, clock: Clock, say: Callable[[str], None]) -> None:
        self._slurm = slurm
        self._clock = clock
        self._say = say
        self._silent_s: float | None = None  # for how long no agent has given a sign of life
        self._run: RunFiles = read_run(paths)
        self._log = open_log(paths, LOGIN, Role.COMMAND)
        self._log.refresh()

    def stop(self) -> None:
        """Have the workers save and stop at one step; the job then ends and is not requeued.

        Raises:
            InputError: the run has ended, nothing was ever started, or its agents hear no stop.
        """
        self._refuse_unstarted()
        self._refuse_foreign()
        self._find_job()
        give_up_at = self._clock.monotonic() + DRAIN_PATIENCE_S
        told = False
        while True:
            step = self._next_step()
            if step is StopStep.WAIT and self._clock.monotonic() < give_up_at:
                if not told:
                    self._say("the workers are stopping already; waiting for them, then the run is ended")
                    told = True
                self._clock.sleep(_LOOK_S)
                continue
            return self._carry_out(step)

    def _next_step(self) -> StopStep:
        state = self._log.refresh()
        job = ask_job(self._run, self._slurm).job
        if may_live(job):
            self._silent_s = silent_for(read_run(self._run.paths), self._clock, self._say)
        return stop_step(state, self._run.submission, job, is_silent=self._silent_s is not None)

    def _carry_out(self, step: StopStep) -> None:
        match step:
            case StopStep.ENDED:
                raise self._has_ended()
            case StopStep.ASKED:
                state = self._log.state
                does = "its workers have not ended yet" if state.never_asks else "its workers are saving"
                does = does if state.drained is None else "its workers have ended, and its job ends"
                self._say(f"the run was asked to stop already; {does}")
            case StopStep.WAIT:
                raise InputError(
                    "the workers do not come to an end",
                    where="stop",
                    fix=f"end them without saving: hpc-elastic cancel {for_shell(self._run.paths.root)}",
                )
            case StopStep.ASK if self._run.is_script:
                self._end(Decision.STOPPED, ExitCode.OK, "hpc-elastic stop")
                self._say("the job script gets SIGTERM, and SIGKILL after KillWait of Slurm, 30 s by default")
                self._cancel_job(only_waiting=False)
            case StopStep.ASK:
                self._ask_workers()
            case StopStep.END:
                was_held = self._log.state.ending is not None
                silent = self._silent_text()
                self._end(Decision.STOPPED, ExitCode.OK, silent or self._without_workers())
                why = silent or "no workers run"
                is_array = is_array_of_script(self._run.paths)
                as_it_is = f"{why}, so there is nothing to save and the run is stopped as it is"
                self._say("the tasks of the array are stopped" if is_array else as_it_is)
                leaves_alone = not (self._log.state.drained or was_held or silent or is_array)
                self._cancel_job(only_waiting=leaves_alone)

    def _without_workers(self) -> str:
        """Tell that nothing was there to save; those of earlier rounds have ended before."""
        return "its workers had ended" if self._log.state.rounds else "no workers ran"

    def _silent_text(self) -> str:
        silent_s = self._silent_s
        return "" if silent_s is None else f"no agent has given a sign of life for {silent_s:.0f} s"

    def _ask_workers(self) -> None:
        asked = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
        state = self._write(asked)
        if state.ending is not None:
            raise self._has_ended()
        self._say("the workers are asked to save and stop; the job then ends and is not requeued")

    def cancel(self) -> None:
        """End the run at once; steps that were not saved are lost.

        Raises:
            InputError: the run has ended and its job is gone, or nothing was ever started.
            SlurmCommandError: scancel failed.
        """
        self._refuse_unstarted()
        self._find_job()
        state = self._log.refresh()
        if state.epoch.submission >= self._run.submission and state.ending is not None and has_ended(state):
            job = ask_job(self._run, self._slurm).job
            if self._run.is_local or job is None or not job.state.is_active:
                raise self._has_ended()
            self._say(f"the run has ended ({state.ending.decision.value}), its job is still there")
        else:
            self._end(Decision.CANCELLED, CANCELLED_CODE, "by hpc-elastic cancel")
            self._say("the run is cancelled")
        self._cancel_job(only_waiting=False)

    def _refuse_unstarted(self) -> None:
        if not self._run.submissions and not self._run.records:
            raise InputError(
                f"nothing was ever started in {self._run.paths.root}",
                where="RUN",
                fix=f"{self._run.command_to_go_on}, or remove the directory",
            )

    def _find_job(self) -> None:
        """Ask Slurm for the job of a submission that was killed before it could write down which it is."""
        run = self._run
        if not run.submissions or run.submissions[-1].job_id:
            return
        newest = run.submissions[-1]
        try:
            found = self._slurm.jobs_with_comment(newest.token)
        except SlurmError as error:
            self._say(f"Slurm cannot be asked whether the job of this run was queued: {error}")
            return
        if found:
            time = date_text(self._clock.wall())
            submissions.record(run.paths, Submission(newest.number, newest.token, found[0], time))
            self._run = read_run(run.paths)

    def _refuse_foreign(self) -> None:
        paths = self._run.paths
        if not self._run.submissions and os.path.exists(os.path.join(paths.nodes, RUN_ID)):
            raise InputError(
                f"the agents in {paths.root} are not of hpc-elastic, but torchrun's, and hear no stop",
                where="RUN",
                fix="scancel their job; to have it save and stop: hpc-elastic adopt its script",
            )

    def _has_ended(self) -> InputError:
        ending = self._log.state.ending
        how = (
            ""
            if ending is None
            else f": {ending.decision.value}" + (f" ({ending.reason})" if ending.reason else "")
        )
        if ending is not None and ending.decision is Decision.DONE:
            fix = "there is nothing left to end"
        else:
            run, job = self._run, ask_job(self._run, self._slurm).job
            fix = f"to run it again: {run.command_to_go_on}"
            if job is not None and job.state.is_active:
                fix = f"to run it again: {first_to_do(run.job_id, job.state)}, then {run.command_to_go_on}"
        return InputError(f"the run has ended already{how}", where="RUN", fix=fix)

    def _end(self, decision: Decision, code: int, reason: str) -> None:
        """Write the ending; of a submission that has no record yet the start is written first.

        An ending without a start would be taken for that of the submission before.
        """
        run = self._run
        if self._log.state.epoch.submission < run.submission:
            self._write(EpochStarted(Epoch(run.submission, 0, 0, 0), run.job_id, ()))
        self._write(RunEnded(decision, code, reason, None))

    def _write(self, entry: Entry) -> RunState:
        return self._log.commit(lambda _state: entry)

    def _cancel_job(self, *, only_waiting: bool) -> None:
        """Take the job out of Slurm.

        Args:
            only_waiting: leave a job that runs alone; its agents end by the record.
        """
        run = self._run
        if run.is_local or not run.job_id:
            return
        asked = ask_job(run, self._slurm)
        if asked.job is not None and (not asked.job.state.is_active or (only_waiting and _runs(asked.job))):
            return
        try:
            for job_id in (*run.successors, *job_ids(run, self._slurm)):
                self._slurm.cancel(job_id)
                self._say(f"job {job_id} is cancelled")
        except SlurmNotFoundError:
            self._say(
                f"Slurm is not here to take job {run.job_id} away; on a login node: scancel {run.job_id}"
            )
        except SlurmCommandError as error:
            self._say(f"job {run.job_id} could not be cancelled: {error}\n  fix: scancel {run.job_id}")
