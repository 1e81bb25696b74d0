"""The agent's lines for people, in its own log and on the console, and the marks of all logs of its node.

The marks tell when a log had which length, for commands that show lines in order of time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from hpc_elastic.account.log_marks import MOST_BYTES, LogMark, encode_mark, thinned
from hpc_elastic.clock import Clock, clock_text
from hpc_elastic.node.workers.worker_env import RankPlace
from hpc_elastic.record.journal import RoundFormed, SizeWanted
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import write_all
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.text import count_text, visible

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord


_GAP_S = 1.0  # between two marks without a cause
_FRESH_S = 30.0  # a record that is read for the first time after a longer pause may be old
_MOST_FILES = 256  # of workers, that are held open
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT  # read by the descriptor: the name may be another file's by now
_MOST_READ = 4 * MOST_BYTES  # thinned at once [bytes]
_NONE = -1


class AgentLog:
    """Writes each line with one write() to every place it is shown.

    The agent's own file matters most: under Slurm the console goes through srun and dies with the
    batch host.

    Args:
        clock: for the time in front of a line.
        node: this node's name.
        fds: open file descriptors, the console among them.
    """

    def __init__(self, clock: Clock, node: str, fds: list[int]) -> None:
        self._clock = clock
        self._node = node
        self._fds = fds
        self.marks: LogMarks | None = None
        """Marks what the workers have written before a line, and when the line was written."""

    def say(self, text: str) -> None:
        """Show a line; a place that cannot be written to is passed over.

        Control characters are shown as escapes: the words may be those of Slurm, a user or a program.
        """
        self._mark()
        stamp = clock_text(self._clock.wall())
        line = "".join(f"[{stamp} {self._node}] {visible(part)}\n" for part in text.splitlines() or [""])
        for fd in self._fds:
            try:
                write_all(fd, line.encode(errors="replace"))
            except OSError:
                continue
        self._mark()

    def _mark(self) -> None:
        if self.marks is not None:
            self.marks.mark()

    def round_formed(self, formed: RoundFormed, place: RankPlace, restart: str = "") -> None:
        """Show a node's place in a new round; its first node shows the whole round.

        Args:
            formed: the round.
            place: this node's.
            restart: which of how many restarts it is, if a failure has led to it.
        """
        last = place.base_rank + formed.members[place.group_rank].slots - 1
        ranks = f"rank {place.base_rank}" if last == place.base_rank else f"ranks {place.base_rank}-{last}"
        if place.group_rank == 0:
            names = ", ".join(member.node for member in formed.members)
            where = f"{formed.master_addr}:{formed.master_port}"
            step = f", newest checkpoint: step {formed.checkpoint.step}" if formed.checkpoint else ""
            title = ", ".join(filter(None, (f"round {formed.number}", restart, _without(formed))))
            self.say(f"{title}: {count_text(place.world_size, 'worker')} on {names}; master {where}{step}")
        self.say(f"round {formed.number}: starting {ranks} of {place.world_size}")

    def failed(self, failure: FailureRecord) -> None:
        """Show a worker's failure in one line."""
        from hpc_elastic.multiprocessing.errors import one_line  # noqa: PLC0415

        self.say(f"worker failed: {one_line(failure)}")


def _without(formed: RoundFormed) -> str:
    here = {member.node for member in formed.members}  # a lost one may be back with a new agent
    gone = [name for name in formed.lost if name not in here]
    return f"without {', '.join(gone)} (lost)" if gone else ""


class SizeNews:
    """Tells that rounds have another size because the user wants it; one node of each round does."""

    def __init__(self, say: Callable[[str], None], node_id: str) -> None:
        self._say = say
        self._me = node_id
        self._last: RoundFormed | None = None  # that this node was in
        self._known: SizeWanted | None = None
        self._is_due = False  # whether no round has that size yet

    def look(self, state: RunState) -> None:
        """Tell of a size that is wanted since a moment ago."""
        size = state.size
        if self._last is None or size is None or size == self._known:
            return
        self._known, self._is_due = size, state.wanted is not None
        if self._is_due and self._last.members[0].node_id == self._me:
            self._say(f"the run was {_scaled(size, self._last)}{_then(size, self._last)}")

    def begin(self, formed: RoundFormed, state: RunState) -> None:
        """Tell why a round has the size that it has."""
        self.look(state)
        last, self._last = self._last, formed
        size, now = state.size, len(formed.members)
        if size is None or state.wanted is None:
            return
        if last is None:
            self._known, self._is_due = size, now != size.size
            if formed.members[0].node_id == self._me:
                wanted = f"the user wants {count_text(size.size, 'node')} ({size.detail})"
                self._say(f"{wanted}; round {formed.number} has {now}")
            return
        was = len(last.members)
        is_nearer = was > now >= size.size or was < now <= size.size
        before = {member.node_id for member in last.members}
        teller = next((member.node_id for member in formed.members if member.node_id in before), "")
        if self._is_due and is_nearer and teller == self._me:
            has = f"round {formed.number} has {count_text(now, 'node')} in place of {was}"
            self._say(f"{has}: {_scaled(size, last)}")
        self._is_due = self._is_due and now != size.size


def _scaled(size: SizeWanted, last: RoundFormed) -> str:
    before = len(last.members) if size.before is None else size.before
    if before == size.size:
        return f"kept at {count_text(size.size, 'node')} by the user ({size.detail})"
    return f"scaled from {before} to {count_text(size.size, 'node')} by the user ({size.detail})"


def _then(size: SizeWanted, last: RoundFormed) -> str:
    if size.size < len(last.members):
        return ": the workers save and stop at one step"
    return ": it takes in nodes as they come" if size.size > len(last.members) else ""


class LogMarks:
    """Marks the lengths of the logs of one node; a mark that cannot be written is missing.

    Lengths are asked of open files. On NFS a look at the name would wait until all is written.

    Args:
        path: the file of marks.
        agent_log: descriptor of the agent's own log.
        clock: the clocks of this node.
        known: returns the number of the newest journal record that this agent has read.
    """

    def __init__(self, path: str, agent_log: int, clock: Clock, known: Callable[[], int]) -> None:
        self._path, self._agent_log, self._clock, self._known = path, agent_log, clock, known
        self._lock = Lock()  # other threads of the agent log, too
        self._fd = _NONE
        self._length = 0  # of the file of marks
        self._round = self._first_rank = 0
        self._files: list[int] = []  # descriptors of the logs of the workers
        self._told: tuple[int, ...] = ()  # the content of the newest mark
        self._due_at = 0.0
        self._record, self._fresh, self._read_at = known(), False, clock.monotonic()
        self._looked_at = self._read_at
        with suppress(OSError):
            self._fd = open_plain(path, _FLAGS)
            self._length = _ended(self._fd)

    def begin(self, number: int, first_rank: int, files: Sequence[str]) -> None:
        """Follow the logs of the workers of a round.

        Args:
            number: of the round.
            first_rank: global rank of this node's first worker.
            files: stdout and stderr of each worker, by local rank; empty where it is no file of the run.
        """
        self.end()
        with self._lock:
            self._round, self._first_rank = number, first_rank
            self._files = [_opened(path) for path in files[:_MOST_FILES]]
            self._mark(self._clock.monotonic())

    def look(self, now: float) -> None:
        """Write a mark if a log has grown since the last one, and that one is old enough.

        Args:
            now: monotonic time [s].
        """
        with self._lock:
            self._note_record(now)  # also between two marks: a late look makes the record's age too small
            if now >= self._due_at:
                self._mark(now)

    def mark(self) -> None:
        """Write a mark now if a log has grown: the next line of the agent comes after all that is there."""
        with self._lock:
            self._mark(self._clock.monotonic())

    def end(self) -> None:
        """Write the last mark of a round, whose workers are gone."""
        with self._lock:
            if self._files:
                self._mark(self._clock.monotonic())
            for fd in self._files:
                if fd != _NONE:
                    os.close(fd)
            self._files, self._round = [], 0

    def close(self) -> None:
        """Write the last mark and let go of all files."""
        self.mark()
        self.end()
        if self._fd != _NONE:
            os.close(self._fd)
            self._fd = _NONE

    def _mark(self, now: float) -> None:
        if self._fd == _NONE:
            return
        self._note_record(now)
        agent, *sizes = (_length_of(fd) for fd in (self._agent_log, *self._files))
        if (self._round, agent, *sizes) == self._told:
            return
        self._told, self._due_at = (self._round, agent, *sizes), now + _GAP_S
        known, age = (self._record, now - self._read_at) if self._fresh else (0, 0.0)
        mark = LogMark(
            self._round, self._clock.wall(), known, age, self._first_rank, max(agent, 0), tuple(sizes)
        )
        with suppress(OSError):
            self._length += os.write(self._fd, encode_mark(mark))
            if self._length > MOST_BYTES:
                self._thin()

    def _note_record(self, now: float) -> None:
        record = self._known()
        if record != self._record:
            self._record, self._read_at, self._fresh = record, now, now - self._looked_at < _FRESH_S
        self._looked_at = now

    def _thin(self) -> None:
        """Replace the file by one with fewer marks; a reader has the one or the other."""
        data = os.pread(self._fd, _MOST_READ, max(self._length - _MOST_READ, 0))
        kept = b"".join(thinned(data.splitlines(keepends=True)))
        beside = f"{self._path}.new"
        with suppress(FileNotFoundError):
            os.unlink(beside)  # of an agent that was killed
        self._length = 0  # if it fails, it is tried again when as much has been added
        fd = open_plain(beside, _FLAGS)
        if os.write(fd, kept) == len(kept):
            os.rename(beside, self._path)
            fd, self._fd, self._length = self._fd, fd, len(kept)
        os.close(fd)


def _opened(path: str) -> int:
    try:
        return open_plain(path, own=False) if path else _NONE
    except OSError:
        return _NONE


def _length_of(fd: int) -> int:
    try:
        return _NONE if fd == _NONE else os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        return _NONE


def _ended(fd: int) -> int:
    """End a line that the last writer of a file has left torn; return the length of the file [bytes]."""
    size = os.lseek(fd, 0, os.SEEK_END)
    is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    return size + (os.write(fd, b"\n") if is_torn else 0)
