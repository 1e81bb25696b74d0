"""What a run is promised, part by part, and the tests that hold it in step mode and in array mode.

Step mode is one job of several nodes, array mode an array of one-node jobs that meet in one run. A test
is named as in `rows`; those with a folder are elsewhere: they need no Slurm to tell. Where something
cannot happen in a mode, or is the same in both, words say why in the place of tests.
"""

from __future__ import annotations

from typing import NamedTuple

Held = tuple[str, ...] | str
"""The tests that hold something; or why there is nothing to hold, in words."""


class Part(NamedTuple):
    """One promise.

    Attributes:
        what: in a few words.
        step: what holds it in one job of several nodes.
        array: what holds it in an array of one-node jobs.
    """

    what: str
    step: Held
    array: Held


# tests that hold many parts
ALONE = ("array.preempted_tasks_leave_alone_and_come_back",)
LOST = ("array.lost_tasks_come_back_and_cancelled_ones_do_not",)
SCALED = ("array.a_run_is_scaled_stopped_and_resumed",)
HELD = ("array.a_spent_budget_holds_all_tasks_until_they_are_released",)
ONE_TASK = ("array_slurm.what_happens_to_one_task_costs_no_other_its_start",)
ONCE = ("array_slurm.an_array_ends_once_and_for_all",)
LIMIT = ("long_runs.the_time_limit_costs_no_step",)
RESUMED = ("main_job.a_preempted_run_resumes_by_itself",)
OUTAGE = ("controller_down.runs_go_on_end_and_drain_without_slurmctld",)
REFUSED = ("ending.where_slurm_may_not_requeue_a_job_another_one_goes_on",)
FIXED = ("lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss",)
UNFIT_TASK = ("array_faults.an_unfit_task_goes_to_another_node",)
UNFIT_NODE = ("bad_nodes.a_node_without_its_gpus_stays_out_and_the_run_goes_on",)
UNWARNED = ("drain.a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns",)
DRILLED = ("drill.one_run_survives_each_drill",)
DRILLED_TOO = ("drill.drills_in_both_modes",)
LOWERED = ("long_runs.a_lowered_limit_does_not_end_a_start_as_it_begins",)
STARTED = ("started_by_workers.a_preemption_does_not_end_what_workers_have_started",)

_OF_ARRAYS = "only an array has tasks that are requeued one by one; a job of several nodes is one piece"
_ONE_NODE = "a task has one node, and is lost with it: Slurm requeues it"
_NO_CHAIN = (
    "each task is requeued by itself; a chain is refused, as is singleton, which would run one at a time"
)
_PROJECT = "the ledger belongs to the project, and no job of either mode writes it in another way"
_NO_CODE = "the script asks to be requeued, and relies on no exit code"
_NEVER_PARKS = "the script never parks: it asks to be requeued and ends"
_OWN_AGENT = "the rule of one agent, whatever job it is in"

IN_ARRAY_MODE: dict[str, Held] = {
    "preempted with grace time, nobody reacts": ALONE,
    "preempted, the job ends within the grace time": ALONE,
    "preempted, the script exits with RequeueExit": _NO_CODE,
    "preempted, the script asks to be requeued": ALONE,
    "preempted, the script parks": _NEVER_PARKS,
    "preempted without grace time": ONE_TASK,
    "preempted with --no-requeue": ONE_TASK,
    "preempted where preemption cancels": ("ending.preemption_that_cancels",),
    "suspended for another job": ("ending.a_suspended_run_goes_on_where_it_stood",),
    "preempted where the site sends the signal of the job": SCALED,
    "preempted with --signal elsewhere": ALONE,
    "one of its nodes is wanted": ALONE,
    "warned ahead of the time limit": LIMIT,
    "the time limit": ("array_faults.a_task_at_its_limit_leaves_alone",),
    "scancel": (*LOST, *ONCE),
    "scancel --signal, to steps, script or all": (*SCALED, *ONCE),
    "scancel of the step": ONE_TASK,
    "scontrol requeue, requeuehold": (*ONE_TASK, *HELD),
    "scontrol requeue of a job that is over": ONCE,
    "a node is drained or set down": (*ONE_TASK, *LIMIT),
    "the batch script is killed": ONE_TASK,
    "srun is killed, or told TERM or USR1": ONE_TASK,
    "one agent exits or is killed": LOST,
    "slurmctld is down, frozen or started anew": OUTAGE,
    "a requeued job waits": ("array.a_task_that_comes_back_does_not_wait",),
    "bash hears SIGTERM": ALONE,
    "a node is lost, sbatch default": LOST,
    "a node is lost, --no-requeue": ONE_TASK,
    "a node is lost, --no-kill of sbatch alone": f"the script of an array has none: {_ONE_NODE}",
    "a node is lost, --no-kill of srun alone": f"the script of an array has none: {_ONE_NODE}",
    "a node is lost, --no-kill of both": f"the script of an array has none: {_ONE_NODE}",
    "the batch host is lost": LOST,  # each node is one
    "a node reboots within SlurmdTimeout": (
        "lost_nodes.a_node_that_reboots_quickly_does_not_hold_the_run_up",
    ),
    "slurmd is killed and back, the link is cut for 5 s": (
        "partition.a_short_cut_and_a_restart_of_slurmd_disturb_nobody",
    ),
    "a node is cut off, its old agent goes on": LOST,
    "healed: a late kill hits the new agent, or rc 168": ONE_TASK,  # what it leaves is an srun that died
    "requeued before the loss is noticed": "nobody requeues a task but its own script, which is lost, too",
    "a node is given back by the user": SCALED,
}
"""Every event in the tables of signals and of node loss (`rows`), in array mode."""

IN_STEP_MODE: dict[str, Held] = {
    "preempted, the script exits with RequeueExit": _NO_CODE,
    "preempted, the script parks": _NEVER_PARKS,
    "preempted with --signal elsewhere": RESUMED,
    "one of its nodes is wanted": RESUMED,
    "a requeued job waits": "nobody of the job is left to hurry it, so it waits as long as Slurm says",
    "bash hears SIGTERM": RESUMED,
    "a node is lost, sbatch default": "the script has --no-kill in both places",
    "a node is lost, --no-requeue": REFUSED,
    "a node is lost, --no-kill of sbatch alone": "the script has --no-kill in both places",
    "a node is lost, --no-kill of srun alone": "the script has --no-kill in both places",
    "requeued before the loss is noticed": FIXED,
    "a node is given back by the user": "a run keeps the nodes of its job; scale leaves some of them idle",
}
"""The same in step mode, for events whose row in `rows` names no test of ours."""

ARRAYS = (
    Part("tasks meet in one run", _OF_ARRAYS, ALONE),
    Part("preempted, lost, at its limit, back: alone", _OF_ARRAYS, (*ALONE, *LOST, *LIMIT)),
    Part("the others shrink, go on, grow again", _OF_ARRAYS, (*ALONE, *LOST)),
    Part("the first node and batch hosts are nothing special", _OF_ARRAYS, (*ALONE, *LOST)),
    Part("scale while it runs", ("node/node_agents.the_size_changes_while_it_runs",), SCALED),
    Part(
        "spares wait until they are needed",
        _OF_ARRAYS,
        (*SCALED, "slurm/array_scale.spares_that_are_kept_run_on"),
    ),
    Part(
        "no more than MaxArraySize",
        _OF_ARRAYS,
        ("slurm/array_script.an_array_that_the_cluster_does_not_allow_is_refused",),
    ),
    Part("one verdict ends running and waiting tasks", _OF_ARRAYS, (*ALONE, *ONCE)),
    Part("too few tasks left", _OF_ARRAYS, ("array_faults.a_run_that_has_too_few_tasks_left_ends",)),
)

DRAIN = (
    Part("preemption with grace", ("drain.a_preemption_grants_its_grace",), ALONE),
    Part("preemption without grace", ("drain.without_grace_there_is_kill_wait",), ONE_TASK),
    Part("the warning ahead of the limit (--signal)", LIMIT, LIMIT),
    Part("the end of the job, nobody warns", UNWARNED, UNWARNED),
    Part(
        "the end of the job, slurmctld is away",
        ("slurm/job_watch.a_drain_begins_before_the_end_though_slurm_is_away",),
        _OWN_AGENT,
    ),
    Part("a time limit that an administrator lowers", LOWERED, LOWERED),
    Part("scancel", ("drain.scancel_is_called_by_its_name",), (*LOST, *ONCE)),
    Part("hpc-elastic stop", ("main_job.stop_saves_and_ends_the_run",), SCALED),
    Part(
        "hpc-elastic stop, then a signal of Slurm",
        ("drain.after_a_stop_slurms_signal_is_explained",),
        ("drain.after_a_stop_slurms_signal_is_explained",),
    ),
    Part("a drain file", ("drain.a_file_ends_the_run",), ("array_faults.a_task_at_its_limit_leaves_alone",)),
    Part("a node that is being drained", LIMIT, LIMIT),
    Part("a signal by hand", ("drain.signals_by_hand", "drain.other_signals_to_the_agents"), SCALED),
    Part("what workers have started lives on while they save", STARTED, STARTED),
    Part(
        "a program that does not ask whether to stop",
        ("node/unasked.a_drain_is_told_of_when_all_have_said_that_they_do_not_ask",),
        ("slurm/array_finish.a_task_whose_program_asks_nothing_says_what_is_not_known",),
    ),
    Part("one latched request", ("node/drain_agents.a_drain_is_asked_for_once",), _OWN_AGENT),
    Part(
        "deadline from grace, KillWait, end time",
        ("drain.what_the_site_grants_is_kept_at_submit", "drain.without_grace_there_is_kill_wait"),
        ("node/drain_below_slurm.what_slurm_says_of_one_task_is_told_to_all",),
    ),
    Part(
        "deadline from the run's own saves",
        ("slurm/job_watch.what_a_drain_of_the_run_takes_moves_its_beginning",),
        _OWN_AGENT,
    ),
    Part("one stop step for all ranks", ("drain.a_preemption_grants_its_grace", *RESUMED), ALONE),
    Part(
        "waits for the durable mark",
        ("drain.a_file_ends_the_run", "node/drain_agents.the_end_waits_until_the_checkpoint_is_durable"),
        ALONE,
    ),
    Part("exit barrier: success", ("main_job.three_nodes_with_two_workers_each_finish",), ONCE),
    Part("exit barrier: failure", ("faults.final_failure_ends_everything_with_one_root_cause",), ONCE),
    Part("exit barrier: drain", ("drain.a_preemption_grants_its_grace",), SCALED),
    Part(
        "critical sections up to the deadline",
        ("drain.a_preemption_grants_its_grace", "node/drain_agents.a_critical_section_has_a_limit"),
        _OWN_AGENT,
    ),
    Part(
        "nobody is killed for a peer's exit",
        ("drain.a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns",),
        "a task has one agent, so that it has no peer in its step",
    ),
)

ENDING = (
    Part(
        "an exclusive record decides",
        ("slurm/finish.finishing_twice_requeues_and_counts_once",),
        ("slurm/array_finish.a_run_that_goes_back_as_a_whole_is_recorded_once",),
    ),
    Part(
        "requeue is idempotent",
        ("slurm/finish.finishing_twice_requeues_and_counts_once",),
        ("slurm/array_finish.only_this_task_is_requeued", *ONE_TASK),
    ),
    Part(
        "without scontrol, in containers",
        ("cli/finish_command.in_a_container_a_job_is_requeued_by_its_script",),
        ("cli/finish_command.in_a_container_a_task_is_requeued_by_its_script",),
    ),
    Part("PreemptMode=REQUEUE", RESUMED, ALONE),
    Part("PreemptMode=CANCEL", ("ending.preemption_that_cancels",), ("ending.preemption_that_cancels",)),
    Part(
        "PreemptMode=SUSPEND,GANG",
        ("ending.a_suspended_run_goes_on_where_it_stood",),
        ("ending.a_suspended_run_goes_on_where_it_stood",),
    ),
    Part("submitted again where requeue cannot work", REFUSED, ONE_TASK),  # the others go on without it
    Part(
        "a cancelled run is never requeued",
        (
            "main_job.a_cancelled_run_is_never_requeued",
            "ending.a_job_cancelled_while_it_drains_or_waits_is_not_brought_back",
        ),
        (*LOST, *ONCE),
    ),
    Part("done is never run again", ("main_job.a_finished_job_that_slurm_starts_again_ends_at_once",), ONCE),
    Part("failed stays failed", ("ending.the_same_failure_again_and_again_ends_the_run",), ONCE),
    Part(
        "held with a reason when a budget is spent",
        ("ending.a_spent_budget_holds_the_job_until_its_user_releases_it",),
        HELD,
    ),
    Part("longer than the limit: requeue", LIMIT, LIMIT),
    Part("longer than the limit: afterany", REFUSED, _NO_CHAIN),
    Part("longer than the limit: singleton", REFUSED, _NO_CHAIN),
    Part("the tail is cancelled when done", REFUSED, ALONE),
)

BUDGETS = (
    Part("crashes", ("faults.final_failure_ends_everything_with_one_root_cause",), ONCE),
    Part(
        "hangs",
        ("hangs.a_hang_is_found_told_and_mended", "node/hangs.hangs_have_a_budget_of_their_own"),
        ("array_faults.a_hang_is_found_told_and_mended",),
    ),
    Part("node losses", ("slurm/lifecycle_budgets.each_cause_has_a_budget_of_its_own", *FIXED), ONE_TASK),
    Part("preemptions", ("ending.a_spent_budget_holds_the_job_until_its_user_releases_it",), HELD),
    Part(
        "time limits",
        ("slurm/lifecycle_budgets.each_cause_has_a_budget_of_its_own", *LIMIT),
        ("slurm/array_lifecycle.the_budget_of_a_cause_is_the_runs", *LIMIT),
    ),
    Part("launch failures", ("ending.a_failing_line_of_the_script_is_recorded_and_tried_again",), ONCE),
    Part(
        "counted over all requeues",
        (
            "ending.slurm_names_the_cause_not_the_signal",
            "node/budgets.counts_outlive_a_requeue_but_not_a_resubmission",
        ),
        ("slurm/array_lifecycle.the_budget_of_a_cause_is_the_runs", *HELD),
    ),
    Part("by its true cause", ("ending.slurm_names_the_cause_not_the_signal",), ONE_TASK),
    Part(
        "starts that save nothing",
        ("drill.a_run_that_never_saves_is_held",),
        ("drill.an_array_that_never_saves_is_held",),
    ),
    Part("the same failure again and again", ("ending.the_same_failure_again_and_again_ends_the_run",), ONCE),
)

NODE_LOSS = (
    Part(
        "shrink inside the allocation",
        ("lost_nodes.survivors_of_a_node_loss_go_on_in_the_allocation",),
        f"{_ONE_NODE}; the run shrinks by it: {LOST[0]}",
    ),
    Part(
        "missing hosts by name; of an array, which has no list of them, how many tasks are left",
        ("partial_launch.what_a_users_own_script_is_told",),
        ("array_faults.a_run_that_has_too_few_tasks_left_ends",),
    ),
    Part("the batch host", FIXED, LOST),
    Part(
        "a node whose workers have ended well is not lost",
        ("meet/rules.who_has_succeeded_in_a_round_that_failed_comes_back",),
        _OWN_AGENT,
    ),
    Part("an agent dies", ("faults.a_killed_agent_on_the_batch_host_costs_no_wait",), LOST),
    Part(
        "acted on within the lease",
        (
            "lost_nodes.survivors_of_a_node_loss_go_on_in_the_allocation",
            "meet/liveness.nobody_is_suspected_within_the_lease",
        ),
        LOST,
    ),
    Part(
        "a node comes back that was cut off",
        ("partition.the_agent_on_a_node_that_is_cut_off_stands_down",),
        LOST,
    ),
    Part(
        "srun waits for an agent that is gone",
        ("lost_nodes.srun_does_not_hold_a_job_that_no_agent_is_left_of",),
        f"{_ONE_NODE}: srun and its agent are on the same one",
    ),
    Part("slurmctld down or slow", OUTAGE, OUTAGE),
)

BAD_NODES = (
    Part("probe: GPUs", UNFIT_NODE, _OWN_AGENT),
    Part(
        "probe: nvidia-smi, space, inodes, latency, affinity",
        ("node/probe.measuring_a_node", "node/probe_rules.a_fault_of_the_node_keeps_it_out"),
        _OWN_AGENT,
    ),
    Part(
        "probe: the user's command", ("bad_nodes.a_node_that_fails_the_users_check_is_replaced",), UNFIT_TASK
    ),
    Part(
        "the same failure, always on one node",
        ("bad_nodes.a_node_on_which_the_same_failure_always_comes_is_left_out_first",),
        ("bad_nodes.a_node_on_which_the_same_failure_always_comes_is_left_out_first",),
    ),
    Part("ledger with decay", ("slurm/ledger_rules.a_nodes_score", *UNFIT_NODE), _PROJECT),
    Part("left out at submit", ("bad_nodes.a_lost_node_is_left_out_until_it_is_forgiven",), _PROJECT),
    Part("left out on requeue", ("bad_nodes.a_node_that_fails_the_users_check_is_replaced",), UNFIT_TASK),
    Part(
        "a node that was taken away is not remembered",
        ("bad_nodes.nodes_that_are_taken_away_have_not_failed",),
        f"{_ONE_NODE}; {LOST[0]}",
    ),
    Part("hpc-elastic nodes", UNFIT_NODE, _PROJECT),
    Part("forgiven by hand or time", ("bad_nodes.a_lost_node_is_left_out_until_it_is_forgiven",), _PROJECT),
)

HANGS = (
    Part(
        "stacks of all ranks",
        ("hangs.a_hang_is_found_told_and_mended",),
        ("array_faults.a_hang_is_found_told_and_mended",),
    ),
    Part(
        "the odd one by name",
        ("hangs.a_hang_is_found_told_and_mended",),
        ("array_faults.a_hang_is_found_told_and_mended",),
    ),
    Part("learned timeouts with a floor", ("node/hangs.what_was_measured_outlives_the_agents",), _OWN_AGENT),
    Part("state D, CPU time", ("node/uninterruptible.a_real_process_in_state_d",), _OWN_AGENT),
    Part("out of memory", ("node/memory.a_worker_that_the_kernel_kills_is_told_as_such",), _OWN_AGENT),
    Part(
        "workers that cannot be killed: the node leaves",
        ("node/undead.who_stays_is_given_up",),
        ("slurm/array_lifecycle.an_agent_that_gave_its_node_up_is_not_started_there_again",),
    ),
)

FAKE_SLURM = (
    Part(
        "passes the tests of the real one",
        ("testing/contract/differences.every_file_about_the_real_one_is_run_against_the_fake",),
        "the facts of arrays are among them: slurm_shapes.array_tasks_are_requeued_by_their_full_name",
    ),
    Part(
        "known differences are listed",
        ("testing/contract/differences.every_known_difference_is_told_to_users",),
        "one list for both",
    ),
    Part(
        "whole runs",
        ("testing/fake_slurm_runs.a_preempted_run_resumes_by_itself",),
        ("testing/fake_slurm_runs.a_preempted_task_of_an_array_leaves_alone",),
    ),
    Part(
        "a pytest plugin of users",
        ("testing/pytest_plugin.a_project_gets_a_cluster_by_asking_for_it",),
        "the same fixture, which knows arrays: see whole runs",
    ),
)

DRILLS = (
    Part("--preempt", DRILLED, ("drill.a_task_of_an_array_is_drilled_alone",)),
    Part(
        "a drill in which nothing was saved fails",
        ("drill.a_drill_in_which_nothing_was_saved_fails",),
        ("drill.a_drill_of_an_array_in_which_nothing_was_saved_fails",),
    ),
    Part("--timeout", DRILLED_TOO, DRILLED_TOO),
    Part("--node-loss", DRILLED, DRILLED_TOO),
    Part("--crash", DRILLED, ("drill.a_task_of_an_array_is_drilled_alone",)),
    Part("--hang", DRILLED_TOO, DRILLED_TOO),
    Part("--requeue", DRILLED, DRILLED_TOO),
    Part("of one's own runs only", DRILLED, "the same command, refused before it looks at the mode"),
)

PARTS = {
    "array mode": ARRAYS,
    "drain": DRAIN,
    "ending": ENDING,
    "budgets": BUDGETS,
    "node loss": NODE_LOSS,
    "bad nodes": BAD_NODES,
    "hangs": HANGS,
    "fake Slurm": FAKE_SLURM,
    "drill": DRILLS,
}
