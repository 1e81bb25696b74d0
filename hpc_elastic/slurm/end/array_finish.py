"""The end of one task of an array: gathers what is known, lets `array_lifecycle` decide, carries it out."""

from __future__ import annotations

import os
import shlex

from hpc_elastic.clock import Clock
from hpc_elastic.errors import RunDirError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.ids import ExitCode
from hpc_elastic.record.array_task import TaskStart, epoch_now, is_newer
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    DrainRequested,
    EpochStarted,
    Record,
    Requeued,
    RunEnded,
    StopKind,
    Then,
)
from hpc_elastic.record.member_names import parse_name
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.run_directory import require_run
from hpc_elastic.record.run_log import read_records
from hpc_elastic.slurm.client.array_tasks import SlurmTask, arrays_of
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end import array_lifecycle, array_records, requeue
from hpc_elastic.slurm.end.array_lifecycle import GiveUp, Others, SaveFirst, TaskChoice, TaskFacts
from hpc_elastic.slurm.end.lifecycle import (
    Exit,
    Hold,
    Leave,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
    failed,
)
from hpc_elastic.slurm.end.requeue import RequeueOutcome, last_line
from hpc_elastic.slurm.end.saves_text import saves_text
from hpc_elastic.slurm.end.script_end import ScriptEnd
from hpc_elastic.slurm.end.setup_failure import earlier_starts
from hpc_elastic.slurm.job.values import parse_nodes
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Ended, Say, Start
from hpc_elastic.slurm.run_jobs.retry import GONE_PATIENCE_S, PATIENCE_S
from hpc_elastic.slurm.run_jobs.run_files import stored_spec
from hpc_elastic.store import files
from hpc_elastic.text import count_text

ASIDE_PATIENCE_S = 60.0  # for what is only asked about the other tasks

_SLURM = (SlurmCommandError, SlurmNotFoundError)


class ArrayFinish(ScriptEnd):
    """Ends one start of one task.

    Args:
        start: the start; it has a task.
        budgets: how often each way to go on may be taken.
        slurm: Slurm's commands.
        clock: paces retries.
        say: prints a line for the batch log.
    """

    def __init__(self, start: Start, budgets: RequeueBudgets, slurm: Slurm, clock: Clock, say: Say) -> None:
        if start.task is None:
            raise ValueError("this is no task of an array")
        super().__init__(start, budgets, slurm, clock, say)
        self._task: TaskStart = start.task
        self._submission = start.epoch.submission

    def run(self) -> Ended:
        """Decide and carry out.

        Raises:
            RunDirError: the run directory is gone, or was never made.
            StoreError: the run directory cannot be read or written for minutes.
            RendezvousStateError: a record of the run is damaged.
        """
        if self._start.is_submitted:
            run_id = self._start.run_id
            self._patiently(lambda: require_run(self._paths, run_id), GONE_PATIENCE_S, RunDirError)
        records = self._patiently(lambda: read_records(self._paths))
        state = self._patiently(self._log.refresh)
        outdated = self._patiently(self._is_outdated)
        known = outdated or state.ending is not None
        self._failure = self._failure_in_words()
        facts = TaskFacts(
            state=state,
            start=self._task,
            submission=self._submission,
            job=None if known else self._ask_slurm(PATIENCE_S),
            others=None if known else self._others(records),
            srun_exit_code=self._start.srun_exit_code,
            left=array_records.goodbye_of(records, self._task),
            launch_failure=self._failure,
            earlier=earlier_starts(records, epoch_now(state, self._submission), self._start.launch_failure),
            is_outdated=outdated,
            in_vain=array_records.starts_in_vain(records, self._task),
            least=self._least(),
            link=self._start.link,
            saved=newest_step(self._paths, BEGINNING),
            may_resubmit=self._may_resubmit(records),
        )
        choice = array_lifecycle.decide(facts, self._budgets)
        progress = state.progress
        if isinstance(choice, Requeue | Resubmit | Leave) and (progress.stops or progress.silent):
            limit = self._budgets.max_starts_without_save
            if text := saves_text(progress._replace(began=None, in_vain=0), facts.saved, limit):
                self._say(text)
        self._say(choice.why)
        return self._carry_out(choice, records)

    def _carry_out(self, choice: TaskChoice, records: list[Record]) -> Ended:
        match choice:
            case Exit(code, _, record):
                return self._end_run(code, record)
            case Leave(code, why, _, is_open):
                if is_open:
                    self._tell(f"{why}; {self._look_first}")
                return self._ended(code)
            case Relaunch(nodes, why):
                self._tell(why)
                return self._relaunch(nodes)
            case Requeue(cause):
                self._explain(cause, choice.why)
                self._record_requeue(cause, records)
                return self._requeue(records)
            case Resubmit(cause):
                self._record_requeue(cause, records)
                return self._resubmit("Requeue=0", records, requeue.PATIENCE_S)
            case _:
                return self._stay_out(choice, records)

    def _explain(self, cause: Cause, why: str) -> None:
        """Record the cause of a task's requeue, so that the other agents know that its node lives."""
        if self._failure is not None:
            self._stopped(StopKind.FAILED, self._failure.text)
        elif cause is Cause.AGENT_ERROR:
            self._tell(why)

    def _stay_out(self, choice: Hold | SaveFirst | GiveUp, records: list[Record]) -> Ended:
        match choice:
            case Hold(reason, record):
                return self._hold_run(reason, record, records)
            case SaveFirst(cause, reason, is_held, budget):
                self._write(DrainRequested(cause, self._start.node_list, Then.LEAVE, reason, budget=budget))
                return self._hold(reason, records) if is_held else self._ended(ExitCode.FAILED)
            case GiveUp(reason):
                return self._give_up(reason)

    # what is known

    def _least(self) -> int:
        """Return how many nodes the run needs."""
        nodes = stored_spec(self._paths).get("nodes")
        return 1 if nodes is None else parse_nodes(nodes).low

    def _is_outdated(self) -> bool:
        """Tell whether the names of the members show a later start of this task."""
        names = (parse_name(name) for name in files.list_names(self._paths.members))
        mine = f"this{self._task.tag}"
        return any(is_newer(name.node_id, than=mine) for name in names if name is not None)

    def _tasks(self) -> list[SlurmTask] | None:
        """Return the tasks of the run that are not over, None if Slurm does not answer."""
        known = self._patiently(lambda: submissions.read_submissions(self._paths))
        token = next((done.token for done in known if done.number == self._submission), "")
        try:
            return self._patiently(
                lambda: self._slurm.array_tasks(token, self._task.array), ASIDE_PATIENCE_S, SlurmCommandError
            )
        except _SLURM as error:
            self._say(f"squeue tells nothing about the other tasks: {error}")
            return None

    def _others(self, records: list[Record]) -> Others | None:
        """Return the other tasks that may still do something for the run."""
        tasks = self._tasks()
        if tasks is None:
            return None
        over = {self._task.task, *array_records.given_up(records)}
        others = [task for task in tasks if task.name not in over]
        return Others(sum(task.is_running for task in others), sum(task.is_waiting for task in others))

    # what is done

    def _end_run(self, code: int, record: RunEnded | None) -> Ended:
        """End the run for all tasks; those that wait in the queue have nothing to do any more."""
        code = self._end_as(code, record)
        self._take_waiting_away()
        return self._ended(code)

    def _begin(self) -> None:
        """Record that the submission has begun, if no agent came to do it."""
        state = self._log.state
        if state.epoch.submission < self._submission:
            self._write(EpochStarted(epoch_now(state, self._submission), self._task.array, ()))

    @property
    def _look_first(self) -> str:
        task = self._task.task
        return f"later: squeue -j {task}; if it is not in the queue: scontrol requeue {task}"

    def _tell(self, text: str) -> None:
        """Have the records tell of this task; the log has it in any case."""
        self._note_down(epoch_now(self._log.state, self._submission), f"{self._name}: {text}")

    def _stopped(self, how: StopKind, detail: str) -> None:
        """Record that this script has ended the start of its task."""
        self._begin()
        epoch, node = self._log.state.epoch, self._start.node_list
        self._write(array_records.stopped(self._task, epoch, how, node, detail))

    def _give_up(self, reason: str) -> Ended:
        """Leave the run to the other tasks; if they are given up, too, it has failed."""
        self._stopped(StopKind.GIVEN_UP, reason)
        others = self._others(self._patiently(lambda: read_records(self._paths)))
        if others is None or others.any:
            self._say("the run goes on without it")
            return self._ended(ExitCode.FAILED)
        choice = failed(reason)
        self._say(choice.why)
        return self._end_run(choice.code, choice.record)

    def _hold_run(self, reason: str, record: RunEnded | None, records: list[Record]) -> Ended:
        """Hold the run; each task holds itself, one that waits as soon as Slurm starts it."""
        if record is not None:
            self._begin()
            ending = self._write(record).ending
            if ending is not None and ending.decision is not Decision.HELD:  # somebody else ended it
                return self._end_run(ending.exit_code, None)
        return self._hold(reason, records)

    def _hold(self, why: str, records: list[Record]) -> Ended:
        """Have this task wait in the queue until its user releases it."""
        task = self._task
        self._stopped(StopKind.HELD, why)
        handed = self._hand_back().hold(why)
        if handed.outcome is RequeueOutcome.DONE:
            self._say(f"task {task.task} waits in the queue; to go on: scontrol release {task.array}")
        elif handed.outcome is RequeueOutcome.CANCELLED:
            choice = array_lifecycle.not_requeued(
                self._others(records), "it was cancelled", is_cancelled=True
            )
            self._say(choice.why)
            return self._carry_out(choice, records)
        else:
            self._say(f"Slurm does not hold task {task.task}, which ends: {last_line(handed.words)}")
            root = shlex.quote(self._paths.root)
            self._say(f"to go on, once no task is left: hpc-elastic submit --resume {root}")
        return self._ended(ExitCode.REQUEUE)

    def _take_waiting_away(self) -> None:
        """Cancel the tasks of the run that wait; the verdict holds whether Slurm answers or not."""
        waiting = [task for task in self._tasks() or () if task.is_waiting]
        for array in arrays_of(waiting):
            count = sum(task.array == array for task in waiting)
            tasks = count_text(count, "task")
            try:
                self._slurm.cancel_waiting(array)
                self._say(
                    f"took {tasks} of array {array} out of the queue, where there is nothing left to do"
                )
            except _SLURM as error:
                self._say(f"{tasks} of array {array} stay in the queue and end at once later: {error}")

    def _requeue(self, records: list[Record]) -> Ended:
        """Hand this task back; doing it twice does no harm, and one that was cancelled stays so."""
        handed = self._hand_back().requeue()
        if handed.outcome is RequeueOutcome.DONE:
            return self._ended(ExitCode.REQUEUE)
        is_cancelled = handed.outcome is RequeueOutcome.CANCELLED
        why = "it was cancelled meanwhile" if is_cancelled else last_line(handed.words)
        if not is_cancelled and self._may_resubmit(records):
            self._say(f"Slurm does not requeue the task ({why}), so another one is queued in its place")
            return self._resubmit(why, records)
        return self._without_requeue(why, records, is_cancelled=is_cancelled)

    def _without_requeue(self, why: str, records: list[Record], *, is_cancelled: bool = False) -> Ended:
        choice = array_lifecycle.not_requeued(self._others(records), why, is_cancelled=is_cancelled)
        self._say(choice.why)
        return self._carry_out(choice, records)

    def _may_resubmit(self, records: list[Record]) -> bool:
        """Tell whether another task may take the place of this one: not if this one was of no use.

        Nobody counts the starts in vain of one task after the other.
        """
        is_wanted = self._budgets.resubmits and os.path.exists(self._paths.script)
        return is_wanted and not array_records.starts_in_vain(records, self._task)

    def _resubmit(self, refusal: str, records: list[Record], patience_s: float = PATIENCE_S) -> Ended:
        """Have a task of a further array take the place of this one."""
        task = self._submitted(self._submit_again, patience_s)
        if isinstance(task, str):
            self._tell(f"Slurm may not requeue it; task {task} goes on in its place")
            self._say(f"the run goes on with task {task} in the place of this one")
            return Ended(ExitCode.REQUEUE, 0, self._log.state, next_job=task)
        return self._without_requeue(f"{refusal}; sbatch: {' '.join(str(task).split())}", records)

    def _submit_again(self) -> str:
        from hpc_elastic.slurm.submit.resubmit import resubmit_task  # noqa: PLC0415 - rare, and loads the job spec

        link = self._start.link + 1
        return resubmit_task(self._paths, self._submission, self._task.task, link, self._slurm)

    def _record_requeue(self, cause: Cause, records: list[Record]) -> None:
        """Record once that a start of the run that was drained goes back to Slurm as a whole."""
        state = self._log.state
        back = [record.entry for record in records if isinstance(record.entry, Requeued)]
        done = any(entry.epoch.script == state.epoch.script for entry in back)
        if state.drained is not None and not done:
            self._write(Requeued(state.epoch, cause, failure=self._failure))
