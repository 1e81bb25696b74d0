"""What the kernel says of the memory that this node's processes may have, and whether it killed for it.

Workers share the control group of their agent: under Slurm that of the step. Version 1 and 2 of
control groups tell the same things under other names.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number about so large
_SHELL_KILLED = 128 + signal.SIGKILL
_UNITS = ("B", "K", "M", "G", "T")
_UNIT = 1024


class Memory(NamedTuple):
    """The memory of a control group."""

    kills: int = 0  # processes of it that the kernel has killed for want of memory
    limit: int | None = None  # [bytes]


class _Group(NamedTuple):
    """Where a control group shows its files; its parents' are above."""

    mount: str
    path: str
    is_v2: bool


def read_memory() -> Memory | None:
    """Return what holds for this process and its workers; None where the kernel does not tell."""
    group = _group(_read("/proc/self/cgroup"), _read("/proc/self/mountinfo"))
    if group is None:
        return None
    events = "memory.events" if group.is_v2 else "memory.oom_control"
    kills = parse_kills(_read(f"{group.mount}{group.path}/{events}"))
    limits = []
    path = group.path
    while True:
        limits.append(parse_limit(_read(f"{group.mount}{path}/{_limit_file(group)}")))
        if not path:
            break
        path = path.rpartition("/")[0]
    known = [limit for limit in limits if limit is not None]
    return None if kills is None else Memory(kills, min(known, default=None))


def _limit_file(group: _Group) -> str:
    return "memory.max" if group.is_v2 else "memory.limit_in_bytes"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _group(groups: str, mounts: str) -> _Group | None:
    """Return this process's control group of memory.

    Args:
        groups: text of ``/proc/self/cgroup``.
        mounts: text of ``/proc/self/mountinfo``.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in groups.splitlines())}
    v1 = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        is_v1 = kind[:1] == ["cgroup"] and "memory" in kind[-1].split(",")
        path = v1 if is_v1 else paths.get("") if kind[:1] == ["cgroup2"] and v1 is None else None
        if path is not None:
            root, mount = fields[3], fields[4]
            inside = path.removeprefix(root) if root != "/" else path
            return _Group(mount, inside.rstrip("/"), not is_v1)
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


def size_text(size: int) -> str:
    """Return a size as Slurm writes it, e.g. ``8G`` or ``1.5G``."""
    number, unit = float(size), 0
    while number >= _UNIT and unit < len(_UNITS) - 1:
        number, unit = number / _UNIT, unit + 1
    return f"{number:.1f}".removesuffix(".0") + _UNITS[unit]


def killed_words(before: Memory | None, now: Memory | None, exitcode: int) -> str:
    """Return what is to be said of a worker's failure, if the kernel has killed for want of memory.

    Args:
        before: as it was when the worker was started.
        now: as it is after its end.
        exitcode: n, or -n for signal n.

    Returns:
        Empty if the kernel has killed nobody meanwhile.
    """
    if before is None or now is None or now.kills <= before.kills:
        return ""
    limit = "the node had none left" if now.limit is None else f"limit {size_text(now.limit)}"
    if exitcode in (-signal.SIGKILL, _SHELL_KILLED):
        return f"killed by the kernel: out of memory ({limit})"
    count = now.kills - before.kills
    who = "1 process" if count == 1 else f"{count} processes"
    return f"meanwhile the kernel has killed {who} on this node: out of memory ({limit})"
