"""The CPU time and the memory that a job of Slurm has used on this node, as its control group tells."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpc_elastic.processes.linux import kernel_text
from hpc_elastic.processes.memory import control_group, parse_limit

_OF_A_JOB = re.compile(r".*/(?:job_\d+|step_\w+)(?=/|\Z)")  # the deepest part of a path that Slurm has named
_V1_MEMORY = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")
_NS = 1_000_000_000  # of a second: version 1 counts CPU time in nanoseconds


class JobUsage(NamedTuple):
    """The use of a job step on this node; None where the kernel does not tell."""

    cpu_s: float | None = None  # of all its processes since its start [s]
    peak: int | None = None  # of its memory since its start, cached files included [bytes]
    limit: int | None = None  # of its memory [bytes]


def read_job_usage() -> JobUsage:
    """Return the use of the step of Slurm that this process belongs to; nothing outside of one."""
    return job_usage(kernel_text("/proc/self/cgroup"), kernel_text("/proc/self/mountinfo"))


def job_usage(groups: str, mounts: str) -> JobUsage:
    """Return the use of the control group of a step.

    Args:
        groups: text of ``/proc/self/cgroup``.
        mounts: text of ``/proc/self/mountinfo``.
    """
    cpu, memory = (_place(groups, mounts, name) for name in ("cpuacct", "memory"))
    cpu_s = peak = limit = None
    if cpu is not None:
        cpu_s = _cpu_s_of_v2(f"{cpu[0]}/cpu.stat") if cpu[1] else _cpu_s_of_v1(f"{cpu[0]}/cpuacct.usage")
    if memory is not None:
        names = ("memory.peak", "memory.max") if memory[1] else _V1_MEMORY
        peak, limit = (parse_limit(kernel_text(f"{memory[0]}/{name}")) for name in names)
    return JobUsage(cpu_s, peak, limit)


def _place(groups: str, mounts: str, controller: str) -> tuple[str, bool] | None:
    """Return the directory of the step, and whether it is of version 2; None if Slurm has made none."""
    group = control_group(groups, mounts, controller)
    of_job = _OF_A_JOB.match(group.path) if group is not None else None
    return None if group is None or of_job is None else (f"{group.mount}{of_job[0]}", group.is_v2)


def _cpu_s_of_v2(path: str) -> float | None:
    fields = dict(line.split(" ", 1) for line in kernel_text(path).splitlines() if " " in line)
    used = fields.get("usage_usec", "").strip()
    return int(used) / 1_000_000 if used.isdecimal() else None


def _cpu_s_of_v1(path: str) -> float | None:
    used = kernel_text(path).strip()
    return int(used) / _NS if used.isdecimal() else None
