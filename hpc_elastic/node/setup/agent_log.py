"""The agent's lines for people: in its own log and on the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.clock import Clock, clock_text
from hpc_elastic.node.workers.worker_env import RankPlace
from hpc_elastic.record.journal import RoundFormed, SizeWanted
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import write_all
from hpc_elastic.text import count_text, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_elastic.multiprocessing.errors import FailureRecord
    from hpc_elastic.node.setup.log_marks import LogMarks


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
    """Tells that rounds have another size because the user wants it; one node of each round does.

    Args:
        say: shows a line.
        node_id: of this agent.
    """

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
