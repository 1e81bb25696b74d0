"""In which order several workers take the tests on a real Slurm, so that all of them end at the same time."""

from __future__ import annotations

import re

from tests.real_slurm.core import CORE

SHARE_JOBS = re.compile(r"test_slurm_(?:limits|node_loss|preemption|shapes|signals)\.py")
"""Files in which all tests look at the same jobs."""

SECONDS = {
    "test_frameworks.py::test_lightning_and_accelerate_are_preempted": 110,
    "test_controller_down.py::test_the_time_limit_comes_while_slurmctld_is_away": 100,
    "test_partition.py::test_a_node_that_comes_back_into_its_job_does_not_end_the_run": 80,
    "test_long_runs.py::test_digits_ddp_preempted_and_crashed_has_the_same_weights": 90,
    "test_controller_down.py::test_runs_go_on_end_and_drain_without_slurmctld": 90,
    "test_lost_nodes.py::test_a_node_that_reboots_quickly_does_not_hold_the_run_up": 90,
    "test_long_runs.py::test_the_time_limit_costs_no_step": 80,
    "test_lost_nodes.py::test_a_run_of_fixed_size_is_requeued_after_a_node_loss": 50,
    "test_torchrun.py::test_a_script_with_torchrun_is_preempted": 70,
    "test_lost_nodes.py::test_srun_does_not_hold_a_job_that_no_agent_is_left_of": 50,
    "test_partial_launch.py::test_what_a_users_own_script_is_told": 60,
    "test_slurm_shapes.py": 60,
    "test_partition.py::test_the_agent_on_a_node_that_is_cut_off_stands_down": 40,
    "test_slurm_node_loss.py": 60,
    "test_drain.py::test_a_site_that_kills_on_bad_exits_and_a_job_that_nobody_warns": 50,
    "test_drill.py::test_one_run_survives_each_drill": 50,
    "test_slurm_limits.py": 50,
    "test_partition.py::test_a_short_cut_and_a_restart_of_slurmd_disturb_nobody": 40,
    "test_slurm_signals.py": 40,
    "test_slurm_preemption.py": 40,
    "test_array.py::test_lost_tasks_come_back_and_cancelled_ones_do_not": 40,
    "test_array.py::test_a_run_is_scaled_stopped_and_resumed": 40,
    "test_doctor.py::test_a_node_that_has_another_directory_is_named": 40,
    "test_hangs.py::test_a_hang_is_found_told_and_mended": 40,
    "test_bad_nodes.py::test_a_lost_node_is_left_out_until_it_is_forgiven": 40,
    "test_array.py::test_preempted_tasks_leave_alone_and_come_back": 30,
    "test_lost_nodes.py::test_survivors_of_a_node_loss_go_on_in_the_allocation": 30,
    "test_devcluster.py::test_crashed_node_is_dead_and_its_job_requeued": 30,
    "test_slurm_sites.py::test_a_site_may_cancel_and_send_the_jobs_own_signal": 30,
    "test_forged_answers.py::test_runs_whose_job_looks_cancelled_go_on": 40,
    "test_ending.py::test_a_limit_that_comes_without_a_warning": 30,
}
"""What tests take that take long, and files whose tests share jobs [s]; to the nearest ten."""


def plain_name(nodeid: str) -> str:
    """Return the name of a test as `rows` and `core` have it."""
    file, _, test = nodeid.rpartition("/")[2].partition("::")
    return f"{file.removeprefix('test_').removesuffix('.py')}.{test.removeprefix('test_').partition('[')[0]}"


def unit(nodeid: str) -> str:
    """Return the name of what one worker has to run as a whole: a test, or those that share jobs."""
    file, _, test = nodeid.rpartition("/")[2].partition("::")
    return f"{file} {tracker(nodeid)}" if SHARE_JOBS.fullmatch(file) else f"{file}::{test}"


def tracker(nodeid: str) -> str:
    """Return the process tracker of a test; empty if it starts clusters of its own."""
    found = re.search(r"\[(linuxproc|cgroup2?)\b", nodeid)
    return found[1] if found else ""


def trackers(test: str, *, both: bool, asked: str, core_under: str) -> list[str]:
    """Return the process trackers that a test runs under.

    Args:
        test: its name as `core` has it.
        both: whether it is marked `both_trackers`.
        asked: trackers for all tests, with commas between them; empty: each test's own.
        core_under: the one for the core of the tests, where `asked` names none; empty: each test's own.
    """
    if asked:
        return asked.split(",")
    if core_under and test in CORE:
        return [core_under]
    return ["linuxproc", "cgroup"] if both else ["linuxproc"]


def rank(nodeid: str) -> tuple[int, int]:
    """Return the place of a test: long ones first, but all of one tracker, as each cluster has one."""
    name = unit(nodeid).partition("[")[0].partition(" ")[0]
    return {"cgroup2": 0, "cgroup": 1, "": 2, "linuxproc": 3}[tracker(nodeid)], -SECONDS.get(name, 0)
