"""The shared-memory file between an agent and one of its workers.

One 4 KiB file per worker in a private directory of the node. Every slot is a 64-bit integer with
one writer, and is read and written with a single 8-byte access.

How all ranks stop at the same step: the agent sets `drain`, waits `SETTLE_S`, then reads
`stop_bound` (last ticked step + 1); the stop step is the largest bound of all ranks. A rank that
was told "go on" at step x, before it could see `drain`, had ticked x by then, so the stop step is
at least x + 1. A rank that sees `drain` holds until the stop step is known. From then on
"step >= stop step" gives the same answer on every rank.
"""

from __future__ import annotations

import mmap
import os

from hpc_elastic.errors import HpcElasticError

SIZE = 4096
MAGIC = 0x48504345_00000001  # "HPCE", format 1
SETTLE_S = 0.001  # far longer than a store stays in a CPU's store buffer

_MAGIC, _DRAIN, _STOP_STEP, _LAST_STEP, _ASKS, _STOPPED_AT, _CHECKPOINT, _TICKS = range(8)
_INITIAL = (MAGIC, 0, -1, -1, 0, -1, -1, 0)


class ChannelError(HpcElasticError):
    """A file is not a channel of this version."""


class Channel:
    """Both ends of the channel; who writes which property is said at each.

    Steps are None until known. Made by `create` (agent) or `open` (worker).
    """

    def __init__(self, path: str, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        self._slots = memoryview(memory).cast("q")

    @classmethod
    def create(cls, path: str) -> Channel:
        """Create the file, before its worker is started.

        Raises:
            FileExistsError: the name is taken.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            channel = cls(path, mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)
        for slot, value in enumerate(_INITIAL):
            channel._slots[slot] = value
        return channel

    @classmethod
    def open(cls, path: str) -> Channel:
        """Map the file that an agent created.

        Raises:
            OSError: the file cannot be opened.
            ChannelError: it is not a channel, or one of another version.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size != SIZE:
                raise ChannelError(f"{path}: {size} bytes instead of {SIZE}")
            channel = cls(path, mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)
        magic = channel._slots[_MAGIC]
        if magic != MAGIC:
            channel.close()
            raise ChannelError(f"{path}: unknown format {magic:#x}")
        return channel

    def close(self) -> None:
        """Unmap the file; the file itself stays."""
        self._slots.release()
        self._memory.close()

    def unlink(self) -> None:
        """Remove the file, if it is still there."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def _step(self, slot: int) -> int | None:
        step = self._slots[slot]
        return None if step < 0 else step

    # written by the agent

    @property
    def drain(self) -> bool:
        """The agent wants the worker to stop at the stop step."""
        return self._slots[_DRAIN] != 0

    def request_drain(self) -> None:
        """Ask the worker to stop (agent); read `stop_bound` not before `SETTLE_S` later."""
        self._slots[_DRAIN] = 1

    @property
    def stop_step(self) -> int | None:
        """The step at which all ranks stop."""
        return self._step(_STOP_STEP)

    @stop_step.setter
    def stop_step(self, step: int) -> None:
        self._slots[_STOP_STEP] = step

    # written by the worker

    @property
    def last_step(self) -> int | None:
        """The last step that was ticked."""
        return self._step(_LAST_STEP)

    @property
    def ticks(self) -> int:
        """How often the worker has ticked: its sign of life."""
        return self._slots[_TICKS]

    def tick(self, step: int) -> None:
        """Publish a completed step (worker)."""
        slots = self._slots
        slots[_LAST_STEP] = step
        slots[_TICKS] += 1

    @property
    def stop_bound(self) -> int:
        """The lowest step at which this rank can still be stopped; see the module's text."""
        return self._slots[_LAST_STEP] + 1

    @property
    def asks_should_stop(self) -> bool:
        """The worker's code has called should_stop() at least once."""
        return self._slots[_ASKS] != 0

    def mark_asking(self) -> None:
        """Publish that the worker's code asks whether to stop (worker)."""
        self._slots[_ASKS] = 1

    @property
    def stopped_at(self) -> int | None:
        """The step at which should_stop() first answered yes."""
        return self._step(_STOPPED_AT)

    @stopped_at.setter
    def stopped_at(self, step: int) -> None:
        self._slots[_STOPPED_AT] = step

    @property
    def checkpoint_step(self) -> int | None:
        """The last step whose mark this rank has made durable."""
        return self._step(_CHECKPOINT)

    @checkpoint_step.setter
    def checkpoint_step(self, step: int) -> None:
        self._slots[_CHECKPOINT] = step
