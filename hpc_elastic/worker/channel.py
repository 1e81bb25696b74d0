"""The shared-memory file between an agent and one of its workers.

One 4 KiB file per worker in a private directory of the node. Every slot is a 64-bit integer with
one writer, and is read and written with a single 8-byte access. A worker that enters or leaves a
section counts that last, so the agent reads sections again if the count has changed meanwhile.

How all ranks stop at the same step: the agent sets `drain`, waits `SETTLE_S`, then reads
`stop_bound` (last ticked step + 1); the stop step is the largest bound of all ranks. A rank that
got "go on" at step x, before it could see `drain`, had ticked x by then, so the stop step is
at least x + 1. A rank that sees `drain` holds until the stop step is known. From then on
"step >= stop step" gives the same answer on every rank.
"""

from __future__ import annotations

import mmap
import os

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.plain_file import open_plain

SIZE = 4096
MAGIC = 0x48504345_00000002  # "HPCE", format 2
SETTLE_S = 0.001  # far longer than a store stays in a CPU's store buffer

_MAGIC, _DRAIN, _STOP_STEP, _LAST_STEP, _ASKS, _STOPPED_AT, _CHECKPOINT, _TICKS = range(8)
_INITIAL = (MAGIC, 0, -1, -1, 0, -1, -1, 0)
# of the sections, and how to get at the stacks; all are 0 at first
_PID, _STACKS_SIGNAL, _SECTION_COUNT, _SECTION_DEPTH = range(8, 12)
_SECTIONS = 64  # one block of slots per nested section: its number, its limit [ms], its name
_SECTION_SLOTS = 8
MAX_DEPTH = 8  # deeper sections count as the one around them
_NAME_BYTES = 8 * (_SECTION_SLOTS - 2)
# of a drain; all are 0 at first: until when [ns] (agent), since when in a critical section [ns] and its
# name
_UNTIL, _CRITICAL_SINCE, _CRITICAL_NAME, _CRITICAL_END = 256, 257, 258, 264
_HANG = 265  # whether a drill wants the worker to hang; 0 at first
_TOTAL = 267  # steps of the whole run; 0: the worker has not told them
_SAVING = 266  # for how long the worker has stood still to save [ns]; 0 at first
_KEEPER = 268  # pid of the process that keeps its state when it is asked; 0 at first, and when it has done so
_TICKED_AT, _COMPUTED = (
    269,
    270,
)  # when the worker ticked last, its time in `COMPUTE` [ns]; 0 first
_RESUMED = 271  # the step that the worker goes on from, and one; 0: it has not told
_WORD, _WORD_TEXT, _WORD_END = 272, 273, 337  # the worker's word about its node or the run, and why; 0 first
_WORD_BYTES = 8 * (_WORD_END - _WORD_TEXT)
BAD_NODE, GIVE_UP = 1, 2  # numbers of a word; 0: none
_NS = 1_000_000_000
COMPUTE = "compute"  # the section around the part of a step in which a rank waits for no other one


class Section(NamedTuple):
    """A block of a worker's code that it has a name for."""

    number: int  # another one each time it is entered
    name: str
    timeout_s: float | None  # for the whole block, as the code gave it


class Critical(NamedTuple):
    """A block of a worker's code in which it is not to be ended."""

    name: str
    since: float  # when it was entered, by the node's monotonic clock [s]


class WorkerView(NamedTuple):
    """A worker as its agent sees it at one moment; each value as in `Channel`."""

    pid: int
    ticks: int
    last_step: int | None
    saving_s: float
    resumed: int | None
    total: int | None
    word: tuple[int, str]


class ChannelError(HpcElasticError):
    """A file is not a channel of this version."""


class Channel:
    """Both ends of the channel; each property names its writer.

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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
        descriptor = open_plain(path, os.O_RDWR)
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

    def view(self) -> WorkerView:
        """Return the state of the worker."""
        steps = self.last_step, self.saving_s, self.resumed, self.total
        return WorkerView(self.pid, self.ticks, *steps, self.word)

    def unlink(self) -> None:
        """Remove the file, that of the stacks and the pipe of the keeper, if they are still there."""
        for path in filter(None, (self.path, self.stacks_path, self.request_path)):
            try:
                os.unlink(path)
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

    def tick(self, step: int, at: float = 0.0) -> None:
        """Publish a completed step (worker).

        Args:
            step: the step.
            at: the node's monotonic time [s].
        """
        slots = self._slots
        slots[_LAST_STEP] = step
        slots[_TICKED_AT] = int(at * _NS)
        slots[_TICKS] += 1

    @property
    def pace(self) -> tuple[int, float, float]:
        """How often the worker has ticked, when it did last, and for how long it was in `COMPUTE` [s]."""
        slots = self._slots
        return slots[_TICKS], slots[_TICKED_AT] / _NS, slots[_COMPUTED] / _NS

    def add_computed(self, seconds: float) -> None:
        """Add the time of a section `COMPUTE` (worker)."""
        self._slots[_COMPUTED] += int(seconds * _NS)

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

    @property
    def saving_s(self) -> float:
        """For how long the worker's loop has stood still for saves [s]."""
        return self._slots[_SAVING] / _NS

    def add_saving(self, seconds: float) -> None:
        """Add the time of a save that the loop has waited for (worker)."""
        self._slots[_SAVING] += max(0, int(seconds * _NS))

    @property
    def resumed(self) -> int | None:
        """The step that the worker goes on from, None if it has not told."""
        after = self._slots[_RESUMED]
        return after - 1 if after else None

    @resumed.setter
    def resumed(self, step: int) -> None:
        """Tell the agent (worker)."""
        self._slots[_RESUMED] = step + 1

    @property
    def total(self) -> int | None:
        """The steps of the whole run, None if the worker has not told them."""
        return self._slots[_TOTAL] or None

    @total.setter
    def total(self, steps: int) -> None:
        """Tell the agent (worker)."""
        self._slots[_TOTAL] = steps

    # sections and stacks: written by the worker

    @property
    def pid(self) -> int:
        """The process that has attached; 0 if none has."""
        return self._slots[_PID]

    @property
    def stacks_signal(self) -> int:
        """The signal on which that process writes its stacks into `stacks_path`; 0: none."""
        return self._slots[_STACKS_SIGNAL]

    @property
    def stacks_path(self) -> str:
        """The file that the worker writes its stacks into."""
        return f"{self.path}.stacks"

    def attach(self, pid: int, stacks_signal: int) -> None:
        """Publish which process this is and how to ask for its stacks (worker)."""
        self._slots[_STACKS_SIGNAL] = stacks_signal
        self._slots[_PID] = pid

    @property
    def section_count(self) -> int:
        """How often the worker has entered or left a section: a sign of life, too."""
        return self._slots[_SECTION_COUNT]

    @property
    def pulse(self) -> tuple[int, int]:
        """How often the worker has ticked, and a number that changes with each section, critical or not."""
        slots = self._slots
        return slots[_TICKS], slots[_SECTION_COUNT] + slots[_CRITICAL_SINCE]

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections that the worker is in, the outermost first."""
        for _ in range(3):
            count = self._slots[_SECTION_COUNT]
            depth = min(max(self._slots[_SECTION_DEPTH], 0), MAX_DEPTH)
            found = tuple(self._section(place) for place in range(depth))
            if count == self._slots[_SECTION_COUNT]:
                return found
        return ()  # it comes and goes: very much alive

    def _section(self, place: int) -> Section:
        first = _SECTIONS + place * _SECTION_SLOTS
        slots = self._slots[first : first + _SECTION_SLOTS]
        name = slots[2:].tobytes().rstrip(b"\0").decode(errors="replace")
        return Section(slots[0], name, slots[1] / 1000 if slots[1] > 0 else None)

    def enter(self, name: bytes, timeout_ms: int) -> int:
        """Publish that the worker enters a section; return how deep it was before (worker).

        Args:
            name: see `section_name`.
            timeout_ms: limit of the whole block [ms]; 0: none of its own.
        """
        slots = self._slots
        depth, count = slots[_SECTION_DEPTH], slots[_SECTION_COUNT] + 1
        if 0 <= depth < MAX_DEPTH:
            first = _SECTIONS + depth * _SECTION_SLOTS
            slots[first], slots[first + 1] = count, timeout_ms
            slots[first + 2 : first + _SECTION_SLOTS] = memoryview(name).cast("q")
        slots[_SECTION_DEPTH] = depth + 1
        slots[_SECTION_COUNT] = count
        return depth

    def leave(self, depth: int) -> None:
        """Publish that the worker is only so deep in sections (worker)."""
        self._slots[_SECTION_DEPTH] = depth
        self._slots[_SECTION_COUNT] += 1

    # the time left, and the section that must not be cut short

    @property
    def until(self) -> float | None:
        """When the worker is ended if it still runs, by the node's monotonic clock [s]; None: never."""
        return self._slots[_UNTIL] / _NS or None

    @until.setter
    def until(self, until: float) -> None:
        """Tell the worker (agent)."""
        self._slots[_UNTIL] = max(1, int(until * _NS))

    @property
    def critical(self) -> Critical | None:
        """The critical section that the worker is in; the outermost one of several."""
        slots = self._slots
        since = slots[_CRITICAL_SINCE]
        name = slots[_CRITICAL_NAME:_CRITICAL_END].tobytes().rstrip(b"\0").decode(errors="replace")
        return Critical(name, since / _NS) if since else None

    def enter_critical(self, name: bytes, since: float) -> None:
        """Publish that the worker is not to be ended from now on (worker).

        Args:
            name: see `section_name`.
            since: the node's monotonic time [s].
        """
        self._slots[_CRITICAL_NAME:_CRITICAL_END] = memoryview(name).cast("q")
        self._slots[_CRITICAL_SINCE] = max(1, int(since * _NS))

    def leave_critical(self) -> None:
        """Publish that the worker may be ended (worker)."""
        self._slots[_CRITICAL_SINCE] = 0

    @property
    def keeper(self) -> int:
        """The process that keeps its state when it is asked; 0: none, or it has done so."""
        return self._slots[_KEEPER]

    @keeper.setter
    def keeper(self, pid: int) -> None:
        """Tell the agent (worker)."""
        self._slots[_KEEPER] = pid

    @property
    def request_path(self) -> str:
        """The pipe by which the keeper is asked; empty if there is none."""
        keeper = self.keeper
        return self.request_path_of(keeper) if keeper else ""

    def request_path_of(self, pid: int) -> str:
        """Return the pipe by which a process is asked to keep its state."""
        return f"{self.path}.ask-{pid}"

    @property
    def word(self) -> tuple[int, str]:
        """`BAD_NODE` or `GIVE_UP` with the reason of the worker; 0 and nothing: it has said nothing."""
        kind = self._slots[_WORD]
        if not kind:
            return 0, ""
        return kind, self._slots[_WORD_TEXT:_WORD_END].tobytes().rstrip(b"\0").decode(errors="ignore")

    def say(self, kind: int, reason: str) -> bool:
        """Say a word, once; return whether it was the first (worker).

        Args:
            kind: `BAD_NODE` or `GIVE_UP`.
            reason: for people; a longer one is cut.
        """
        if self._slots[_WORD]:
            return False
        data = reason.encode(errors="replace")[:_WORD_BYTES].ljust(_WORD_BYTES, b"\0")
        self._slots[_WORD_TEXT:_WORD_END] = memoryview(data).cast("q")
        self._slots[_WORD] = kind  # last: the agent reads the reason when it sees this
        return True

    @property
    def hang(self) -> bool:
        """Whether a drill wants the worker to hang at its next step."""
        return self._slots[_HANG] != 0

    @hang.setter
    def hang(self, wanted: bool) -> None:
        """Have the worker hang, or go on (`hpc-elastic drill`)."""
        self._slots[_HANG] = int(wanted)


def section_name(name: str) -> bytes:
    """Return the form in which the channel keeps a section's name; a longer one is cut."""
    return name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
