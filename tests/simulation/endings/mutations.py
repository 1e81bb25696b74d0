"""Faults of the ends of starts, put into the real code: each must be noticed.

The first ones were in the code before; the others show that each promise can fail.
"""

from __future__ import annotations

from tests.simulation.mutations import Change, Mutation

_BEGIN = "hpc_elastic.slurm.end.begin"
_FINISH = "hpc_elastic.slurm.end.finish"
_LIFECYCLE = "hpc_elastic.slurm.end.lifecycle"
_CHOICES = "hpc_elastic.slurm.end.choices"
_UNWRITTEN = "hpc_elastic.slurm.end.unwritten"
_STATE = "hpc_elastic.record.state"
_ARRAYS = ("array endings losses", "array endings preempted", "array endings in finish", "array endings")
_MIXED = ("endings losses", "endings preempted", "endings")

ENDING_MUTATIONS = (
    Mutation(
        "ends without a record are not counted",
        (Change(f"{_BEGIN}:charge", "if start.local:", "if True:"),),
        _MIXED,
    ),
    Mutation(
        "a start begins though its budget is exceeded",
        (Change(f"{_LIFECYCLE}:before_start", "if has_ended(facts.state) or", "if True or"),),
        _MIXED,
    ),
    Mutation(
        "finish of a second job acts on the run",
        (
            Change(f"{_LIFECYCLE}:_settled", "if facts.other_job and", "if False and"),
            Change(f"{_FINISH}:_ChoiceExecutor._commit", "if self._finish.other_job(state):", "if False:"),
        ),
        ("endings second job",),
    ),
    Mutation(
        "a second job may begin a start of the run",
        (
            Change(f"{_STATE}:_epoch", "if is_whole and other_job(", "if False and other_job("),
            Change(
                "hpc_elastic.meet.rules:refuse_stranger",
                "if other and",
                "if state.epoch == epoch and other and",
            ),
        ),
        ("endings second job",),
    ),
    Mutation(
        "a second job charges the ends of its own starts",
        (
            Change(f"{_BEGIN}:_charge_job", "if other_job(state, epoch, start.job_ref) or", "if False or"),
            Change(f"{_BEGIN}:_is_missing", "if other_job(state, start.epoch, start.job_ref):", "if False:"),
        ),
        ("endings second job",),
    ),
    Mutation(
        "Slurm may requeue a job that is to have one start",
        (Change("hpc_elastic.slurm.job.spec:JobSpec.requeues", " and self.max_requeues != 0", ""),),
        ("endings losses", "endings preempted"),
    ),
    Mutation(
        "agents are started again in a grace",
        (Change(f"{_LIFECYCLE}:_without_word", "facts.job is not None and facts.job.warned", "False"),),
        ("endings grace", "endings preempted"),
    ),
    Mutation(
        "a grace that begins before agents are started again is not seen",
        (Change(f"{_FINISH}:_ChoiceExecutor._relaunch", "now = self._now()", "now = choice"),),
        ("endings grace", "endings preempted"),
    ),
    Mutation(
        "a job whose script was killed is left alone",
        (
            Change(
                "hpc_elastic.slurm.client.job_standing:_why_it_ends",
                "if job.reason.startswith(_RAISED):",
                "if False:",
            ),
        ),
        ("endings script",),
    ),
    Mutation(
        "a job whose script was killed is handed back only once its workers have saved",
        (
            Change(
                "hpc_elastic.slurm.watch.job_watch:JobWatch._reason", "self._last_resort.at_once()", "pass"
            ),
        ),
        ("endings script",),
    ),
    Mutation(
        "a node on which starts are lost again and again is used again",
        (Change("hpc_elastic.slurm.end.bad_nodes:_lost_again", "losses[node] >= _LOST_AGAIN", "False"),),
        ("endings losses",),
    ),
    Mutation(
        "a start that has a record is charged again",
        (
            Change(f"{_UNWRITTEN}:_first", " + (state.requeued or state.ending is not None)", ""),
            Change(f"{_STATE}:_requeued", "if state.requeued or", "if"),
        ),
        _MIXED,
    ),
    Mutation(
        "the words of Slurm in the log are those of any start",
        (Change(f"{_UNWRITTEN}:part_of", "if int(mark[1]) > restart:", "if False:"),),
        ("endings preempted", "endings"),
    ),
    Mutation(
        "accounting is not asked",
        (Change(f"{_BEGIN}:_accounted", "rows = slurm.past_starts(job_ref)", "rows = []"),),
        _MIXED,
    ),
    Mutation(
        "accounting is believed though the last start is not in it",
        (
            Change(f"{_BEGIN}:_accounted", "if len(rows) in (restarts, restarts + 1) else ()", ""),
            Change(
                f"{_UNWRITTEN}:_end",
                "accounted[epoch.restart] if epoch.restart < len(told.accounted)",
                "accounted[-1] if told.accounted",
            ),
        ),
        _MIXED,
    ),
    Mutation(
        "a log without a word of Slurm is that of a lost node",
        (Change(f"{_UNWRITTEN}:_cause", "row is None and has_failed:", "row is None:"),),
        ("endings stall",),
    ),
    Mutation(
        "the next job of a chain counts no end of the one before",
        (Change(f"{_BEGIN}:charge", "start.restarts or start.link", "start.restarts"),),
        ("endings chain",),
    ),
    Mutation(
        "a stop is the wish of one job of a chain",
        (Change(f"{_STATE}:_stop_still_wanted", "or entry.epoch.link > state.epoch.link", ""),),
        ("endings chain",),
    ),
    Mutation(
        "a stop that was carried out is unknown to the next job of a chain",
        (
            Change(
                f"{_LIFECYCLE}:stopped_before",
                "is_next = is_next and not facts.is_task",
                "is_next = is_next and state.epoch.link == mine.link",
            ),
        ),
        ("endings chain",),
    ),
    Mutation(
        "finish writes into a run that another job has begun",
        (Change(f"{_FINISH}:_ChoiceExecutor._commit", "if self._finish.other_job(state):", "if False:"),),
        ("endings second job",),
    ),
    Mutation(
        "a requeue by hand is taken for a preemption",
        (
            Change(
                f"{_UNWRITTEN}:_is_guess",
                "return asked.asked.answer not in",
                "return False and asked.asked.answer not in",
            ),
        ),
        ("endings preempted",),
    ),
    Mutation(
        "a budget allows one more",
        (
            Change(
                f"{_LIFECYCLE}:_spent", "_used(facts, cause) > bound[0]", "_used(facts, cause) > bound[0] + 1"
            ),
            Change(f"{_LIFECYCLE}:_exceeded_budget", "used(cause) > bound[0]", "used(cause) > bound[0] + 1"),
        ),
        _MIXED,
    ),
    Mutation(
        "a budget allows one less",
        (
            Change(
                f"{_LIFECYCLE}:_spent", "_used(facts, cause) > bound[0]", "_used(facts, cause) >= bound[0]"
            ),
        ),
        _MIXED,
    ),
    Mutation(
        "one requeue more than max_requeues",
        (
            Change(f"{_LIFECYCLE}:_spent", "state.requeues >= budgets", "state.requeues > budgets"),
            Change(f"{_LIFECYCLE}:_exceeded", "<= budgets.max_requeues:", "<= budgets.max_requeues + 1:"),
        ),
        _MIXED,
    ),
    Mutation(
        "a released run has its old budget until its agents come",
        (Change(f"{_CHOICES}:Facts.counts", "self.is_task or", "True or"),),
        ("endings preempted", "endings"),
    ),
    Mutation(
        "the causes of earlier ends are not compared with their budgets as a start begins",
        (Change(f"{_LIFECYCLE}:_exceeded_budget", "for cause in Cause:", "for cause in ():"),),
        _MIXED,
    ),
    Mutation(
        "starts that saved nothing are not compared as the next one begins",
        (Change(f"{_LIFECYCLE}:before_start", '"" if is_released else', '"" if True else'),),
        _MIXED,
    ),
    Mutation(
        "a start without workers hides that nothing was saved before",
        (
            Change(
                "hpc_elastic.record.progress:Progress.of_last",
                "if self.began is None else self",
                "if False else self",
            ),
        ),
        ("endings in finish",),
    ),
    Mutation(
        "a job that its user takes away is brought back",
        (
            Change(
                "hpc_elastic.slurm.client.job_standing:_why_it_ends",
                "if is_silent else Standing.ENDING",
                "if False else Standing.SCRIPT_DIED",
            ),
        ),
        ("endings", "endings rough"),
    ),
    Mutation(
        "the next start of a task charges nothing",
        (Change(f"{_BEGIN}:_charge_task", "if member is None:", "if True:"),),
        _ARRAYS,
    ),
    Mutation(
        "a task of a run that is held is charged as it begins again",
        (Change(f"{_UNWRITTEN}:member_of", " or state.ending is not None", ""),),
        _ARRAYS,
    ),
    Mutation(
        "a start of a task begins though a budget of the run is exceeded",
        (Change(f"{_LIFECYCLE}:before_start", "if has_ended(facts.state) or", "if facts.is_task or"),),
        _ARRAYS,
    ),
    Mutation(
        "a task is started more often than max_requeues allows",
        (
            Change(
                f"{_LIFECYCLE}:before_start",
                "facts.requeues > budgets.max_requeues",
                "False",
            ),
        ),
        _ARRAYS,
    ),
    Mutation(
        "the words of Slurm about a task are those of its first start",
        (Change(f"{_UNWRITTEN}:of_task", "row = told.accounted[restart]", "row = told.accounted[0]"),),
        _ARRAYS,
    ),
    Mutation(
        "a preempted task whose agent could not say so leaves without a record",
        (Change(f"{_FINISH}:_ChoiceExecutor._explain", "if left is not None:", "if False:"),),
        ("array endings rough",),
    ),
    Mutation(
        "finish of a task takes the others out of the queue",
        (
            Change(
                f"{_FINISH}:Finish._carry_out",
                "if has_ended(ended.state) and not self.other_job(ended.state):",
                "if True:",
            ),
        ),
        _ARRAYS,
    ),
)
