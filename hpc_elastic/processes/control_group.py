"""The control group of this process: its memory and CPU time, in both versions of control groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import kernel_text

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number about so large


class Memory(NamedTuple):
    """The memory of a control group."""

    kills: int = 0  # processes of it that the kernel has killed for want of memory
    limit: int | None = None  # [bytes]


class ControlGroup(NamedTuple):
    """Where a control group shows its files; its parents' are above."""

    mount: str
    path: str
    is_v2: bool

    @property
    def places(self) -> Iterator[str]:
        """The directories of the group and of those above it."""
        path = self.path
        while path:
            yield f"{self.mount}{path}"
            path = path.rpartition("/")[0]
        yield self.mount

    @property
    def limit_file(self) -> str:
        """The name of the file with the limit."""
        return "memory.max" if self.is_v2 else "memory.limit_in_bytes"

    @property
    def used_file(self) -> str:
        """The name of the file with the memory in use."""
        return "memory.current" if self.is_v2 else "memory.usage_in_bytes"

    @property
    def cached_fields(self) -> tuple[str, str]:
        """The names of the memory in ``memory.stat`` that the kernel can take back."""
        if self.is_v2:
            return ("active_file", "inactive_file")
        return ("total_active_file", "total_inactive_file")


def read_memory() -> Memory | None:
    """Return the limits of this process and its workers; None where the kernel has none."""
    group = _own_group()
    if group is None:
        return None
    events = "memory.events" if group.is_v2 else "memory.oom_control"
    kills = parse_kills(kernel_text(f"{group.mount}{group.path}/{events}"))
    limits = (parse_limit(kernel_text(f"{place}/{group.limit_file}")) for place in group.places)
    known = [limit for limit in limits if limit is not None]
    return None if kills is None else Memory(kills, min(known, default=None))


def free_memory() -> int:
    """Return the memory that this process can still get [bytes]: of the node, and of each group it is in."""
    free = [_field("/proc/meminfo", "MemAvailable:") * 1024]
    group = _own_group()
    if group is None:
        return free[0]
    for place in group.places:
        limit, used = (
            parse_limit(kernel_text(f"{place}/{name}")) for name in (group.limit_file, group.used_file)
        )
        if limit is not None and used is not None:
            cached = sum(_field(f"{place}/memory.stat", name) for name in group.cached_fields)
            free.append(max(0, limit - used + cached))
    return min(free)


def _own_group() -> ControlGroup | None:
    return control_group(kernel_text("/proc/self/cgroup"), kernel_text("/proc/self/mountinfo"))


def control_group(groups: str, mounts: str, controller: str = "memory") -> ControlGroup | None:
    """Return this process's control group.

    Args:
        groups: text of ``/proc/self/cgroup``.
        mounts: text of ``/proc/self/mountinfo``.
        controller: of version 1; in version 2 one group is that of all.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in groups.splitlines())}
    v1 = next((path for names, path in paths.items() if controller in names.split(",")), None)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        is_v1 = kind[:1] == ["cgroup"] and controller in kind[-1].split(",")
        path = v1 if is_v1 else paths.get("") if kind[:1] == ["cgroup2"] and v1 is None else None
        if path is not None:
            root, mount = fields[3], fields[4]
            inside = path.removeprefix(root) if root != "/" else path
            return ControlGroup(mount, inside.rstrip("/"), not is_v1)
    return None


def parse_kills(text: str) -> int | None:
    """Return the count of ``oom_kill`` in ``memory.events`` or ``memory.oom_control``; None without one."""
    words = [line.split() for line in text.splitlines()]
    return next((int(line[1]) for line in words if line[:1] == ["oom_kill"] and line[1].isdecimal()), None)


def parse_limit(text: str) -> int | None:
    """Return a limit [bytes]; None if there is none."""
    word = text.strip()
    limit = int(word) if word.isdecimal() else _NO_LIMIT
    return limit if limit < _NO_LIMIT else None


def _field(path: str, name: str) -> int:
    rows = [line.split() for line in kernel_text(path).splitlines()]
    return next((int(row[1]) for row in rows if row[:1] == [name]), 0)


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
