"""The table of `explained`: what is done to the runs of each test on a real Slurm.

The runs of a test stand in the order of the names of their directories, which for `submit` is that of the
submissions. Where Slurm may act in more than one way, all right answers are named.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.record.journal import Cause, Decision


class Told(NamedTuple):
    """One stop of a run, or several alike in a row."""

    causes: tuple[Cause | None, ...]  # of which each is a right answer; None: there is no record of it
    at: tuple[int, ...] | str | None = None  # the nodes to blame: places in the round, or a name; None: any
    by: str = ""  # a field of the JSON of the stop that tells more, which must not be empty
    least: int = 1
    most: int = 1
    otherwise: Told | None = None  # another right answer


class ToldRun(NamedTuple):
    """One run of a test."""

    stops: tuple[Told, ...]
    endings: tuple[Decision | None, ...]  # of which each is a right answer; None: it has not ended
    may_lack: bool = False  # Slurm may never have started it
    in_any_order: bool = False  # the names of the directories of the test's runs are random


def _stop(
    *causes: Cause | None,
    at: tuple[int, ...] | str | None = None,
    by: str = "",
    least: int = 1,
    most: int = 1,
) -> Told:
    return Told(causes, at, by, least, most)


def _run(*stops: Told, ends: Decision | tuple[Decision | None, ...] | None = None) -> ToldRun:
    return ToldRun(stops, ends if isinstance(ends, tuple) else (ends,))


_DONE, _FAILED, _HELD = Decision.DONE, Decision.FAILED, Decision.HELD
_STOPPED, _CANCELLED = Decision.STOPPED, Decision.CANCELLED
_PREEMPTED = _stop(Cause.PREEMPTION)
_SIGNALLED = _stop(Cause.PREEMPTION, by="signal")
# a script that dies before it has read its log leaves no more than what Slurm says to the agents
_BY_HAND = _stop(Cause.REQUEUE, Cause.NODE_LOSS)._replace(otherwise=_stop(Cause.PREEMPTION, by="detail"))
_LIMIT = _stop(Cause.TIME_LIMIT)
_STOP = _stop(Cause.STOP)
_CANCEL = _stop(Cause.CANCEL)
_PERHAPS_CANCEL = _stop(Cause.CANCEL, least=0)  # the test does not wait for the end
_UNDISTURBED = _run(ends=_DONE)
_RESUMED = _run(_PREEMPTED, ends=_DONE)
_LET_GO = _run(_CANCEL, ends=_CANCELLED)

_JOB_SCRIPTS = {  # of a user's own, whose end alone is on record
    "job_scripts.a_preempted_script_comes_back": (_RESUMED,),
    "job_scripts.a_preempted_script_that_runs_on_is_counted_once": (_RESUMED,),
    "job_scripts.a_script_at_its_time_limit_comes_back": (_run(_LIMIT, ends=_DONE),),
    "job_scripts.a_script_comes_back_after_a_node_is_lost": (
        _run(_stop(Cause.NODE_LOSS, at=(1,)), ends=_DONE),
    ),
    "job_scripts.a_script_comes_back_after_its_batch_host_is_lost": (
        _run(_stop(Cause.NODE_LOSS, at=(0,)), ends=_DONE),
    ),
    "job_scripts.a_cancelled_script_stays_cancelled": (_run(ends=_CANCELLED),),
    "job_scripts.a_trap_with_a_requeue_of_its_own_works": (_run(_stop(Cause.REQUEUE), ends=_DONE),),
    "job_scripts.each_task_of_an_array_comes_back_for_itself": (
        _UNDISTURBED,
        _run(ends=_FAILED),
        _run(_stop(Cause.REQUEUE), ends=_DONE),
    ),
    "job_scripts.the_components_of_a_heterogeneous_job_come_back_together": (
        _run(_stop(Cause.REQUEUE), ends=_DONE),
    ),
    "job_scripts.signals_reach_the_script_once": (_run(ends=_FAILED),),
}

_ARRAYS = {
    # a task is preempted, then two more at once, then too few are left to wait with
    "array.preempted_tasks_leave_alone_and_come_back": (
        _run(_stop(Cause.PREEMPTION, at=(0,)), _stop(Cause.PREEMPTION, at=(0, 1), most=2), ends=_DONE),
    ),
    # a node crashes, an agent is killed, and the task of a node that is cut off starts elsewhere
    "array.lost_tasks_come_back_and_cancelled_ones_do_not": (
        _run(
            # losses in a row are told as one, with the nodes of several rounds
            _stop(Cause.NODE_LOSS, most=4),
            # one task hears the signal of scancel a moment before Slurm says that it is one
            _stop(Cause.CANCEL, at=(0, 1, 2))._replace(otherwise=_stop(Cause.PREEMPTION, by="left")),
            _PERHAPS_CANCEL,
            ends=_CANCELLED,
        ),
    ),
    "array.a_run_is_scaled_stopped_and_resumed": (
        _run(
            _stop(Cause.MEMBERSHIP, least=2, most=6),
            _STOP,
            _stop(Cause.MEMBERSHIP, least=0, most=3),
            _stop(Cause.TIME_LIMIT, at=(1,)),
            _stop(Cause.MEMBERSHIP, least=0, most=3),
            _PERHAPS_CANCEL,
            ends=_CANCELLED,
        ),
    ),
    "array.a_task_that_comes_back_does_not_wait": (
        _run(_stop(Cause.PREEMPTION, at=(1,)), _STOP, ends=_STOPPED),
    ),
    "array.a_spent_budget_holds_all_tasks_until_they_are_released": (
        _run(_stop(Cause.PREEMPTION, most=2), _PERHAPS_CANCEL, ends=_CANCELLED),
    ),
    "array_faults.a_hang_is_found_told_and_mended": (_run(_stop(Cause.HANG, at=(1,)), ends=_DONE),),
    "array_faults.an_unfit_task_goes_to_another_node": (_run(_STOP, ends=_STOPPED),),
    "array_faults.a_task_at_its_limit_leaves_alone": (
        _run(_stop(Cause.TIME_LIMIT, at=(0,)), _STOP, ends=_STOPPED),
    ),
    "array_faults.a_run_that_has_too_few_tasks_left_ends": (
        _run(_stop(Cause.CANCEL, at=(0,)), ends=_FAILED),
    ),
    # a script is killed, a task is requeued, an srun is killed; a node is set down, two are preempted
    "array_slurm.what_happens_to_one_task_costs_no_other_its_start": (
        _run(
            _stop(Cause.LAUNCH_FAILURE, Cause.REQUEUE, at=(0, 1), most=2),
            _stop(Cause.NODE_LOSS, at=(0, 1, 2)),
            _stop(Cause.NODE_LOSS, at=(0,)),
            _stop(Cause.PREEMPTION, most=2),
            _STOP,
            ends=_STOPPED,
        ),
    ),
    "array_slurm.an_array_ends_once_and_for_all": (
        _UNDISTURBED,
        _run(_stop(Cause.CRASH, at=(1,), least=3, most=3), ends=_FAILED),
        _run(_stop(Cause.CRASH, at=(1,)), ends=_FAILED),
        _run(),
        _run(_stop(Cause.PREEMPTION, at=(0,), by="left"), _PERHAPS_CANCEL, ends=_CANCELLED),
    ),
}

_NODES = {
    "bad_nodes.a_node_without_its_gpus_stays_out_and_the_run_goes_on": (_UNDISTURBED,),
    "bad_nodes.a_node_that_fails_the_users_check_is_replaced": (
        _run(_stop(Cause.NODE_LOSS, at="node2", by="unfit"), ends=_DONE),
    ),
    "bad_nodes.a_node_on_which_the_same_failure_always_comes_is_left_out_first": (
        _run(_stop(Cause.CRASH, at="node2", least=3, most=3), ends=_DONE),
    ),
    "bad_nodes.a_lost_node_is_left_out_until_it_is_forgiven": (
        _run(_stop(Cause.NODE_LOSS, at=(1,)), ends=_DONE),
        ToldRun((), (None, _DONE), may_lack=True),
    ),
    "bad_nodes.nodes_that_are_taken_away_have_not_failed": (
        _run(_stop(Cause.NODE_LOSS, at=(2,), by="taken"), ends=_DONE),
    ),
    "lost_nodes.survivors_of_a_node_loss_go_on_in_the_allocation": (
        _run(_stop(Cause.NODE_LOSS, at=(2,)), ends=_DONE),
    ),
    "lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss[a-node]": (
        _run(_stop(Cause.NODE_LOSS, at=(2,)), ends=_DONE),
    ),
    "lost_nodes.a_run_of_fixed_size_is_requeued_after_a_node_loss[the-batch-host]": (
        _run(_stop(Cause.NODE_LOSS, at=(0,)), ends=_DONE),
    ),
    "lost_nodes.where_the_site_expedites_requeues_a_run_does_not_wait": (
        ToldRun((_stop(Cause.CRASH, at=(0,), most=4),), (_FAILED,), may_lack=True),
        ToldRun((_stop(Cause.NODE_LOSS, at=(0,)),), (_DONE,), may_lack=True),
    ),
    # the step of the job hangs in Slurm after the quick reboot, so that it may be requeued as well
    "lost_nodes.a_node_that_reboots_quickly_does_not_hold_the_run_up": (
        _run(_stop(Cause.NODE_LOSS, at=(2,)), _stop(Cause.NODE_LOSS, Cause.AGENT_ERROR, least=0), ends=_DONE),
        _run(_stop(Cause.NODE_LOSS, at=(0, 1, 2, 3)), _PERHAPS_CANCEL, ends=(_CANCELLED, None)),
    ),
    "lost_nodes.srun_does_not_hold_a_job_that_no_agent_is_left_of": (
        _run(_stop(Cause.NODE_LOSS, at=(1, 2)), ends=_DONE),
    ),
    "partition.the_agent_on_a_node_that_is_cut_off_stands_down": (_run(_BY_HAND, ends=_DONE),),
    # the late kill of the first start may hit an agent of the second one, or its launch fails
    "partition.a_node_that_comes_back_into_its_job_does_not_end_the_run": (
        _run(
            _BY_HAND,
            _stop(
                Cause.NODE_LOSS, Cause.JOIN_TIMEOUT, Cause.AGENT_ERROR, Cause.LAUNCH_FAILURE, least=0, most=3
            ),
            ends=_DONE,
        ),
    ),
}

_SLURM = {
    # a task of one and another run hear a signal that no Slurm explains, one ends, one trains over the outage
    "controller_down.runs_go_on_end_and_drain_without_slurmctld": (
        _run(_stop(Cause.PREEMPTION, by="left"), _stop(Cause.STOP, least=0), ends=(None, _STOPPED)),
        _run(_SIGNALLED, _stop(Cause.STOP, least=0), ends=(None, _STOPPED)),
        _UNDISTURBED,
        _UNDISTURBED,
    ),
    "controller_down.the_time_limit_comes_while_slurmctld_is_away": (
        _run(_stop(Cause.TIME_LIMIT, most=2)),
        _run(_stop(Cause.TIME_LIMIT, most=2)),
    ),
    "drain.a_preemption_grants_its_grace": (_run(_PREEMPTED),),
    "drain.without_grace_there_is_kill_wait": (_run(_PREEMPTED),),
    "drain.scancel_is_called_by_its_name": (_LET_GO,),
    "drain.after_a_stop_slurms_signal_is_explained": (_run(_STOP, ends=_STOPPED),) * 2,
    # TERM to srun kills the agents, which are started again; then a drain by hand
    "drain.signals_by_hand": (_run(_stop(Cause.AGENT_ERROR, by="detail"), _SIGNALLED),),
    "drain.other_signals_to_the_agents[USR1]": (_run(_LIMIT),),
    "drain.other_signals_to_the_agents[INT]": (_run(_stop(Cause.INTERRUPT), ends=_STOPPED),),
    "drain.a_file_ends_the_run": (_run(_STOP, ends=_STOPPED),),
    "drain.what_the_site_grants_is_kept_at_submit": (ToldRun((), (None, _DONE), may_lack=True),),
    # the array is cancelled and submitted by hand before its limit; then TERM by hand; then a limit
    "drain.a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns": (
        _run(_PERHAPS_CANCEL, _stop(Cause.TIME_LIMIT, most=2)),
        _run(_SIGNALLED),
        _run(_LIMIT),
    ),
    "ending.a_spent_budget_holds_the_job_until_its_user_releases_it": (_RESUMED,),
    "ending.a_job_that_slurm_has_put_back_does_not_start_for_a_failed_run": (_run(_PREEMPTED, ends=_FAILED),),
    "ending.the_same_failure_again_and_again_ends_the_run": (
        _run(_stop(Cause.CRASH, at=(0,), least=3, most=3), ends=_FAILED),
    ),
    "ending.where_slurm_may_not_requeue_a_job_another_one_goes_on": (_RESUMED,) * 3,
    "ending.a_failing_line_of_the_script_is_recorded_and_tried_again": (
        _run(_stop(Cause.LAUNCH_FAILURE, by="setup", least=0), ends=_HELD),
        _run(ends=_FAILED),
        _run(_stop(Cause.LAUNCH_FAILURE, by="setup"), ends=_DONE),
    ),
    "ending.slurm_names_the_cause_not_the_signal": (
        _run(_stop(Cause.NODE_LOSS, at=(0,)), _stop(Cause.REQUEUE)),
    ),
    "ending.a_limit_that_comes_without_a_warning": (_run(_LIMIT),),
    # the first is cancelled in the grace of its preemption, the second one in the queue after it
    "ending.a_job_cancelled_while_it_drains_or_waits_is_not_brought_back": (
        _run(_stop(Cause.PREEMPTION, Cause.CANCEL), ends=_CANCELLED),
        _run(_PREEMPTED),
    ),
    "ending.a_batch_script_that_is_killed": (_run(_stop(Cause.LAUNCH_FAILURE, by="detail"), ends=_DONE),),
    "ending.preemption_that_cancels": (_RESUMED, _run(_stop(Cause.PREEMPTION, most=2))),
    "ending.a_suspended_run_goes_on_where_it_stood": (_UNDISTURBED,) * 2,
    "main_job.a_preempted_run_resumes_by_itself": (
        # a late kill of the first start may hit the second one, which is then started again
        _run(_PREEMPTED, _stop(Cause.AGENT_ERROR, least=0), ends=_DONE),
    ),
    "main_job.a_run_under_a_step_manager_is_preempted": (_RESUMED._replace(may_lack=True),),
    "main_job.a_cancelled_run_is_never_requeued": (_LET_GO,),
    "main_job.stop_saves_and_ends_the_run": (_run(_STOP, ends=_DONE),),
    "long_runs.the_time_limit_costs_no_step": (
        _run(_stop(Cause.TIME_LIMIT, most=4), ends=_DONE),
        _run(_stop(Cause.TIME_LIMIT, most=3), _PERHAPS_CANCEL, ends=(None, _CANCELLED)),
        _run(_stop(Cause.NODE_DRAIN, at="node4", by="detail"), _PERHAPS_CANCEL, ends=(None, _CANCELLED)),
        _run(
            _stop(Cause.NODE_DRAIN, at="node4", by="left", most=2), _PERHAPS_CANCEL, ends=(None, _CANCELLED)
        ),
    ),
    # of the array `stop` may come before the round of the tasks that leave is over
    "long_runs.a_lowered_limit_does_not_end_a_start_as_it_begins": (
        _run(_stop(Cause.TIME_LIMIT, most=2), _stop(Cause.STOP, least=0), ends=(None, _STOPPED)),
        _run(_stop(Cause.TIME_LIMIT, least=0, most=2), _stop(Cause.STOP, least=0), ends=(None, _STOPPED)),
    ),
    "started_by_workers.a_preemption_does_not_end_what_workers_have_started": (
        _run(_stop(Cause.PREEMPTION, most=2)),
    ),
}

_FAULTS = {
    # each start is lost with its only node, and the next one says so
    "unwritten.a_task_that_is_lost_with_its_node_each_time_is_counted": (
        _run(_stop(Cause.NODE_LOSS, at=(0,), least=2, most=2), ends=_HELD),
    ),
    "unwritten.nodes_that_are_lost_with_everybody_on_them_are_counted": (
        _run(_stop(Cause.NODE_LOSS, least=2, most=2), ends=_HELD),
    ),
    "unwritten.an_expedited_requeue_is_counted_as_any_other": (
        _run(_stop(Cause.NODE_LOSS, least=2, most=2), ends=_HELD)._replace(may_lack=True),
    ),
    "unwritten.a_run_with_one_start_has_no_other": (_run(ends=None),),
    "unwritten.the_loss_of_a_job_of_a_chain_is_counted_by_the_next_one": (
        _run(_stop(Cause.NODE_LOSS, at=(0,)), ends=_DONE),
    ),
    "unwritten.preemptions_that_may_kill_the_script_are_counted": (
        _run(_stop(Cause.PREEMPTION, least=2, most=2), ends=_HELD),
    ),
    "unwritten.a_node_that_is_lost_again_is_left_out": (
        _run(
            _stop(Cause.NODE_LOSS, at=(0,), least=2, most=2),
            _stop(Cause.NODE_LOSS, by="unfit", least=0),
            ends=_DONE,
        ),
    ),
    "unwritten.a_preemption_before_the_agents_listen_starts_nothing": (_RESUMED,),
    # a task whose agent has not come to meet the others has stopped no round
    "unwritten.a_preemption_before_the_agents_listen_starts_nothing[array]": (
        _run(_stop(Cause.PREEMPTION, least=0), ends=_DONE),
    ),
    # 26.05 requeues the job by itself, and the node is then seen to have been taken
    "ending.a_batch_host_that_is_set_down_is_a_lost_node": (
        _run(
            _stop(Cause.NODE_LOSS)._replace(otherwise=_stop(Cause.NODE_LOSS, by="taken")),
            ends=_DONE,
        ),
    ),
    "unwritten.a_second_job_of_one_script_does_nothing": (_UNDISTURBED,),
    # resumed; the agent may hear the signal that follows the death of the script before it is killed, too
    "unwritten.a_job_whose_processes_are_all_killed_says_how_it_goes_on": (
        _run(_stop(Cause.PREEMPTION, by="signal", least=0), ends=_DONE),
    ),
    # the survivor may see the silence of the other agent before the end of the script
    "unwritten.a_job_of_two_nodes_outlives_the_death_of_all_on_its_batch_host": (
        _run(_stop(Cause.LAUNCH_FAILURE, Cause.NODE_LOSS, least=1, most=2), ends=_DONE),
    ),
    "unwritten.a_worker_without_a_program_ends_the_job_at_once": (_run(_stop(Cause.CRASH), ends=_FAILED),),
    "faults.a_worker_crash_is_mended_in_place": (_run(_stop(Cause.CRASH, at=(1,)), ends=_DONE),),
    "faults.final_failure_ends_everything_with_one_root_cause": (
        _run(_stop(Cause.CRASH, at=(1,), least=2, most=2), ends=_FAILED),
    ),
    "faults.a_killed_srun_is_started_again": (_run(_stop(Cause.AGENT_ERROR, by="detail"), ends=_DONE),),
    "faults.a_killed_agent_on_the_batch_host_costs_no_wait": (
        _run(_stop(Cause.NODE_LOSS, at=(0,)), ends=_DONE),
    ),
    # an agent is killed, and while the others meet anew the batch script is, too
    "faults.a_script_that_is_killed_between_rounds_is_replaced": (
        _run(_stop(Cause.NODE_LOSS, at=(1,)), _stop(Cause.LAUNCH_FAILURE, by="detail", least=0), ends=_DONE),
    ),
    "faults.an_agent_that_never_comes_is_not_waited_for": (
        _run(_stop(Cause.JOIN_TIMEOUT, at="node2"), ends=_DONE),
    ),
    "hangs.a_hang_is_found_told_and_mended": (_run(_stop(Cause.HANG, at=(1,)), ends=_DONE),),
    # the step of each run is cancelled, which kills its agents
    "forged_answers.runs_whose_job_looks_cancelled_go_on": (
        _run(_stop(Cause.AGENT_ERROR, by="detail"), _PERHAPS_CANCEL, ends=_CANCELLED),
    )
    * 5,
    "drill.a_drill_in_which_nothing_was_saved_fails": (_run(_SIGNALLED),),
    # a worker of the task that is to leave fails in place of saving, or none does
    "drill.a_drill_of_an_array_in_which_nothing_was_saved_fails[3]": (
        _run(_stop(Cause.CRASH, Cause.PREEMPTION, at=(1,), by="drill")),
    ),
    "drill.a_drill_of_an_array_in_which_nothing_was_saved_fails[nobody]": (
        _run(_stop(Cause.PREEMPTION, by="left")),
    ),
    "drill.a_run_that_never_saves_is_held": (
        _run(_stop(Cause.PREEMPTION, by="signal", least=3, most=3), ends=_HELD),
    ),
    "drill.an_array_that_never_saves_is_held": (_run(_stop(Cause.PREEMPTION, least=3, most=4), ends=_HELD),),
    "drill.one_run_survives_each_drill": (
        _run(
            _stop(Cause.CRASH, at="node2", by="drill"),
            _stop(Cause.NODE_LOSS, at="node3", by="drill"),
            _SIGNALLED,
            _stop(Cause.REQUEUE),
            _PERHAPS_CANCEL,
            ends=(None, _CANCELLED),
        ),
    ),
    "drill.a_task_of_an_array_is_drilled_alone": (
        _run(
            _stop(Cause.CRASH, at="node3", by="drill"),
            _stop(Cause.PREEMPTION, at="node2", by="left"),
            _PERHAPS_CANCEL,
            ends=(None, _CANCELLED),
        ),
    ),
    "drill.drills_in_both_modes": (
        _run(
            _stop(Cause.HANG, by="drill"),
            _stop(Cause.TIME_LIMIT),
            _PERHAPS_CANCEL,
            ends=(None, _CANCELLED),
        ),
        _run(
            _stop(Cause.HANG, by="drill"),
            _stop(Cause.NODE_LOSS, by="drill"),
            _PERHAPS_CANCEL,
            ends=(None, _CANCELLED),
        ),
        _run(
            _stop(Cause.TIME_LIMIT),
            _stop(Cause.REQUEUE, Cause.PREEMPTION),  # a quick agent is gone before Slurm has told why
            _PERHAPS_CANCEL,
            ends=(None, _CANCELLED),
        ),
    ),
}

# one finds another port, and one has no other
_NO_PORT_LEFT = (
    _UNDISTURBED._replace(in_any_order=True),
    _run(_stop(Cause.CRASH, at=(0,)), ends=_FAILED)._replace(in_any_order=True),
)

_OTHER_WAYS_IN = {
    "frameworks.lightning_and_accelerate_are_preempted": (_RESUMED,) * 2,
    "frameworks.hydras_launcher_is_preempted": (_RESUMED,),
    "launcher.a_program_below_srun_launches_on_all_its_nodes": (
        _UNDISTURBED._replace(in_any_order=True),
        _UNDISTURBED._replace(in_any_order=True),
        _run(_stop(Cause.CRASH, at=(1,)), ends=_FAILED)._replace(in_any_order=True),
    ),
    "launcher.a_requeued_program_takes_its_run_up_again": (_run(_BY_HAND, ends=_DONE),),
    "long_runs.digits_ddp_preempted_and_crashed_has_the_same_weights": (
        _run(_stop(Cause.CRASH, at=(1,)), _PREEMPTED, ends=_DONE),
    ),
    "own_scripts.a_preempted_script_is_requeued": (_RESUMED,),
    "own_scripts.another_job_takes_a_stopped_run_up": (_run(_STOP, ends=_DONE),),
    # agents that were killed, so that `stop` ends the job; a node that never came; a failure
    "partial_launch.what_a_users_own_script_is_told": (
        _run(ends=_STOPPED)._replace(in_any_order=True),
        _run(_stop(Cause.JOIN_TIMEOUT, at="node3"), ends=_STOPPED)._replace(in_any_order=True),
        _run(_stop(Cause.CRASH, at=(0, 1)), ends=_FAILED)._replace(in_any_order=True),
    ),
    "runs_from_python.values_of_a_preempted_function_come_back": (_RESUMED,),
    "submitit.a_preempted_job_gives_its_values": (_RESUMED,),
    "submitit_arrays.each_call_is_cancelled_and_preempted_alone": (
        _run(_PERHAPS_CANCEL, ends=_CANCELLED),
        _RESUMED,
        _RESUMED,
        ToldRun((), (None, _CANCELLED), may_lack=True),
    ),
    "other_users_cwd.commands_beside_a_run_take_nothing_from_there": (
        _run(_stop(Cause.CRASH, by="drill"), _PERHAPS_CANCEL, ends=_CANCELLED),
    ),
    "other_users_cwd.what_is_planted_while_tasks_of_an_array_run_takes_no_part": (
        _run(_stop(Cause.CRASH, by="drill"), _STOP, ends=_STOPPED),
    ),
    # another run that waits may be put in the place of the first one
    "other_users_directories.a_run_whose_directory_is_taken_ends_with_a_clear_line": (
        _run(ends=_FAILED)._replace(in_any_order=True),
        ToldRun((), (None,), may_lack=True, in_any_order=True),
    ),
    "other_users_directories.a_requeued_job_does_not_go_on_in_a_directory_that_was_taken_meanwhile": (
        _run(_stop(Cause.REQUEUE)),
    ),
    # its workers fail by themselves, if they are not ended before for want of the directory
    "other_users_moments.agents_whose_directory_is_exchanged_all_the_time_do_nothing_of_bobs": (
        ToldRun((_stop(Cause.CRASH, least=0, most=8),), (_FAILED, None), may_lack=True),
    ),
    # its administrator requeues it again and again, at any moment of a start; where its directory is away
    # just then, an agent cannot go on, no agent starts, or nobody records why a start is over
    "other_users_moments.a_job_whose_functions_are_exchanged_as_it_starts_runs_none_of_bobs": (
        ToldRun(
            (
                _stop(
                    *(Cause.REQUEUE, Cause.CRASH, Cause.PREEMPTION, Cause.CANCEL),
                    *(Cause.AGENT_ERROR, Cause.LAUNCH_FAILURE, Cause.NODE_LOSS, None),
                    least=0,
                    most=16,
                ),
            ),
            (_FAILED, _HELD, _CANCELLED, None),
            may_lack=True,
        ),
    ),
    "other_users_moments.an_acl_by_which_bob_may_rename_is_told_and_used_for_nothing": (_run(ends=_FAILED),),
    "other_users_sockets.a_port_that_bob_has_first_is_passed_over[127.0.0.1]": _NO_PORT_LEFT,
    "other_users_sockets.a_port_that_bob_has_first_is_passed_over[0.0.0.0]": _NO_PORT_LEFT,
    # of the script that is kept torchrun's own agents meet, which record nothing more
    "torchrun.a_script_with_torchrun_is_preempted": (
        _RESUMED._replace(in_any_order=True),
        _run(_stop(None))._replace(in_any_order=True),
    ),
}

EXPLAINED: dict[str, tuple[ToldRun, ...]] = {
    **_ARRAYS,
    **_JOB_SCRIPTS,
    **_NODES,
    **_SLURM,
    **_FAULTS,
    **_OTHER_WAYS_IN,
}
"""Name of a test, with its parameters where they matter -> its runs."""

QUIET = {
    "devcluster": "jobs without hpc_elastic",
    "doctor": "no run",
    "init": "no run",
    "slurm_answers": "jobs without hpc_elastic",
    "slurm_limits": "jobs without hpc_elastic",
    "slurm_node_loss": "jobs without hpc_elastic",
    "slurm_preemption": "jobs without hpc_elastic",
    "slurm_shapes": "jobs without hpc_elastic",
    "slurm_signals": "jobs without hpc_elastic",
    "slurm_sites": "jobs without hpc_elastic",
    "main_job.three_nodes_with_two_workers_each_finish": "undisturbed",
    "main_job.a_finished_job_that_slurm_starts_again_ends_at_once": "it is done before",
    "mixed_nodes": "undisturbed",
    "partition.a_short_cut_and_a_restart_of_slurmd_disturb_nobody": "neither run notices",
    "task_variables": "undisturbed",
    "torchrun_lines": "undisturbed",
    "forged_answers.a_control_character_is_refused_before_anything_is_queued": "no run",
    "forged_answers.characters_that_slurm_takes_mislead_nobody": "only cancelled at the end",
    "forged_answers.control_characters_that_an_owner_writes_later_mislead_nobody": "cancelled at the end",
    "forged_answers.jobs_of_bobs_with_the_mark_of_a_run_are_not_taken_for_its_own": "it never starts",
    "other_users_cwd": "another user plants files, which changes nothing",
    "other_users_directories": "another user takes directories",
    "other_users_files": "another user plants files, which changes nothing",
    "other_users_moments": "another user exchanges directories, which changes nothing",
    "other_users_sockets": "another user connects, which changes nothing",
}
"""A file of tests, or a test, whose runs at most end as the test wishes; and why."""
