"""The activity of workers that tell no steps: output, CPU time, data, GPU use. Pure.

Activity is judged from two readings, the last one that showed some and that of now. Threads that wake up now
and then, as those of NCCL, use less than a hundredth of a CPU: that is no activity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_elastic.named_tuple import NamedTuple

if TYPE_CHECKING:
    from hpc_elastic.node.workers.process_facts import TreeUse

_LEAST_CPU_S = 0.5  # of CPU time, and this share of the time, are activity
_SHARE = 0.01
_LEAST_BYTES = 1 << 20  # read and written
_UNKNOWN = "-"
_N = "[0-9]{1,18}"
_NAME = re.compile(rf"([^+/]+)\+({_N})\+({_N})\+({_N})((?:\+(?:{_N}|-)){{5}})")


class Reading(NamedTuple):
    """The visible facts of a worker."""

    output: int | None  # the size of its logs [bytes]; None: its output goes elsewhere
    use: TreeUse


class Activity(NamedTuple):
    """When a worker has last shown activity, by the monotonic clock [s]."""

    reading: Reading  # the output of the last look, and the use when it last was activity
    output_at: float
    cpu_at: float

    @property
    def at(self) -> float:
        """The last sign of either kind."""
        return self.cpu_at if self.reading.output is None else max(self.output_at, self.cpu_at)

    def forgiven(self, now: float) -> Activity:
        """Return the same as if the worker were active now: until now its time did not count."""
        return self._replace(output_at=now, cpu_at=now)


def noted(known: Activity, reading: Reading, now: float) -> Activity:
    """Return the activity of a worker after a reading.

    Args:
        known: before it.
        reading: of now.
        now: monotonic time [s].
    """
    output_at = known.output_at if reading.output == known.reading.output else now
    if not _works(known.reading.use, reading.use, now - known.cpu_at):
        reading = reading._replace(use=known.reading.use)
        return Activity(reading, output_at, known.cpu_at)
    return Activity(reading, output_at, now)


def _works(before: TreeUse, now: TreeUse, seconds: float) -> bool:
    """Tell whether processes have worked; one that begins or ends is work, too."""
    used_s = now.cpu_s - before.cpu_s
    is_busy = used_s < 0 or used_s >= _LEAST_CPU_S + _SHARE * seconds
    return is_busy or now.pids != before.pids or now.moved - before.moved >= _LEAST_BYTES


class NodeActivity(NamedTuple):
    """The activity of the workers of a node, in a file name; ages are of the moment at which it was written.

    The ages of a rank are those of the one that has been silent for longest.
    """

    node: str
    round: int
    at: int  # when it was written, by the clock of that node [s since the epoch]
    rank: int
    output_s: int | None  # since its last output [s]; None: its output goes elsewhere
    cpu_s: int  # since its last CPU time [s]
    newest_output_s: int | None  # the same of all ranks of the node
    newest_cpu_s: int
    gpu_s: int | None  # since a GPU of the node was last seen in use [s]; None: that is not sampled

    @property
    def silence_s(self) -> int:
        """For how long the rank has shown no activity of any kind [s]."""
        return min(one for one in (self.output_s, self.cpu_s, self.gpu_s) if one is not None)

    def older(self, seconds: int) -> NodeActivity:
        """Return the same as it looks after a while without any news."""
        ages = ("output_s", "cpu_s", "newest_output_s", "newest_cpu_s", "gpu_s")
        later = {name: age + seconds for name in ages if (age := getattr(self, name)) is not None}
        return self._replace(**later)

    def text(self) -> str:
        """Return the file name."""
        ages = self.output_s, self.cpu_s, self.newest_output_s, self.newest_cpu_s, self.gpu_s
        words = (_UNKNOWN if age is None else str(age) for age in ages)
        return "+".join((self.node, *map(str, (self.round, self.at, self.rank)), *words))


def parse_activity(name: str) -> NodeActivity | None:
    """Return the facts in a file name; None for a foreign one."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    node, number, at, rank, rest = found.groups()
    words = rest[1:].split("+")
    output, cpu, newest_output, newest_cpu, gpu = (None if word == _UNKNOWN else int(word) for word in words)
    if cpu is None or newest_cpu is None:
        return None
    ages = output, cpu, newest_output, newest_cpu, gpu
    return NodeActivity(node, int(number), int(at), int(rank), *ages)
