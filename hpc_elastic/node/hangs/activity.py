"""Watches whether workers that tell no steps show any activity, and tells it in a file name for `status`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.node.hangs.activity_rules import Activity, NodeActivity, Reading, noted
from hpc_elastic.node.hangs.watch import Silence
from hpc_elastic.node.setup.hang_times import QUIET
from hpc_elastic.node.workers import process_facts
from hpc_elastic.store import files

if TYPE_CHECKING:
    from hpc_elastic.node.setup.agent_setup import AgentParts
    from hpc_elastic.node.workers.local_group import LocalGroup

_LOOK_S = 30.0  # between two looks without a limit
_LOOKS = 20  # of a limit is one look
_LEAST_LOOK_S = 0.1
_FIRST_TELL_S, _TELL_S = 30.0, 60.0  # to the first file, and between two
_GAPS = 4  # looks; a longer time without one does not count: the node may have stood still


class ActivityWatch:
    """The activity of the workers of this node in one round.

    Args:
        parts: the agent's parts.
        group: the workers.
        started: when they were started, by the monotonic clock [s].
    """

    def __init__(self, parts: AgentParts, group: LocalGroup, started: float) -> None:
        self._parts = parts
        self._group = group
        self._limit_s = parts.hangs.silence
        self._every_s = min(_LOOK_S, max(_LEAST_LOOK_S, self._limit_s / _LOOKS))
        self._looked = started
        self._due = started
        self._tell_at = started + _FIRST_TELL_S
        self._path: str | None = None
        self._known = {
            local_rank: Activity(self._read(local_rank), started, started)
            for local_rank in range(len(group.channels))
        }

    def look(self, now: float) -> None:
        """Look at the workers, if it is time to; monotonic time [s]."""
        if now < self._due:
            return
        gap, self._looked, self._due = now - self._looked, now, now + self._every_s
        for local_rank, known in self._known.items():
            self._known[local_rank] = noted(known, self._read(local_rank), now)
        if gap > _GAPS * self._every_s + self._parts.rendezvous.run.settings.lease:
            self.forgive(now)
        if now >= self._tell_at:
            self._tell_at = now + _TELL_S
            with suppress(OSError):
                self._publish(now)

    def forgive(self, now: float) -> None:
        """Start the time of all workers anew: until now it did not count."""
        self._known = {rank: known.forgiven(now) for rank, known in self._known.items()}

    def silences(self, now: float) -> tuple[Silence, ...]:
        """Return the workers that have told no step and shown no activity for longer than they may."""
        return tuple(
            Silence(rank, self.silence_s(rank, now), self._limit_s, QUIET)
            for rank in self._known
            if self.is_silent(rank, now)
        )

    def is_silent(self, local_rank: int, now: float) -> bool:
        """Tell whether a worker tells no steps and has shown no activity for longer than it may."""
        ticks = self._group.channels[local_rank].ticks
        return not ticks and self.silence_s(local_rank, now) >= self._limit_s

    def silence_s(self, local_rank: int, now: float) -> float:
        """Return for how long a worker has shown no activity, and no GPU of the node any use [s]."""
        gpus = self._parts.gpus
        at = self._known[local_rank].at
        return now - (at if gpus is None else max(at, gpus.idle_since))

    def close(self) -> None:
        """Take the file away; the round is over."""
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)

    def _read(self, local_rank: int) -> Reading:
        group = self._group
        pid = group.channels[local_rank].pid or group.context.pids().get(local_rank, 0)
        logs = [group.context.stdouts.get(local_rank, ""), group.context.stderrs.get(local_rank, "")]
        sizes = [size for path in logs if path and (size := _size(path)) is not None]
        return Reading(sum(sizes) if sizes else None, process_facts.tree_use(pid))

    def _publish(self, now: float) -> None:
        """Write down the ages of the last signs; one operation on the file system."""
        ended = self._group.context.exit_codes()
        living = {rank: known for rank, known in self._known.items() if rank not in ended}
        if not living:
            return
        quiet = min(living, key=lambda rank: living[rank].at)
        one, everyone = living[quiet], living.values()
        outputs = [known.output_at for known in everyone if known.reading.output is not None]
        gpus = self._parts.gpus
        told = NodeActivity(
            self._parts.run.node,
            self._group.formed.number,
            int(self._parts.clock.wall()),
            self._group.place.base_rank + quiet,
            None if one.reading.output is None else int(now - one.output_at),
            int(now - one.cpu_at),
            int(now - max(outputs)) if outputs else None,
            int(now - max(known.cpu_at for known in everyone)),
            None if gpus is None or gpus.is_off else int(now - gpus.idle_since),
        )
        directory = self._parts.paths.activity
        path = os.path.join(directory, told.text())
        if self._path is None:
            with suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            files.touch_name(directory, told.text())
        else:
            os.rename(self._path, path)
        self._path = path


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
