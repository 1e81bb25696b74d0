"""The use that the control group of a step of Slurm tells, in both versions; nothing outside of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.processes.control_group import JobUsage, job_usage

V2_MOUNTS = "30 23 0:26 / {root} rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / {root}/memory rw - cgroup cgroup rw,memory\n"
)
STEP = "/slurm/uid_1/job_7/step_0"


def write(place: Path, **files: str) -> None:
    """Write files of a control group; two underscores in a name stand for a dot."""
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)


def test_the_use_of_a_step_is_that_of_all_its_tasks(tmp_path: Path) -> None:
    """Version 2: the group of the step, not that of the task in which the agent is."""
    write(
        Path(f"{tmp_path}{STEP}"),
        cpu__stat="usage_usec 90500000\nuser_usec 1\n",
        memory__peak=f"{6 << 30}\n",
        memory__max=f"{8 << 30}\n",
    )
    found = job_usage(f"0::{STEP}/user/task_0\n", V2_MOUNTS.format(root=tmp_path))
    assert JobUsage(90.5, 6 << 30, 8 << 30) == found


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    """It counts nanoseconds, and has a number for no limit."""
    write(Path(f"{tmp_path}/cpu{STEP}"), cpuacct__usage="2500000000\n")
    write(
        Path(f"{tmp_path}/memory{STEP}"),
        memory__max_usage_in_bytes="4096\n",
        memory__limit_in_bytes="9223372036854771712\n",
    )
    groups = f"4:memory:{STEP}\n2:cpu,cpuacct:{STEP}\n0::/\n"
    assert JobUsage(2.5, 4096, None) == job_usage(groups, V1_MOUNTS.format(root=tmp_path))


@pytest.mark.parametrize("path", ["/", "/user.slice/session-3.scope", "/docker/ab12"])
def test_a_group_that_slurm_has_not_made_tells_nothing(tmp_path: Path, path: str) -> None:
    """It would hold other processes than those of the job."""
    write(Path(f"{tmp_path}{path.rstrip('/')}/below"))
    (Path(f"{tmp_path}{path}") / "cpu.stat").write_text("usage_usec 1\n")
    assert JobUsage() == job_usage(f"0::{path}\n", V2_MOUNTS.format(root=tmp_path))


def test_files_that_are_missing_or_odd_tell_nothing(tmp_path: Path) -> None:
    """A kernel before 5.19 has no peak of memory."""
    write(Path(f"{tmp_path}{STEP}"), cpu__stat="usage_usec x\nnr_periods\n", memory__max="max\n")
    assert JobUsage() == job_usage(f"0::{STEP}\n", V2_MOUNTS.format(root=tmp_path))
    assert JobUsage() == job_usage("", "")
