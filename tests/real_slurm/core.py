"""The tests that every version of Slurm has to pass in continuous integration; on one it runs all of them.

They are named as in `rows`. Each event by which a run may end, and each fact that differs between versions,
is among them.
"""

from __future__ import annotations

CORE = frozenset(
    (
        # a run from its beginning to its end
        "main_job.three_nodes_with_two_workers_each_finish",
        "main_job.stop_saves_and_ends_the_run",
        "main_job.a_cancelled_run_is_never_requeued",
        "faults.final_failure_ends_everything_with_one_root_cause",
        "task_variables.each_worker_is_a_task_of_its_own",
        "task_variables.an_agent_has_all_cpus_of_a_node_that_is_its_own",
        # what Slurm does to it
        "main_job.a_preempted_run_resumes_by_itself",
        "main_job.a_run_under_a_step_manager_is_preempted",
        "drain.a_preemption_grants_its_grace",
        "drain.without_grace_there_is_kill_wait",
        "ending.a_limit_that_comes_without_a_warning",
        "ending.a_job_cancelled_while_it_drains_or_waits_is_not_brought_back",
        "ending.slurm_names_the_cause_not_the_signal",
        "bad_nodes.nodes_that_are_taken_away_have_not_failed",
        "controller_down.runs_go_on_end_and_drain_without_slurmctld",
        # what breaks
        "lost_nodes.survivors_of_a_node_loss_go_on_in_the_allocation",
        "lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss",
        "lost_nodes.where_the_site_expedites_requeues_a_run_does_not_wait",
        "ending.a_batch_script_that_is_killed",
        "ending.a_batch_host_that_is_set_down_is_a_lost_node",
        "faults.a_script_that_is_killed_between_rounds_is_replaced",
        "faults.a_killed_srun_is_started_again",
        # arrays
        "array.preempted_tasks_leave_alone_and_come_back",
        "array.lost_tasks_come_back_and_cancelled_ones_do_not",
        "array.a_task_that_comes_back_does_not_wait",
        "array.a_run_is_scaled_stopped_and_resumed",
        "array_slurm.what_happens_to_one_task_costs_no_other_its_start",
        "array_slurm.an_array_ends_once_and_for_all",
        "array_faults.a_task_at_its_limit_leaves_alone",
        # other ways in
        "drill.one_run_survives_each_drill",
        "own_scripts.a_preempted_script_is_requeued",
        "submitit.a_preempted_job_gives_its_values",
        # facts of Slurm
        "slurm_node_loss.a_lost_node_of_a_job_that_runs_on_is_told",
        "slurm_node_loss.no_kill_of_both_lets_the_others_go_on",
        "slurm_node_loss.nobody_ends_a_job_without_its_batch_host",
        "slurm_preemption.who_ends_within_the_grace_time",
        "slurm_preemption.grace_tells_the_tasks_only",
        "slurm_shapes.an_agent_is_told_who_and_where_it_is",
        "slurm_shapes.a_range_of_nodes_gives_what_is_free",
        "slurm_signals.the_death_of_the_script_ends_the_job",
    )
)
