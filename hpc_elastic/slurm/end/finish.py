"""The end of a start of a job or of an array task: gathers facts, has `lifecycle` decide, carries it out."""

from __future__ import annotations

import os
from contextlib import suppress

from hpc_elastic import ids
from hpc_elastic.clock import Clock, date_text
from hpc_elastic.errors import (
    SlurmCommandError,
    SlurmNotFoundError,
    StoreError,
)
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.member_names import parse_name
from hpc_elastic.record.array_task import epoch_now, is_newer
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Cause,
    Decision,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Note,
    Record,
    Requeued,
    Role,
    RunEnded,
    SetupFailure,
    StopKind,
)
from hpc_elastic.record.progress import BEGINNING, trained
from hpc_elastic.record.run_log import RunLog, open_log
from hpc_elastic.record.state import RunState, has_ended, other_job
from hpc_elastic.settings.values import parse_nodes
from hpc_elastic.slurm.client.commands import Slurm, look
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, due_to, standing
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end import expedited, history, lifecycle, own_script, requeue
from hpc_elastic.slurm.end.begin import charge
from hpc_elastic.slurm.end.choices import (
    Choice,
    Exit,
    Facts,
    GiveUp,
    Hold,
    Leave,
    Relaunch,
    Requeue,
    RequeueBudgets,
    Resubmit,
    SaveFirst,
    ScriptEnd,
    failed,
)
from hpc_elastic.slurm.end.history import earlier_starts, saves_text, short_time_text, with_words
from hpc_elastic.slurm.end.other_jobs import OtherTasks, Successors, resubmitted
from hpc_elastic.slurm.end.requeue import HandBack, HandedBack, RequeueOutcome, last_line
from hpc_elastic.slurm.end.unwritten import goodbye_for
from hpc_elastic.slurm.run_jobs import job_start
from hpc_elastic.slurm.run_jobs.job_start import (
    PATIENCE_S,
    Ended,
    Patience,
    Say,
    Start,
    is_full,
    look_first,
    require_run_of,
    resume_command,
    to_go_on,
    with_own_submission,
)
from hpc_elastic.slurm.run_jobs.run_files import stored_spec
from hpc_elastic.store import files

_SLURM = (SlurmCommandError, SlurmNotFoundError)
_RELAUNCH_PAUSE_S = 2.0
_SAYS_GOODBYE = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.AGENT_ERROR)  # against no node of a task


class _GoneOnError(Exception):
    """The run that was to be held has begun a new start since the facts were read."""


class _AnotherJobsError(Exception):
    """Another job has begun the run since the state of it was read: this one has no part in it."""


class Finish:
    """Ends one start of a job, or of one task of an array.

    Args:
        start: the start.
        budgets: how often each way to go on may be taken.
        slurm: Slurm's commands.
        clock: paces retries.
        say: prints a line for the batch log.

    Attributes:
        log: the journal of the run; it is read once, and further records as they come.
        patiently: tries a step until it works, or for too long.
        is_answered: Slurm has told of the job, where it was asked.
    """

    def __init__(self, start: Start, budgets: RequeueBudgets, slurm: Slurm, clock: Clock, say: Say) -> None:
        self.start = start
        self.budgets = budgets
        self.slurm = slurm
        self.clock = clock
        self.say = say
        kind, writer = ("job", ids.BATCH) if start.task is None else ("task", start.job_ref)
        self.log: RunLog = open_log(start.paths, writer, Role.SCRIPT)
        self.is_answered = True
        self.patiently = Patience(clock, say, f", then the {kind} ends with 76 and is not requeued")

    def run(self) -> Ended:
        """Decide and carry out.

        Raises:
            TakenOverError: another directory is in the place of the run's, or others can write to it.
            RunDirError: the run directory is gone, or was never made.
            StoreError: the run directory cannot be read or written for minutes.
            RendezvousStateError: a record of the run is damaged.
        """
        state = self.patiently(self._state)
        records = [*self.log.records]
        if self.start.task is None and not self.start.is_submitted:
            self.start = with_own_submission(self.start, records, state, self._is_active)
        facts = self.facts(state, records)
        choice = lifecycle.decide(facts, self.budgets)
        if isinstance(choice, Requeue | Resubmit | Leave):
            self._tell_of_saves(facts, records, goes_on=not isinstance(choice, Leave))
        return self._carry_out(choice, facts, records)

    def begin(self) -> Ended | None:
        """Charge the ends of earlier starts that have no record; end this one if a budget is exceeded.

        Returns:
            The end of the script; None: the start may begin.

        Raises:
            HpcElasticError: as `run`.
        """
        state = self.patiently(self._state)
        if self.start.task is None and not self.start.is_submitted:
            self.start = with_own_submission(self.start, [*self.log.records], state, self._is_active)
        records = [*self.log.records]
        before = self._known_facts(state, records)
        if (choice := lifecycle.stopped_before(before)) is not None:
            return self._carry_out(choice, before, records)
        self.patiently(lambda: charge(self.log, self.start, self.slurm, self.say))
        state, records = self.log.state, [*self.log.records]
        known = self._known_facts(state, records)
        if (
            lifecycle.before_start(known, self.budgets) is None
        ):  # Slurm, which may be away, is asked for an end
            return self._begin_script(known, records) if self.start.is_script else None
        facts = self.facts(state, records)
        choice = lifecycle.before_start(facts, self.budgets)
        return None if choice is None else self._carry_out(choice, facts, records)

    def _begin_script(self, facts: Facts, records: list[Record]) -> Ended | None:
        """Record that a job script of the user's own starts, as agents do for theirs; None: it may."""
        if (choice := lifecycle.refuse_start(facts)) is not None:
            return self._carry_out(choice, facts, records)
        began, formed = own_script.start_records(self.start, self.log.state.rounds + 1)
        self.patiently(lambda: self.log.commit(lambda _state: began))
        self.patiently(lambda: self.log.commit(lambda _state: formed))
        return None

    def _carry_out(self, choice: Choice, facts: Facts, records: list[Record]) -> Ended:
        """Carry a choice out; jobs that have nothing left to do are taken away."""
        others = self._successors() if self.start.task is None else self._other_tasks()
        ended = _ChoiceExecutor(self, others, facts, records).do(choice)
        if has_ended(ended.state) and not self.other_job(ended.state):
            others.cancel()
            self._take_back(facts, ended.state)
        return ended

    def other_job(self, state: RunState) -> str:
        """Return the job that the run belongs to by now, if it is not this one; empty for a task."""
        start = self.start
        return "" if start.task is not None else other_job(state, start.epoch, start.job_ref)

    def _take_back(self, facts: Facts, state: RunState) -> None:
        """Take a job out of the queue that Slurm has put back there, where the run has failed."""
        start, is_failed = self.start, state.ending is not None and state.ending.decision is Decision.FAILED
        is_back = standing(facts.job, start.restarts) is Standing.REQUEUED
        if start.local or facts.is_task or not (is_failed and is_back):
            return
        try:
            self.slurm.cancel(start.job_ref)
            self.say(f"took job {start.job_ref} out of the queue, where there is nothing left to do")
        except _SLURM:
            self.say(f"job {start.job_ref} waits for nothing: scancel {start.job_ref}")

    def _is_active(self, job_id: str) -> bool:
        """Tell whether a job runs or waits; one of which Slurm tells nothing may."""
        try:
            stands = self.slurm.job_state(job_id)
        except _SLURM:
            return True
        return stands is not None and stands.is_active

    def _successors(self) -> Successors:
        return Successors(self.start, self.slurm, self.clock, self.say)

    def _other_tasks(self) -> OtherTasks:
        return OtherTasks(self.start, self.slurm, self.patiently, self.say)

    def _tell_of_saves(self, facts: Facts, records: list[Record], *, goes_on: bool) -> None:
        if facts.script is not None:  # nothing is known of its saves
            return
        progress, limit = facts.counts.progress, self.budgets.max_starts_without_save
        # the starts of a task are not those of the run; a job as a whole has starts alone
        not_its_own = {"began": None, "in_vain": 0} if facts.is_task else {"stops": 0, "silent": 0}
        limit_s, task = None if facts.job is None else facts.job.granted_s, self.start.task
        starts = trained(records) if task is None else [history.task_trained(records, task)]
        saves = saves_text(progress._replace(**not_its_own), facts.saved, limit)
        short = short_time_text(starts, limit_s) if goes_on else ""
        for text in filter(None, (saves, short)):
            self.say(text)

    # facts

    def facts(self, state: RunState, records: list[Record]) -> Facts:
        """Return all facts, with Slurm's.

        Args:
            state: the run.
            records: the journal.
        """
        return (self._job_facts if self.start.task is None else self._task_facts)(state, records)

    def _facts(self, state: RunState, epoch: Epoch, records: list[Record]) -> Facts:
        """Return the facts without Slurm's.

        Args:
            state: the run.
            epoch: of this start of the run.
            records: the journal.
        """
        start, task = self.start, self.start.task
        failure, earlier = self._failure(), earlier_starts(records, epoch, start.launch_failure)
        return Facts(
            state=state,
            epoch=start.epoch,
            job=None,
            job_id=start.job_ref,
            srun_exit_code=start.srun_exit_code,
            launch_failure=failure,
            earlier=earlier,
            has_script=os.path.exists(start.paths.script),
            in_vain=lifecycle.starts_in_vain(records, start.epoch)
            if task is None
            else history.task_starts_in_vain(records, task),
            saved=newest_step(start.paths, BEGINNING),
        )

    def _known_facts(self, state: RunState, records: list[Record]) -> Facts:
        """Return the facts without Slurm's, for a start that has not begun."""
        if self.start.task is None:
            return self._facts(state, self.start.epoch, records)._replace(local=self.start.local)
        facts = self._facts(state, epoch_now(state, self.start.epoch.submission), records)
        return facts._replace(is_task=True, is_outdated=self.patiently(self._is_outdated))

    def _job_facts(self, state: RunState, records: list[Record]) -> Facts:
        start = self.start
        job = self._local_job() if start.local else self._ask_slurm(requeue.PATIENCE_S)
        ends = [record.at for record in records if isinstance(record.entry, RunEnded)]
        return self._facts(state, start.epoch, records)._replace(
            job=job,
            ended_by=self._ended_by(),
            told=self._told(job),
            chain=self.patiently(lambda: self._successors().chain(start.chain)),
            local=start.local,
            script=self._script_end() if start.is_script else None,
            ended_since=date_text(ends[-1]) if ends else "",
        )

    def _script_end(self) -> ScriptEnd:
        """Return the facts about a job script of the user's own; after a failure those about its nodes."""
        start = self.start
        if start.srun_exit_code == 0 and not start.script_runs:
            return ScriptEnd()
        lost: tuple[str, ...] = ()
        with suppress(*_SLURM):
            lost = self.slurm.down_nodes(start.node_list) if start.node_list else ()
        failure = None if start.script_runs else own_script.failure_of(start, self.clock.wall())
        return ScriptEnd(start.script_runs, failure, lost)

    def _task_facts(self, state: RunState, records: list[Record]) -> Facts:
        start = self.start
        outdated = self.patiently(self._is_outdated)
        is_known = outdated or state.ending is not None
        task = start.task
        if task is None:
            raise ValueError("this is no task of an array")
        return self._facts(state, epoch_now(state, start.epoch.submission), records)._replace(
            job=None if is_known else self._ask_slurm(PATIENCE_S),
            is_task=True,
            others=None if is_known else self._other_tasks().count(records),
            left=history.goodbye_of(records, task),
            is_outdated=outdated,
            least=self._least(),
        )

    def _failure(self) -> SetupFailure | None:
        """Return the line of the script that failed before srun, with the words in the batch log about it."""
        failure = self.start.launch_failure
        return None if failure is None else with_words(failure, self._batch_log())

    def _batch_log(self) -> str:
        """Return the end of the output of this script, and of Slurm."""
        return job_start.log_end(self.start.paths, self.start.job_ref)

    def _ask_slurm(self, patience_s: float) -> JobFacts | None:
        """Return Slurm's facts about the job or task, None if it gives none for so long [s]."""
        try:
            return self.patiently(lambda: look(self.slurm, self.start.job_ref), patience_s, SlurmCommandError)
        except _SLURM as error:
            self.is_answered = False
            kind = "job" if self.start.task is None else "task"
            self.say(f"Slurm tells nothing about {kind} {self.start.job_ref}: {error}")
            return None

    def _told(self, job: JobFacts | None) -> Cause | None:
        """Return why Slurm has put the job back into the queue; Slurm is asked only then."""
        if job is None or self.start.local or job.warned:
            return None
        if standing(job, self.start.restarts) is not Standing.REQUEUED:
            return None
        return due_to(self._batch_log()) or (Cause.NODE_LOSS if self._has_down_node() else None)

    def _has_down_node(self) -> bool:
        try:
            nodes = self.start.node_list
            return bool(nodes) and self.slurm.has_down_node(nodes)
        except _SLURM:
            return False

    def _ended_by(self) -> str:
        """Return the name of the signal that ended the local runner above this script, if one did."""
        data = files.read(self.start.end_file) if self.start.end_file else None
        return (data or b"").decode(errors="replace")

    def _local_job(self) -> JobFacts:
        return JobFacts(
            JobState.RUNNING,
            "RUNNING",
            "None",
            self.start.restarts,
            may_requeue=True,
            nodes=self.start.nodes,
            preempted=False,
        )

    def _least(self) -> int:
        """Return how many nodes the run needs."""
        nodes = stored_spec(self.start.paths).get("nodes")
        return 1 if nodes is None else parse_nodes(nodes).low

    def _is_outdated(self) -> bool:
        """Tell whether the names of the members show a later start of this task."""
        names = (parse_name(name) for name in files.list_names(self.start.paths.members))
        mine = f"this{self.start.task.tag}" if self.start.task is not None else ""
        return any(is_newer(name.node_id, than=mine) for name in names if name is not None)

    # the run directory

    def _state(self) -> RunState:
        """Check that the run is there, and read its journal."""
        if self.start.task is None or self.start.is_submitted:
            require_run_of(self.start, self.clock, self.say)
        return self.log.refresh()


class _ChoiceExecutor:
    """Carries a choice out.

    Args:
        finish: whose start of a job or task this is.
        others: the other jobs or tasks of the run.
        facts: that the choice rests on.
        records: the journal at that time.
    """

    def __init__(
        self, finish: Finish, others: Successors | OtherTasks, facts: Facts, records: list[Record]
    ) -> None:
        self._finish = finish
        self._start = finish.start
        self._say = finish.say
        self._log = finish.log
        self._others = others
        self._facts = facts
        self._records = records
        self._name = f"{facts.mode.noun} {finish.start.job_ref}"  # for people

    def do(self, choice: Choice) -> Ended:
        """Print why, carry it out, and return the end of the script."""
        self._say(choice.why)
        try:
            return self._done(choice)
        except _AnotherJobsError:
            self._facts = self._facts._replace(state=self._log.state)
            return self.do(lifecycle.decide(self._facts, self._finish.budgets))
        except _GoneOnError:  # the store was away for long; a released run has new budgets
            self._look_again(self._log.state)
            return self.do(lifecycle.decide(self._facts, self._finish.budgets))

    def _done(self, choice: Choice) -> Ended:
        match choice:
            case Exit(code, _, record):
                return self._ended(self._end_as(code, record))
            case Leave():
                return self._leave(choice)
            case Relaunch():
                self._note_down(choice.why, insists=True)
                return self._relaunch(choice)
            case Requeue() | Resubmit():
                return self._go_on(choice)
            case _:
                return self._stay_out(choice)

    def _go_on(self, choice: Requeue | Resubmit) -> Ended:
        cause, is_requeue = choice.cause, isinstance(choice, Requeue)
        if is_requeue:
            self._explain(cause, choice.why)
        self._record_requeue(cause, choice.reason, choice.signal)
        if is_requeue:
            return self._requeue(cause)
        return self._resubmit("Requeue=0", requeue.PATIENCE_S)  # slurmctld was not waited for before

    def _stay_out(self, choice: Hold | SaveFirst | GiveUp) -> Ended:
        match choice:
            case Hold(reason, record):
                return self._hold_run(reason, record)
            case SaveFirst(cause, reason, is_held, budget):
                nodes = self._start.node_list
                self._write(DrainRequested(cause, nodes, AfterDrain.LEAVE, reason, budget=budget))
                return self._hold(reason) if is_held else self._ended(ExitCode.FAILED)
            case GiveUp(reason):
                return self._give_up(reason)

    # the records

    @property
    def _epoch(self) -> Epoch:
        """The start of the run that this start of the job or task belongs to."""
        epoch = self._start.epoch
        return epoch_now(self._log.state, epoch.submission) if self._facts.is_task else epoch

    def _write(self, entry: Entry) -> RunState:
        return self._finish.patiently(lambda: self._commit(entry))

    def _commit(self, entry: Entry) -> RunState:
        """Add a record.

        Raises:
            _AnotherJobsError: the run is no longer this job's.
            _GoneOnError: the run is not to be held: another of its tasks has begun a new start of it.
        """

        def choose(state: RunState) -> Entry:
            if self._finish.other_job(state):
                raise _AnotherJobsError
            if isinstance(entry, RunEnded) and entry.decision is Decision.HELD and self._has_gone_on(state):
                raise _GoneOnError
            return entry

        return self._log.commit(choose)

    def _has_gone_on(self, state: RunState) -> bool:
        """Tell whether a task of this submission has begun a start of the run since the facts were read."""
        known, now = self._facts.state.epoch, state.epoch
        return self._facts.is_task and now > known and now.submission == known.submission

    def _begin(self) -> None:
        """Record the start that this script belongs to, if no agent came to do it."""
        known, mine = self._log.state.epoch, self._start.epoch
        if known.submission >= mine.submission if self._facts.is_task else known >= mine:
            return
        job = self._start.job_ref.partition("_")[0] if self._facts.is_task else self._start.job_ref
        self._write(EpochStarted(self._epoch, job, ()))

    def _note_down(self, text: str, *, insists: bool = False) -> None:
        """Write down a text for people; where that fails the batch log alone has it.

        Args:
            text: the text.
            insists: a full disk is an error, as agents could write nothing, either.
        """
        said = f"{self._name}: {text}" if self._facts.is_task else text
        try:
            self._commit(Note(self._epoch, said))
        except StoreError as error:
            if insists and is_full(error):
                self._write(Note(self._epoch, said))
            else:
                self._say(f"this is not in the run's records: {error}")

    def _stopped(self, how: StopKind, detail: str) -> None:
        """Record that this script has ended the start of its task."""
        if self._start.task is not None:
            self._begin()
            epoch, node = self._log.state.epoch, self._start.node_list
            self._write(history.stopped(self._start.task, epoch, how, node, detail))

    def _explain(self, cause: Cause, why: str) -> None:
        """Record the cause of a task's requeue, so that the other agents know that its node lives."""
        failure, task = self._facts.launch_failure, self._start.task
        if failure is not None:
            self._stopped(StopKind.FAILED, failure.text)
        elif cause is Cause.AGENT_ERROR and self._facts.is_task:
            self._note_down(why)
        if task is not None and failure is None and cause in _SAYS_GOODBYE:
            left = goodbye_for(self._log.state, task, cause, why)
            if left is not None:  # also that of an agent which another one of this start has followed
                self._write(left)

    def _record_requeue(self, cause: Cause, reason: str, signal: str) -> None:
        """Record once that a start of the run goes back to Slurm; one task alone is none of that."""
        state, is_task = self._log.state, self._facts.is_task
        epoch = state.epoch if is_task else self._start.epoch
        back = [record.entry for record in self._records if isinstance(record.entry, Requeued)]
        is_done = any(entry.epoch.script == epoch.script for entry in back)
        if is_done or (is_task and state.drained is None):
            return
        self._begin()
        failure = self._facts.launch_failure if cause is Cause.LAUNCH_FAILURE else None
        told = state.explained
        is_taken = cause is Cause.NODE_LOSS and told is not None and told.answer is Answer.NO_SCRIPT
        lost: tuple[str, ...] = (state.batch_host,) if is_taken else ()
        if self._facts.script is not None and cause is Cause.NODE_LOSS:
            lost = self._facts.script.lost
        self._write(Requeued(epoch, cause, "" if is_task else reason, failure, signal, lost))

    def _end_as(self, code: int, record: RunEnded | None) -> int:
        """Write the ending; return the exit code of the one that stands: another one may have been first."""
        if record is None:
            return code
        self._begin()
        ending = self._write(record).ending
        return code if ending is None or ending == record else ending.exit_code

    # the ways to go on, and to end

    def _ended(self, code: int) -> Ended:
        return Ended(code, 0, self._log.state)

    def _leave(self, choice: Leave) -> Ended:
        if choice.requeued is not None:
            self._record_requeue(choice.requeued, choice.why, choice.signal)
        if choice.is_open:
            self._say(look_first(self._start))
            self._note_down(f"{choice.why}; {look_first(self._start)}")
        return self._ended(choice.code)

    def _relaunch(self, choice: Relaunch) -> Ended:
        """Ask for another srun, after a pause that doubles each time; Slurm may end the job meanwhile."""
        if not self._start.local:
            self._finish.clock.sleep(_RELAUNCH_PAUSE_S * 2**self._start.epoch.relaunch)
            now = self._now()
            if not isinstance(now, Relaunch):
                return self.do(now)
            choice = now
        return Ended(ExitCode.RELAUNCH, choice.nodes, self._log.state)

    def _now(self) -> Choice:
        """Choose once more, by Slurm's facts of now; without an answer those before hold."""
        finish = self._finish
        with suppress(*_SLURM):
            look(finish.slurm, self._start.job_ref)
            self._look_again(finish.patiently(self._log.refresh))
        return lifecycle.decide(self._facts, finish.budgets)

    def _look_again(self, state: RunState) -> None:
        """Read all facts anew, with the records of the run's state."""
        records = [*self._log.records]
        self._facts, self._records = self._finish.facts(state, records), records

    def _hand_back(self) -> HandBack:
        return HandBack(self._finish.slurm, self._start.job_ref, self._start.restarts, self._finish.clock)

    def _requeue(self, cause: Cause) -> Ended:
        """Hand the job back; doing it twice does no harm, and one that was cancelled stays so."""
        if self._start.local:
            return self._ended(ExitCode.REQUEUE)
        handed, noun = self._hand_back().requeue(), self._facts.mode.noun
        if handed.outcome is RequeueOutcome.DONE:
            is_unfit = not self._facts.is_task and self._log.state.only_unfit
            expedited.delay(self._start, self._finish.slurm, cause, is_unfit=is_unfit)
        if handed.outcome is not RequeueOutcome.REFUSED:
            return self._handed(handed)
        words = last_line(handed.words)
        if cause is not Cause.CANCEL and self._facts.may_resubmit(self._finish.budgets):
            self._say(f"Slurm does not requeue the {noun} ({words}), so it is submitted again")
            return self._resubmit(words)
        self._say(f"Slurm does not requeue the {noun}: {handed.words}")
        return self._refused("requeue", words)

    def _handed(self, handed: HandedBack) -> Ended:
        if handed.outcome is RequeueOutcome.DONE:
            return self._ended(ExitCode.REQUEUE)
        facts = self._with_others()
        return self.do(lifecycle.cancelled(facts, f"the {facts.mode.noun} was cancelled meanwhile"))

    def _refused(self, act: str, words: str) -> Ended:
        return self.do(lifecycle.refused(self._with_others(), act, words))

    def _resubmit(self, refusal: str, patience_s: float = PATIENCE_S) -> Ended:
        """Queue a further job in the place of this one, as part of the same submission."""
        job = resubmitted(self._others, self._finish.patiently, patience_s)
        if isinstance(job, Exception):
            return self._refused("requeue", f"{refusal}; sbatch: {' '.join(str(job).split())}")
        noun = self._facts.mode.noun
        if self._facts.is_task:
            self._note_down(f"Slurm may not requeue it; task {job} goes on in its place")
        self._say(f"the run goes on with {noun} {job} in the place of this one")
        return Ended(ExitCode.REQUEUE, 0, self._log.state, next_job=job)

    def _hold_run(self, reason: str, record: RunEnded | None) -> Ended:
        """Hold the run; each task holds itself, one that waits as soon as Slurm starts it."""
        if record is not None:
            code = self._end_as(ExitCode.REQUEUE, record)
            ending = self._log.state.ending
            if ending is None or ending.decision is not Decision.HELD:  # another script has ended it
                return self._ended(code)
        return self._hold(reason)

    def _hold(self, why: str) -> Ended:
        """Have the job or task wait in the queue until its user releases it."""
        self._stopped(StopKind.HELD, why)
        handed, is_task = self._hand_back().hold(why), self._facts.is_task
        if handed.outcome is RequeueOutcome.CANCELLED:
            return self._handed(handed)
        if handed.outcome is RequeueOutcome.DONE:
            whole = self._start.job_ref.partition("_")[0]
            self._say(f"{self._name} waits in the queue; to go on: scontrol release {whole}")
        else:
            once = ", once no task is left" if is_task else ""
            self._say(f"Slurm does not hold {self._name}, which ends: {last_line(handed.words)}")
            self._say(f"{to_go_on(self._start.paths)}{once}: {resume_command(self._start)}")
        return self._ended(ExitCode.REQUEUE)

    def _with_others(self, records: list[Record] | None = None) -> Facts:
        """Return the facts with the other tasks that there are by now.

        Args:
            records: the journal by now; None: that of the choice.
        """
        others, known = self._others, self._records if records is None else records
        if isinstance(others, OtherTasks):
            return self._facts._replace(others=others.count(known))
        return self._facts

    def _give_up(self, reason: str) -> Ended:
        """Leave the run to the other tasks; if they are given up, too, it has failed."""
        self._stopped(StopKind.GIVEN_UP, reason)
        self._finish.patiently(self._log.refresh)
        if not self._with_others(self._log.records).any_others:
            return self.do(failed(reason))
        self._say("the run goes on without it")
        return self._ended(ExitCode.FAILED)
