"""What an agent tells people: short lines in its own log and on the console."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpc_elastic.agent.worker_env import Place
from hpc_elastic.clock import Clock, clock_text
from hpc_elastic.rendezvous.journal import RoundFormed

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


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

    def say(self, text: str) -> None:
        """Show a line; a place that cannot be written to is passed over."""
        stamp = clock_text(self._clock.wall())
        line = "".join(f"[{stamp} {self._node}] {part}\n" for part in text.splitlines() or [""])
        for fd in self._fds:
            try:
                os.write(fd, line.encode(errors="replace"))
            except OSError:
                continue

    def round_formed(self, formed: RoundFormed, place: Place, restart: str = "") -> None:
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
            step = f", resuming from step {formed.checkpoint.step}" if formed.checkpoint else ""
            title = ", ".join(filter(None, (f"round {formed.number}", restart, _without(formed))))
            self.say(f"{title}: {_workers(place.world_size)} on {names}; master {where}{step}")
        self.say(f"round {formed.number}: starting {ranks} of {place.world_size}")

    def failed(self, failure: FailureRecord) -> None:
        """Show a worker's failure in one line."""
        from hpc_elastic.multiprocessing.errors import one_line  # noqa: PLC0415

        self.say(f"worker failed: {one_line(failure)}")


def _without(formed: RoundFormed) -> str:
    here = {member.node for member in formed.members}  # a lost one may be back with a new agent
    gone = [name for name in formed.lost if name not in here]
    return f"without {', '.join(gone)} (lost)" if gone else ""
