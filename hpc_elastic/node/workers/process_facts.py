"""The kernel's facts about a process without progress: busy, asleep, stopped, stuck, or out of memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.control_group import Memory
from hpc_elastic.processes.linux import children, descendants, kernel_text, read_stat
from hpc_elastic.text import bytes_text

_SHELL_KILLED = 128 + signal.SIGKILL

_UTIME, _STIME, _CUTIME, _CSTIME = 11, 12, 13, 14  # places in /proc/<pid>/stat after the name
_BUSY = 0.1  # part of the time on a CPU from which on a process counts as busy
_MOST_CHILDREN = 32
_STATES = {
    "R": "running",
    "S": "asleep",
    "D": "stuck in the kernel (state D)",
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended",
    "I": "idle",
}


class Usage(NamedTuple):
    """CPU time that a process and its threads have used up to a moment."""

    cpu_s: float
    at: float  # monotonic [s]


class TreeUse(NamedTuple):
    """The use that a worker and its descendants have made of the node."""

    pids: frozenset[int]
    cpu_s: float
    moved: int  # read and written [bytes]


class _Times(NamedTuple):
    """CPU time of a process [s]."""

    own: float
    ended: float  # of its children that have ended


class ProcessFacts(NamedTuple):
    """The facts of a process."""

    pid: int
    state: str = ""  # the letter of /proc/<pid>/stat; empty if the process is gone
    wchan: str = ""  # where in the kernel it sleeps, if this may be read
    memory: str = ""  # resident, as the kernel writes it
    threads: str = ""
    is_frozen: bool = False  # its control group is, as in Slurm's preemption by suspension

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP): it cannot make progress and is not to blame."""
        return self.state in ("T", "t") or self.is_frozen


def usage(pid: int, now: float) -> Usage | None:
    """Return how much CPU time a process has used; None when it is gone.

    Args:
        pid: the process.
        now: monotonic time [s].
    """
    times = _times(pid)
    return None if times is None else Usage(times.own, now)


def _times(pid: int) -> _Times | None:
    fields = _text(pid, "stat").rpartition(") ")[2].split()
    if len(fields) <= _CSTIME:
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    own, ended = fields[_UTIME : _STIME + 1], fields[_CUTIME : _CSTIME + 1]
    return _Times(sum(map(int, own)) / per_s, sum(map(int, ended)) / per_s)


def tree_use(pid: int) -> TreeUse:
    """Return the use that a process, its live descendants and its ended children have made of the node."""
    pids = _tree(pid)
    times = [found for one in pids if (found := _times(one)) is not None]
    return TreeUse(frozenset(pids), sum(one.own + one.ended for one in times), _moved(pids))


def moved_bytes(pid: int) -> int:
    """Return how much a process, its live children and its ended ones have read and written [bytes]."""
    return _moved(_tree(pid))


def _tree(pid: int) -> list[int]:
    return [pid, *(stat.pid for stat in descendants(children(pid)))]


def _moved(pids: Iterable[int]) -> int:
    lines = (line.partition(":") for one in pids for line in _text(one, "io").splitlines())
    return sum(int(value) for name, _, value in lines if name in ("rchar", "wchar"))


def facts_of(pid: int) -> ProcessFacts:
    """Return the kernel's facts of a process."""
    stat = read_stat(pid)
    if stat is None:
        return ProcessFacts(pid)
    status = dict(line.split(":", 1) for line in _text(pid, "status").splitlines() if ":" in line)
    wchan = _text(pid, "wchan").strip()
    return ProcessFacts(
        pid,
        stat.state,
        "" if wchan in ("", "0") else wchan,
        status.get("VmRSS", "").strip(),
        status.get("Threads", "").strip(),
        _is_frozen(pid),
    )


def _is_frozen(pid: int) -> bool:
    """Tell whether a control group of a process is frozen, as far as that can be seen."""
    for line in _text(pid, "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names == "freezer":
            if kernel_text(f"/sys/fs/cgroup/freezer{path}/freezer.state").strip() in ("FROZEN", "FREEZING"):
                return True
        elif not names and "frozen 1" in kernel_text(f"/sys/fs/cgroup{path}/cgroup.events"):
            return True
    return False


def doing(facts: ProcessFacts, before: Usage | None, after: Usage | None) -> str:
    """Return in words the activity of a process.

    Args:
        facts: of now.
        before: its CPU time some while ago, if that is known.
        after: its CPU time now.
    """
    if not facts.state:
        return "gone"
    if facts.is_frozen:
        return "frozen (its control group is)"
    words = _STATES.get(facts.state, f"in state {facts.state}")
    if before is not None and after is not None and after.at > before.at and facts.state in ("R", "S"):
        part = (after.cpu_s - before.cpu_s) / (after.at - before.at)
        if part >= _BUSY:
            return f"busy ({part:.0%} of a CPU)"
    return f"{words} in {facts.wchan}" if facts.wchan else words


def report(facts: ProcessFacts, words: str, before: Usage | None, after: Usage | None) -> list[str]:
    """Return the lines that tell of a process and its children.

    Args:
        facts: of the process.
        words: see `doing`.
        before: its CPU time some while ago, if that is known.
        after: its CPU time now.
    """
    lines = [f"process {facts.pid}: {words}, memory {facts.memory or '?'}, {facts.threads or '?'} threads"]
    if before is not None and after is not None:
        used, span = after.cpu_s - before.cpu_s, after.at - before.at
        lines.append(f"  {used:.1f} s of CPU time in the last {span:.1f} s")
    below = children(facts.pid)[:_MOST_CHILDREN]
    return lines + [
        f"  child {stat.pid} ({stat.name}): {_STATES.get(stat.state, stat.state)}" for stat in below
    ]


def kernel_report(pid: int) -> list[str]:
    """Return the facts of /proc on a process without readable Python stacks, as far as they may be read."""
    lines = []
    for name in ("stack", "syscall", "status"):
        text = _text(pid, name).strip()
        if text:
            lines += [f"/proc/{pid}/{name}:", *(f"  {line}" for line in text.splitlines())]
    return lines


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal and can take it: not all its threads block it."""
    mask = _mask(_text(pid, "status"), "SigCgt")
    if not number or not mask >> (number - 1) & 1:
        return False
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    masks = (_mask(_text(pid, f"task/{thread}/status"), "SigBlk") for thread in threads)
    return not all(blocked >> (number - 1) & 1 for blocked in masks)


def _mask(status: str, field: str) -> int:
    line = next((line for line in status.splitlines() if line.startswith(f"{field}:")), "")
    return int(line.partition(":")[2].strip() or "0", 16)


def _text(pid: int, name: str) -> str:
    return kernel_text(f"/proc/{pid}/{name}")


def killed_words(before: Memory | None, now: Memory | None, exitcode: int) -> str:
    """Return the words about a worker's failure, if the kernel has killed for want of memory.

    Args:
        before: as it was when the worker was started.
        now: as it is after its end.
        exitcode: n, or -n for signal n.

    Returns:
        Empty if the kernel has killed no process meanwhile.
    """
    if before is None or now is None or now.kills <= before.kills:
        return ""
    limit = "the node had none left" if now.limit is None else f"limit {bytes_text(now.limit)}"
    if exitcode in (-signal.SIGKILL, _SHELL_KILLED):
        return f"killed by the kernel: out of memory ({limit})"
    count = now.kills - before.kills
    who = "1 process" if count == 1 else f"{count} processes"
    return f"meanwhile the kernel has killed {who} on this node: out of memory ({limit})"
