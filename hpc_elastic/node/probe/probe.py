"""Looking at a node before it joins a round: measures, has `rules` judge, tells people.

The usual look takes a listing of the run directory, one of ``/dev`` where GPUs were promised, and two
questions for free space; nothing is written and no program started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpc_elastic.clock import Clock
from hpc_elastic.node.probe.place import ProbedNode, ProbingAgent
from hpc_elastic.node.probe.rules import (
    FULL,
    NVIDIA,
    OFF,
    STUCK_S,
    Disk,
    Measured,
    NodeFinding,
    ProbeOptions,
    judge,
)
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.state import RunState

_FAILURES = (Cause.CRASH, Cause.HANG)


class Probe:
    """Tells before each round whether this node is fit for it.

    Args:
        options: what to look at and what is good enough.
        place: the node.
        agent: the agent around.
    """

    def __init__(self, options: ProbeOptions, place: ProbedNode, agent: ProbingAgent) -> None:
        self._options = options
        self._place = place
        self._agent = agent
        self._was_asked = False
        self._told: set[str] = set()

    def __call__(self, state: RunState) -> str:
        """Return why this node must not join, empty if it may.

        The first time everything is looked at, later only after a failure of workers on this node.
        """
        ended = state.ended
        failed_here = ended is not None and ended.cause in _FAILURES and self._place.node in ended.nodes
        if self._was_asked and not failed_here:
            return ""
        self._was_asked = True
        return self._tell(self._look())

    def _look(self) -> tuple[NodeFinding, ...]:
        options = self._options
        found: tuple[NodeFinding, ...] = ()
        if options.mode != OFF:
            measured = measure(self._place, options, self._agent.clock)
            found = judge(measured, options)
            if options.mode == FULL:
                from hpc_elastic.node.probe.programs import look_closely  # noqa: PLC0415 - only if asked for

                found += look_closely(measured, options, self._place, self._agent)
        if options.command and not any(one.is_fatal for one in found):
            from hpc_elastic.node.probe.programs import ask_command  # noqa: PLC0415 - only if asked for

            found += ask_command(options, self._place, self._agent)
        return found

    def _tell(self, findings: tuple[NodeFinding, ...]) -> str:
        for finding in findings:
            is_mine = self._place.is_first or not finding.is_everywhere
            if is_mine and not finding.is_fatal and finding.text not in self._told:
                self._told.add(finding.text)
                self._agent.say(f"warning: {finding.text}")
        return next((finding.text for finding in findings if finding.is_fatal), "")


def measure(place: ProbedNode, options: ProbeOptions, clock: Clock) -> Measured:
    """Measure what costs next to nothing; what cannot be measured is left out."""
    took_s = _listing_s(place.listed, clock)
    again_s = _listing_s(place.listed, clock) if took_s >= STUCK_S else None
    temporary = place.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - what programs use
    disks = (_disk(place.run_dir, is_shared=True), _disk(temporary, is_shared=False))
    pattern = options.gpu_devices or NVIDIA
    return Measured(
        gpus_promised=place.gpus,
        gpus_visible=place.environ.get("CUDA_VISIBLE_DEVICES"),
        gpu_files=count_files(pattern) if place.gpus else None,
        gpu_pattern=pattern,
        disks=tuple(disk for disk in disks if disk is not None),
        look_s=max(took_s, 0.0),
        again_s=again_s,
        clock_went_back=took_s < 0,
        cpus=len(os.sched_getaffinity(0)) if place.below_slurm else 0,
        cpus_asked=_cpus_asked(place.environ),
        cpus_there=os.cpu_count() or 0,
        workers=place.workers,
    )


def _listing_s(directory: str, clock: Clock) -> float:
    """Return how long a listing of a directory takes [s]."""
    before = clock.monotonic()
    try:
        os.listdir(directory)
    except OSError:
        pass
    return clock.monotonic() - before


def _cpus_asked(environ: Mapping[str, str]) -> int | None:
    """Return the CPUs of this node that the job has; Slurm's files may tell of more than there are."""
    text = environ.get("SLURM_CPUS_ON_NODE", "")
    return min(int(text), os.cpu_count() or 1) if text.isdecimal() else None


def _disk(path: str, *, is_shared: bool) -> Disk | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    inodes = found.f_favail if found.f_files else None
    return Disk(path, found.f_bavail * found.f_frsize, inodes, is_shared)


def count_files(pattern: str) -> int | None:
    """Return how many names match a pattern whose last part may have wildcards; None if nobody can tell."""
    from fnmatch import fnmatchcase  # noqa: PLC0415 - only where GPUs were promised

    directory, last = os.path.split(pattern)
    try:
        return sum(fnmatchcase(name, last) for name in os.listdir(directory or "."))
    except FileNotFoundError:
        return 0
    except OSError:
        return None
