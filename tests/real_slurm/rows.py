"""What Slurm does and what we do about it, one row per event, and the tests that hold each row.

Tests of `test_slurm_*.py` pin down Slurm itself: they turn red where another version behaves otherwise.
The others pin down what a run of ours does.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One event.

    Attributes:
        event: what happens to the job.
        slurm: tests of what Slurm does, as file.test without their common prefixes.
        ours: tests of what our run does; empty where our code relies on the fact alone.
    """

    event: str
    slurm: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()


SIGNALS = (
    Row(
        "preempted with grace time, nobody reacts",
        (
            "slurm_preemption.grace_tells_the_tasks_only",
            "slurm_preemption.workers_are_told_by_one_tracker_only",
            "slurm_preemption.who_does_not_leave_is_requeued",
        ),
        ("main_job.a_preempted_run_resumes_by_itself", "drain.a_preemption_grants_its_grace"),
    ),
    Row(
        "preempted, the job ends within the grace time",
        ("slurm_preemption.who_ends_within_the_grace_time",),
        ("own_scripts.a_preempted_script_is_requeued", "main_job.a_preempted_run_resumes_by_itself"),
    ),
    Row(
        "preempted, the script exits with RequeueExit",
        (
            "slurm_preemption.who_asks_for_it_is_requeued_at_once",
            "slurm_preemption.the_next_end_of_who_has_asked_for_it",
        ),
    ),
    Row(
        "preempted, the script asks to be requeued",
        ("slurm_preemption.who_asks_for_it_is_requeued_at_once",),
        ("main_job.a_preempted_run_resumes_by_itself",),
    ),
    Row("preempted, the script parks", ("slurm_preemption.who_does_not_leave_is_requeued",)),
    Row(
        "preempted without grace time",
        ("slurm_preemption.without_grace_everybody_is_told_at_once",),
        ("main_job.a_preempted_run_resumes_by_itself", "drain.without_grace_there_is_kill_wait"),
    ),
    Row(
        "preempted with --no-requeue",
        ("slurm_preemption.no_requeue_is_final",),
        ("ending.where_slurm_may_not_requeue_a_job_another_one_goes_on",),
    ),
    Row(
        "preempted where preemption cancels",
        ("slurm_sites.a_site_may_cancel_and_send_the_jobs_own_signal",),
        ("ending.preemption_that_cancels",),
    ),
    Row(
        "suspended for another job",
        ("slurm_sites.a_suspended_job_keeps_its_nodes",),
        ("ending.a_suspended_run_goes_on_where_it_stood",),
    ),
    Row(
        "preempted where the site sends the signal of the job",
        ("slurm_sites.a_site_may_cancel_and_send_the_jobs_own_signal",),
        ("drain.other_signals_to_the_agents",),
    ),
    Row("preempted with --signal elsewhere", ("slurm_preemption.a_warning_signal_is_not_used",)),
    Row("one of its nodes is wanted", ("slurm_preemption.one_node_costs_the_whole_job",)),
    Row(
        "warned ahead of the time limit",
        ("slurm_limits.a_warning_goes_to_whom_it_was_asked_for",),
        ("long_runs.the_time_limit_costs_no_step",),
    ),
    Row(
        "the time limit",
        (
            "slurm_limits.the_limit_tells_everybody_and_is_final",
            "slurm_limits.a_job_at_its_limit_can_be_put_back",
        ),
        ("drain.a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns",),
    ),
    Row(
        "scancel",
        (
            "slurm_signals.the_end_of_a_job_is_told_to_script_and_tasks",
            "slurm_signals.scancel_is_final",
            "slurm_signals.a_script_can_bring_a_cancelled_job_back",
        ),
        (
            "main_job.a_cancelled_run_is_never_requeued",
            "drain.scancel_is_called_by_its_name",
            "ending.a_job_cancelled_while_it_drains_or_waits_is_not_brought_back",
        ),
    ),
    Row(
        "scancel --signal, to steps, script or all",
        (
            "slurm_signals.signals_for_steps_reach_tasks_only",
            "slurm_signals.signals_for_the_script_reach_no_task",
            "slurm_signals.signals_for_all_go_through_srun",
            "slurm_signals.without_srun_the_tasks_are_killed",
        ),
        ("drain.signals_by_hand", "drain.other_signals_to_the_agents"),
    ),
    Row(
        "scancel of the step",
        ("slurm_signals.without_srun_the_tasks_are_killed",),
        ("faults.a_killed_srun_is_started_again",),
    ),
    Row(
        "scontrol requeue, requeuehold",
        (
            "slurm_signals.the_end_of_a_job_is_told_to_script_and_tasks",
            "slurm_signals.a_requeued_job_runs_again",
        ),
        (
            "launcher.a_requeued_program_takes_its_run_up_again",
            "partition.a_node_that_comes_back_into_its_job_does_not_end_the_run",
            "ending.slurm_names_the_cause_not_the_signal",
        ),
    ),
    Row(
        "scontrol requeue of a job that is over",
        ("slurm_signals.a_job_that_is_over_can_be_requeued",),
        ("main_job.a_finished_job_that_slurm_starts_again_ends_at_once",),
    ),
    Row(
        "a node is drained or set down",
        ("slurm_signals.a_drained_node_lets_its_jobs_run_but_a_node_set_down_does_not",),
        ("ending.slurm_names_the_cause_not_the_signal",),
    ),
    Row(
        "the batch script is killed",
        ("slurm_signals.the_death_of_the_script_ends_the_job",),
        ("ending.a_batch_script_that_is_killed",),
    ),
    Row(
        "srun is killed, or told TERM or USR1",
        ("slurm_signals.without_srun_the_tasks_are_killed", "slurm_signals.srun_forwards_usr1"),
        ("faults.a_killed_srun_is_started_again", "drain.signals_by_hand"),
    ),
    Row(
        "one agent exits or is killed",
        (
            "slurm_signals.the_death_of_a_task_leaves_the_others_alone",
            "slurm_signals.settings_of_a_site_would_end_the_others",
        ),
        (
            "faults.a_killed_agent_on_the_batch_host_costs_no_wait",
            "drain.a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns",
        ),
    ),
    Row(
        "slurmctld is down, frozen or started anew",
        ("slurm_signals.jobs_do_not_notice_that_slurmctld_restarts",),
        ("controller_down.runs_go_on_end_and_drain_without_slurmctld",),
    ),
    Row("a requeued job waits", ("slurm_limits.a_requeued_job_waits_unless_its_owner_hurries_it",)),
    Row("bash hears SIGTERM", ("slurm_shapes.a_script_that_traps_outlives_its_srun",)),
)

NODE_LOSS = (
    Row("a node is lost, sbatch default", ("slurm_node_loss.by_default_a_lost_node_costs_the_job",)),
    Row("a node is lost, --no-requeue", ("slurm_node_loss.without_requeue_the_loss_is_final",)),
    Row(
        "a node is lost, --no-kill of sbatch alone", ("slurm_node_loss.no_kill_of_sbatch_alone_is_the_worst",)
    ),
    Row("a node is lost, --no-kill of srun alone", ("slurm_node_loss.by_default_a_lost_node_costs_the_job",)),
    Row(
        "a node is lost, --no-kill of both",
        (
            "slurm_node_loss.no_kill_of_both_lets_the_others_go_on",
            "slurm_node_loss.a_lost_node_of_a_job_that_runs_on_is_told",
        ),
        (
            "lost_nodes.survivors_of_a_node_loss_go_on_in_the_allocation",
            "lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss",
        ),
    ),
    Row(
        "the batch host is lost",
        ("slurm_node_loss.nobody_ends_a_job_without_its_batch_host",),
        ("lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss",),
    ),
    Row(
        "a node reboots within SlurmdTimeout",
        ("slurm_node_loss.a_quick_reboot_may_go_unnoticed",),
        ("lost_nodes.a_node_that_reboots_quickly_does_not_hold_the_run_up",),
    ),
    Row(
        "slurmd is killed and back, the link is cut for 5 s",
        ("slurm_node_loss.a_restart_of_slurmd_disturbs_nobody",),
        ("partition.a_short_cut_and_a_restart_of_slurmd_disturb_nobody",),
    ),
    Row(
        "a node is cut off, its old agent goes on",
        ("devcluster.cut_node_runs_on_alone",),
        ("partition.the_agent_on_a_node_that_is_cut_off_stands_down",),
    ),
    Row(
        "healed: a late kill hits the new agent, or rc 168",
        (),
        ("partition.a_node_that_comes_back_into_its_job_does_not_end_the_run",),
    ),
    Row(
        "requeued before the loss is noticed",
        ("slurm_sites.a_requeue_before_the_loss_is_noticed_may_cost_the_gpus",),
    ),
    Row("a node is given back by the user", ("slurm_shapes.a_job_shrinks_but_does_not_grow",)),
)

PATTERNS = (
    Row(
        "--requeue=expedite",
        ("slurm_sites.an_expedited_requeue_does_not_wait",),
        ("lost_nodes.where_the_site_expedites_requeues_a_run_does_not_wait",),
    ),
    Row("--stepmgr", (), ("main_job.a_run_under_a_step_manager_is_preempted",)),
    Row("--nodes=MIN-MAX", ("slurm_shapes.a_range_of_nodes_gives_what_is_free",)),
    Row(
        "array of one-node jobs",
        ("slurm_shapes.array_tasks_are_requeued_by_their_full_name",),
        (
            "array.preempted_tasks_leave_alone_and_come_back",
            "array.lost_tasks_come_back_and_cancelled_ones_do_not",
        ),
    ),
    Row("hetjob", ("slurm_shapes.components_of_a_hetjob_make_one_step",)),
    Row(
        "dependencies",
        ("slurm_shapes.dependencies_wait_for_the_final_state",),
        ("ending.where_slurm_may_not_requeue_a_job_another_one_goes_on",),
    ),
    Row("--ntasks-per-node of srun", ("slurm_shapes.tasks_per_node_of_srun_do_not_override_the_job",)),
    Row("a second srun", ("slurm_shapes.a_second_step_needs_overlap",)),
    Row("queries", ("slurm_shapes.what_the_queries_of_this_version_can_say",)),
    Row(
        "texts that look like Slurm's words",
        (
            "slurm_answers.a_job_with_hostile_texts_is_read_as_it_is",
            "slurm_answers.tasks_of_an_array_are_read_one_by_one",
            "slurm_answers.a_node_with_a_hostile_reason_is_read_as_it_is",
        ),
        ("forged_answers.runs_whose_job_looks_cancelled_go_on",),
    ),
    Row("accounting", ("devcluster.accounting_knows_finished_jobs",)),
)

ENVIRONMENT = (
    Row("names and numbers", ("slurm_shapes.an_agent_is_told_who_and_where_it_is",)),
    Row(
        "GPUs of a node",
        ("slurm_shapes.gpus_of_a_node_are_told",),
        ("main_job.three_nodes_with_two_workers_each_finish",),
    ),
    Row("GPUs per task, none, CPUs", ("slurm_shapes.gpus_per_task_are_split",)),
)

PROTOCOL = (
    Row("a run ends well", (), ("main_job.three_nodes_with_two_workers_each_finish",)),
    Row("a run fails", (), ("faults.final_failure_ends_everything_with_one_root_cause",)),
    Row("a run is stopped and resumed", (), ("main_job.stop_saves_and_ends_the_run",)),
    Row("a step is started again", (), ("faults.a_killed_srun_is_started_again",)),
    Row("an array task alone is drained", (), ("array.preempted_tasks_leave_alone_and_come_back",)),
    Row("submitit", (), ("submitit.a_preempted_job_gives_its_values",)),
    Row(
        "one task of several calls is preempted, or cancelled",
        (),
        ("submitit_arrays.each_call_is_cancelled_and_preempted_alone",),
    ),
)

ROWS = {
    "signals": SIGNALS,
    "node loss": NODE_LOSS,
    "patterns": PATTERNS,
    "environment": ENVIRONMENT,
    "protocol": PROTOCOL,
}
